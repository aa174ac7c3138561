"""One element of each row, at positions from data: kernels compare positions along the row, or compute addresses."""

from __future__ import annotations

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.registry import as_tuple, lookup
from tests.laws.agreement import both

LONGEST_ROW = CPU_TARGET.rows.longest_row
SHAPES = [(1, 1), (1, 7), (3, 1), (4, 33), (1, 4096), (1, 4097), (2, LONGEST_ROW), (2, LONGEST_ROW + 1), (2, 3, 20_000)]
"""Row lengths around the longest that one pass compares, and single rows, whose limit is lower."""


def picked(shape: tuple[int, ...], index_dtype: str, constant: bool, name: str) -> None:
    """The picked elements, and the adjoint of their cotangents: the parts of a loss over many classes."""
    b, rng = BlockBuilder(), np.random.default_rng(0)
    column = (*shape[:-1], 1)
    values = [rng.standard_normal(shape).astype("float32")]
    x = b.param(TensorType(shape, "float32"))
    if constant:
        index = b.constant(shape[-1] - 1, index_dtype, column)
    else:
        values.append(rng.integers(0, shape[-1], column).astype(index_dtype))
        index = b.param(TensorType(column, index_dtype))
    out = as_tuple(lookup(name)(x, index))[0]
    block = vjp(b.build([out]), [x.name])
    both(optimize(block), [*values, rng.standard_normal(out.shape).astype("float32")])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("name", ["take_along_axis", "softmax_with_cross_entropy"])
def test_picked_elements_equal_the_reference_executor_for_any_row_length_and_positions(
    shape, index_dtype, constant, name
):
    picked(shape, index_dtype, constant, name)


@pytest.mark.parametrize("size", [5, LONGEST_ROW + 1])
@pytest.mark.parametrize("below", [False, True])
def test_a_position_outside_the_row_is_an_error_for_any_row_length(size, below):
    b = BlockBuilder()
    x, index = b.param(TensorType((3, size), "float32")), b.param(TensorType((3, 1), "int64"))
    block = optimize(b.build([lookup("take_along_axis")(x, index)]))
    at = -size - 1 if below else size
    both(block, [np.ones((3, size), "float32"), np.array([[0], [-size], [at]])])
