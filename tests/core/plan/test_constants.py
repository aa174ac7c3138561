"""Arrays that depend on no data: one number in all elements is a part of the code, whatever the size of the array."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.plan import plan_block
from core.runtime.native import native_interpreter
from core.runtime.run import Run

ROWS, COLUMNS = 300, 400  # 480,000 bytes


@pytest.mark.parametrize("name", ["fill_constant", "fill_constant_batch_size_like", "full_like"])
def test_a_large_array_of_one_number_has_machine_code(name):
    b = BlockBuilder()
    x = b.param(TensorType((ROWS, COLUMNS), "float32"))
    if name == "full_like":
        filled = b.emit(name, x, value=1.5)
    elif name == "fill_constant":
        filled = b.emit(name, shape=(ROWS, COLUMNS), value=1.5)
    else:
        filled = b.emit(name, x, shape=(-1, COLUMNS), value=1.5)
    block = b.build([b.emit("mul", x, filled), filled])

    assert not plan_block(block, CPU_TARGET).interpreted
    given = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("float32")
    product, numbers = native_interpreter(block, CPU)(Run(), given)
    np.testing.assert_array_equal(product, given * np.float32(1.5))
    np.testing.assert_array_equal(numbers, np.full((ROWS, COLUMNS), 1.5, "float32"))
