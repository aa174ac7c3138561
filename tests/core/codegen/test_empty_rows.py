"""Tables without columns train as machine code."""

from __future__ import annotations

import numpy as np

from core.codegen.vector_slices import even_blocks
from core.compiler.compile import GradientQuery, Optimizer, compile_training
from core.runtime.sparse_rows import RowArray
from core.wire import read
from tests.programs import Sketch


def test_a_table_without_columns_is_updated_by_rows():
    s = Sketch()
    s.param("table", np.zeros((50, 0)), "float32")
    s.feed("ids", np.zeros(8), "int64")
    s.total(s.op("embedding", "table", "ids"))
    step = compile_training(
        read(s.document), GradientQuery(loss="loss"), Optimizer("sgd", {"learning_rate": 0.1}), gives_gradients=False
    ).compiled()

    outputs = step.step(s.values)

    (table,) = outputs.parameters.values()
    assert outputs.loss == 0
    assert isinstance(table, RowArray)
    np.testing.assert_array_equal(table.rows, [0])
    assert table.values.shape == (1, 0)


def test_a_row_without_elements_has_no_blocks():
    assert even_blocks(0, 8) == []
    assert even_blocks(9, 4) == [(0, 3, 3)]
