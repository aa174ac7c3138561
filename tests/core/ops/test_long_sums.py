"""Sums of many float32 numbers are as precise along the first axes and by index as along the last axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend, parallel
from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import Block
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from core.runtime.native import native_interpreter
from core.runtime.reference import execute
from core.runtime.run import Run
from tests.laws.test_ops import type_of

TENTHS = np.full((300_000, 3), np.float32(0.1))
"""The worst case for a sum: all roundings err in the same direction. Added one by one they give 29,970 or so."""

TENTH = float(np.float32(0.1))


def run(type: str, *inputs: Any, **attrs: Any) -> np.ndarray:
    b = BlockBuilder()
    block = b.build([b.emit(type, *[b.param(type_of(x)) for x in inputs], **attrs)])
    return execute(block, list(inputs))[0]


def close(found: np.ndarray, wanted: Any) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.broadcast_to(wanted, found.shape), rtol=1e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("x", "axes"),
    [
        (TENTHS, (0,)),
        (TENTHS.T, (1,)),
        (TENTHS.reshape(500, 600, 3), (0, 1)),
        (TENTHS.reshape(30_000, 3, 10), (0, 2)),
        (TENTHS.reshape(3, 100_000, 3)[::-1], (1,)),
        (TENTHS.reshape(300, 3, 1000).transpose(1, 0, 2), None),
        (np.broadcast_to(TENTHS[0], (9_000_001, 3)), (0,)),
        (np.broadcast_to(TENTHS[0, 0], (3, 300_000)), None),
    ],
    ids=["rows", "a transposed array", "two axes", "the first and the last axis", "an axis in the middle",
         "all axes of a transposed array", "a repeated row", "a repeated number"],
)  # fmt: skip
def test_a_sum_of_equal_numbers_is_their_product_with_the_count(x, axes):
    count = np.prod([x.shape[axis] for axis in (range(x.ndim) if axes is None else axes)])

    close(run("reduce_sum", x, axes=axes), TENTH * count)
    close(run("reduce_sum", x, axes=axes, keepdims=True), TENTH * count)
    close(run("reduce_mean", x, axes=axes), TENTH)


def test_the_gradient_of_a_row_that_many_rows_read_is_precise():
    close(run("sum_to", TENTHS, shape=(3,)), TENTH * 300_000)
    close(run("sum_to_like", TENTHS, TENTHS[:1]), TENTH * 300_000)
    close(run("sum_tiles_like", TENTHS, TENTHS[:1], repeats=(300_000, 1)), TENTH * 300_000)


def interpreted(block: Block, args: list[Any]) -> list[Any]:
    return list(execute(block, args))


def compiled(block: Block, args: list[Any]) -> list[Any]:
    return list(native_interpreter(block, CPU)(Run(), *args))


@pytest.fixture(params=["reference", "1 thread", "3 threads"])
def executor(request, monkeypatch):
    """A function that runs a block."""
    if request.param == "reference":
        return interpreted
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
    monkeypatch.setattr(backend, "thread_count", lambda: int(request.param[0]))
    return compiled


def sums_at(type: str, x: np.ndarray, index: np.ndarray, like: np.ndarray) -> tuple[Block, list[Any]]:
    """A block whose last result has the sums of the rows x at the positions `index`, and its operands."""
    b = BlockBuilder()
    if type == "the gradient of embedding":
        table, at = (b.param(type_of(each)) for each in (like, index))
        return vjp(b.build([b.emit("embedding", table, at)]), [table.name]), [like, index, x]
    if type == "the gradient of gather":
        table, at = (b.param(type_of(each)) for each in (like, index))
        moved = b.emit("transpose", b.emit("gather", table, at, axis=1), axes=(1, 0, 2))
        return vjp(b.build([moved]), [table.name]), [like, index, x]
    rows, table, at = (b.param(type_of(each)) for each in (x, like, index))
    made = {
        "segment_sum": lambda: b.emit("segment_sum", rows, at, num_segments=like.shape[0]),
        "segment_mean": lambda: b.emit("segment_mean", rows, at, num_segments=like.shape[0]),
        "scatter_add_like": lambda: b.emit("scatter_add_like", rows, at, table, axis=0),
        "index_add": lambda: b.emit("index_add", table, at, rows),
        "merge_rows": lambda: b.emit("merge_rows", rows, at, table)[1],
    }
    return b.build([made[type]()]), [x, like, index]


SUMS = ["segment_sum", "segment_mean", "scatter_add_like", "index_add", "merge_rows", "the gradient of embedding"]


@pytest.mark.sampled(3, each="type")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("size", [5, 100])
@pytest.mark.parametrize("width", [None, 3, 20])
@pytest.mark.parametrize("type", SUMS)
def test_sums_of_rows_at_one_position_are_precise(type, width, size, dtype, executor):
    if width is None and type in ("merge_rows", "the gradient of embedding"):
        pytest.skip("a table has rows")
    count, inner = 300_000, () if width is None else (width,)
    x, like = np.full((count, *inner), TENTH).astype(as_dtype(dtype)), np.zeros((size, *inner), as_dtype(dtype))
    index = np.where(np.arange(count) % 3 == 0, 1, 4)
    block, args = sums_at(type, x, index, like)

    found = executor(optimize(block), args)[-1]

    wanted = np.zeros_like(like, "float64")
    wanted[[1, 4]] = np.multiply.outer([100_000, 200_000], x[0].astype("float64"))
    if type == "segment_mean":
        wanted[[1, 4]] = x[0]
    if type == "merge_rows":
        wanted = wanted[[1, 4]]
    assert found.dtype == as_dtype(dtype)
    np.testing.assert_allclose(
        found[: len(wanted)].astype("float64"), wanted, rtol=5e-4 if dtype == "float16" else 1e-4
    )


@pytest.mark.parametrize("width", [1, 7])
def test_sums_on_a_middle_axis_are_precise(width, executor):
    """Several slabs, each with sums of its own."""
    x, index, like = (
        np.full((100_000, 3, width), np.float32(0.1)),
        np.full(100_000, 2),
        np.zeros((3, 5, width), "float32"),
    )
    block, args = sums_at("the gradient of gather", x, index, like)

    found = executor(optimize(block), args)[-1]

    np.testing.assert_allclose(found[:, 2], np.full((3, width), TENTH * 100_000), rtol=2e-5)
    assert not found[:, [0, 1, 3, 4]].any()


@pytest.mark.parametrize("width", [1, 20])
def test_sums_of_gathered_rows_are_precise(width, executor):
    """In machine code the scatter reads the rows of the table where they are."""
    count = 100_000
    table, index = np.full((9, width), np.float32(0.1)), np.arange(count) % 9
    b = BlockBuilder()
    x, at, ids = (b.param(type_of(each)) for each in (table, index, index))
    block = optimize(b.build([b.emit("segment_sum", b.emit("gather", x, at, axis=0), ids, num_segments=3)]))

    found = executor(block, [table, index, np.where(index % 2, 2, 0)])[-1]

    odd = np.count_nonzero(index % 2)
    wanted = np.multiply.outer([count - odd, 0, odd], np.full(width, TENTH))
    np.testing.assert_allclose(found, wanted, rtol=2e-5)


def test_the_softmax_of_many_equal_numbers_adds_up_to_one():
    total = run("logsumexp", TENTHS, axes=(0,)).astype("float64")

    np.testing.assert_allclose(300_000 * np.exp(TENTH - total), 1, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_sums_of_other_dtypes_keep_their_shape_and_dtype(dtype):
    x = np.ones((5000, 2, 2), dtype)

    for axes, shape in (((0,), (2, 2)), ((0, 2), (2,)), (None, ())):
        found = run("reduce_sum", x, axes=axes)
        assert (found.dtype, found.shape) == (np.dtype(dtype), shape)
        np.testing.assert_array_equal(found, np.full(shape, x.size // max(int(np.prod(shape)), 1), dtype))
