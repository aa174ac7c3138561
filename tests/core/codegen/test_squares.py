"""Arrays that lie across the rows of a kernel: squares of them are transposed in registers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from core.codegen import backend, parallel
from core.codegen.backend import CPU
from core.codegen.machine import lanes
from core.codegen.squares import Squares
from core.codegen.turned_rows import TurnedRows
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.core.codegen.test_row_blocks import drawn
from tests.laws.agreement import both

L = lanes("float32")
DTYPES = ["float32", "float64", "bfloat16", "float16", "int8", "int32", "int64", "bool"]
SHAPES = [(L, L), (L // 2, L), (L - 1, 2 * L + 3), (2 * L + 5, L + 1), (5 * L, 3 * L), (2, L + 3, 2 * L - 1)]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Squares]:
    """The blocks of squares that the generator has written."""
    found: list[Squares] = []
    begin = Squares.begin
    monkeypatch.setattr(Squares, "begin", lambda self: (found.append(self), begin(self))[1])
    return found


@pytest.fixture
def turned_rows(monkeypatch: pytest.MonkeyPatch) -> list[TurnedRows]:
    """The copies of transposed rows that the generator has written."""
    found: list[TurnedRows] = []
    read = TurnedRows.read
    monkeypatch.setattr(TurnedRows, "read", lambda self, count: (found.append(self), read(self, count))[1])
    return found


def turned(shape: tuple[int, ...], dtype: str) -> Block:
    """A transposed array alone, with an array of its order and numbers for rows and columns, and compared."""
    b = BlockBuilder()
    *batch, rows, columns = shape
    x, y = b.param(TensorType((*batch, columns, rows), dtype)), b.param(TensorType(shape, dtype))
    row, column = b.param(TensorType((rows, 1), dtype)), b.param(TensorType((columns,), dtype))
    back = b.emit("transpose", x, axes=(*range(len(batch)), -1, -2))
    if dtype == "bool":
        return optimize(
            b.build([b.emit("logical_xor", b.emit("logical_and", back, y), b.emit("logical_or", row, column))])
        )
    mixed = b.emit("add", b.emit("mul", back, row), b.emit("sub", y, column))
    other = b.emit("where", b.emit("less_than", back, y), back, b.emit("add", column, column))
    return optimize(b.build([mixed, other, b.emit("greater_than", back, column)]))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise_ops_on_transposed_arrays_equal_the_reference_executor(dtype, shape, written):
    block = turned(shape, dtype)

    both(block, drawn(block))

    assert written


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bool"])
def test_results_that_lie_across_the_rows_equal_the_reference_executor(dtype, shape, written):
    """Two results of one kernel, of which one is transposed."""
    b = BlockBuilder()
    x, y = (b.param(TensorType(shape, "float32")) for _ in range(2))
    found = b.emit("less_than", x, y) if dtype == "bool" else b.emit("cast", b.emit("mul", x, y), dtype=dtype)
    back = b.emit("transpose", found, axes=(*range(len(shape) - 2), -1, -2))
    block = optimize(b.build([found, b.emit("concat", back, back, axis=0)]))

    both(block, drawn(block))

    assert written


def normalised(outer: tuple[int, ...], size: int, dtype: str) -> Block:
    """Reductions along the rows of a transposed array, over all rows, and of one of its order too."""
    b = BlockBuilder()
    *batch, rows = outer
    x, y = b.param(TensorType((*batch, size, rows), dtype)), b.param(TensorType((*outer, size), dtype))
    back = b.emit("transpose", x, axes=(*range(len(batch)), -1, -2))
    mean = b.emit("reduce_mean", back, axes=(-1,), keepdims=True)
    apart = b.emit("sub", back, mean)
    columns = b.emit("reduce_sum", b.emit("mul", apart, y), axes=tuple(range(len(outer))))
    return optimize(b.build([b.emit("log_softmax", back), apart, columns, b.emit("reduce_max", apart)]))


def turned_results(outer: tuple[int, ...], size: int, dtype: str, given: bool) -> Block:
    """Reductions along rows, and results that are stored across them. given: whether the array lies across them too."""
    b = BlockBuilder()
    *batch, rows = outer
    order = (*range(len(batch)), -1, -2)
    x, y = (
        b.param(TensorType((*batch, size, rows) if given else (*outer, size), dtype)),
        b.param(TensorType((size,), dtype)),
    )
    found = b.emit("mul", b.emit("transpose", x, axes=order) if given else x, y)
    apart = b.emit("sub", found, b.emit("reduce_max", found, axes=(-1,), keepdims=True))
    back = b.emit("transpose", apart, axes=order)
    return optimize(b.build([b.emit("concat", back, back, axis=0), b.emit("reduce_max", apart)]))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("outer", [(L // 2,), (3 * L + 5,), (2, L + 3)], ids=str)
@pytest.mark.parametrize("size", [L, 3 * L + 2, 40 * L + 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_results_across_the_rows_of_reductions_equal_the_reference_executor(dtype, size, outer, given, turned_rows):
    block = turned_results(outer, size, dtype, given)

    both(block, drawn(block))

    assert any(each.stored for each in turned_rows)


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("outer", [(L // 2,), (3 * L + 5,), (2, L + 3)], ids=str)
@pytest.mark.parametrize("size", [L, 3 * L + 2, 40 * L + 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reductions_along_transposed_arrays_equal_the_reference_executor(dtype, size, outer, turned_rows):
    block = normalised(outer, size, dtype)

    both(block, drawn(block))

    assert turned_rows


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["bool", "int8", "int64"])
def test_reductions_of_transposed_integers_and_bools_equal_the_reference_executor(dtype, turned_rows):
    b = BlockBuilder()
    x = b.param(TensorType((2 * L + 1, L + 2), dtype))
    back = b.emit("transpose", x, axes=(1, 0))
    totals = ["reduce_any", "reduce_all"] if dtype == "bool" else ["reduce_max", "reduce_sum"]
    block = optimize(b.build([b.emit(op, back, axes=(1,)) for op in totals]))

    both(block, drawn(block))

    assert turned_rows


@pytest.mark.sampled(2)
@pytest.mark.parametrize("axes", list(itertools.permutations(range(4))), ids=str)
def test_kernels_agree_for_all_orders_of_axes(axes):
    b, shape = BlockBuilder(), (3, L + 1, 4, 2 * L + 3)
    x, y = b.param(TensorType(shape, "float32")), b.param(TensorType(tuple(shape[a] for a in axes), "float32"))
    back = b.emit("transpose", x, axes=axes)
    low, total = b.emit("tril", back), b.emit("reduce_sum", back, axes=(-1,))
    block = optimize(b.build([b.emit("mul", back, y), b.emit("less_than", back, y), b.emit("log_softmax", low), total]))

    both(block, drawn(block))


@pytest.mark.parametrize("shape", [(5 * L + 3, L + 2), (3, 2 * L + 1, L)], ids=str)
def test_the_bits_do_not_depend_on_the_number_of_threads(shape, monkeypatch, written):
    monkeypatch.setattr(parallel, "LONG", 1)
    block = turned(shape, "float32")
    args, found = drawn(block), []
    for threads in (1, 2, 3):
        monkeypatch.setattr(backend, "thread_count", lambda threads=threads: threads)
        found.append([np.array(a) for a in native_interpreter(block, CPU)(Run(), *args)])

    for first, *others in zip(*found, strict=True):
        assert all(first.tobytes() == each.tobytes() for each in others)
    assert written


@pytest.mark.parametrize("size", [2 * L + 1, 30 * L])
def test_the_bits_of_reductions_do_not_depend_on_the_number_of_threads(size, monkeypatch, turned_rows):
    monkeypatch.setattr(parallel, "LONG", 1)
    b = BlockBuilder()
    x = b.param(TensorType((2, size, 3 * L + 1), "float32"))
    block = optimize(b.build([b.emit("log_softmax", b.emit("transpose", x, axes=(0, 2, 1)))]))
    args, found = drawn(block), []
    for threads in (1, 2, 5):
        monkeypatch.setattr(backend, "thread_count", lambda threads=threads: threads)
        found.append(native_interpreter(block, CPU)(Run(), *args)[0].tobytes())

    assert found[0] == found[1] == found[2]
    assert turned_rows
