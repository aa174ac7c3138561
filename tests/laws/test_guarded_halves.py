"""Machine code for 16-bit floats accesses only its arrays: see test_guarded."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.precision import HALVES
from core.ops.common.types import as_dtype
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.laws.guards import Guarded, guards
from tests.laws.test_native_halves import assert_close

__all__ = ["guards"]

SIZES = (1, 15, 17, 31, 33, 49)
"""One element more or less than whole vectors."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("size", SIZES)
def test_rows_of_any_length_access_only_their_arrays(size, dtype, guards):
    b = BlockBuilder()
    x, y = b.param(TensorType((3, size), dtype), "x"), b.param(TensorType((size,), dtype), "y")
    shifted = b.emit("tanh", b.emit("add", x, y))
    results = [shifted, b.emit("softmax", shifted), b.emit("reduce_sum", shifted, axes=(0,)),
               b.emit("transpose", shifted, axes=(1, 0)), b.emit("cast", x, dtype="int32")]  # fmt: skip

    check(b, results, guards)


@pytest.mark.sampled(2, each="across")
@pytest.mark.parametrize(
    ("m", "k", "n"), [(64, 2, 64), (65, 34, 79), (70, 66, 97), (64, 1030, 64), (65, 33, 79), (5, 6, 7)]
)
@pytest.mark.parametrize("across", [False, True])
def test_products_access_only_their_arrays(m, k, n, across, guards):
    b = BlockBuilder()
    shapes = ((k, m), (n, k)) if across else ((m, k), (k, n))
    x, y = (b.param(TensorType(shape, "bfloat16"), name) for shape, name in zip(shapes, "xy", strict=True))

    check(b, [b.emit("matmul", x, y, transpose_x=across, transpose_y=across)], guards)


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [5, 64, 99])
def test_sums_of_rows_at_positions_access_only_their_arrays(count, size, dtype, guards):
    b = BlockBuilder()
    table, index = b.param(TensorType((count, size), dtype)), b.param(TensorType((37,), "int64"))
    rows = b.param(TensorType((37, size), dtype))
    gathered = b.emit("gather", table, index, axis=0)
    results = [b.emit("scatter_add_like", each, index, table, axis=0) for each in (rows, gathered)]

    check(b, results, guards)


def check(b: BlockBuilder, results: list, guards: list[Guarded]) -> None:
    """Run a block on guarded arrays and compare with the reference executor."""
    block = optimize(b.build(results))
    rng = np.random.default_rng(0)
    values = [rng.uniform(-2, 2, block.types[p].shape).astype(as_dtype(block.types[p].dtype)) for p in block.params]
    given = []
    for value in values:
        guards.append(Guarded(value.shape, value.dtype))
        guards[-1].array[...] = value
        given.append(guards[-1].array)

    found = native_interpreter(block, CPU)(Run(), *given)

    for one, other in zip(found, interpreter_of(block)(Run(), *values), strict=True):
        assert_close(np.asarray(one), np.asarray(other), units=1)
    assert all(each.intact for each in guards)
