"""Rows of a few elements: the kernel computes as many at a time as a vector has lanes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend, parallel, row_blocks
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.codegen.lane_sums import RUN
from core.codegen.machine import lanes
from core.codegen.row_blocks import RowBlock, rows_together
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.ir.precision import HALVES
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.instructions import Rows
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.laws.agreement import both
from tests.laws.test_native_halves import both as halves_agree

L = lanes("float32")
OUTER = [(L - 1,), (L,), (3 * L + 5,), (2, L + 1), (3, 2, L)]
Arrays = list[np.ndarray]


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[RowBlock]:
    """The blocks that the generator has written."""
    found: list[RowBlock] = []
    write = RowBlock.write
    monkeypatch.setattr(RowBlock, "write", lambda self, row: (found.append(self), write(self, row))[1])
    monkeypatch.setattr(row_blocks, "MANY", 1)
    return found


def drawn(block: Block) -> Arrays:
    random = np.random.default_rng(7)
    types = [block.types[p] for p in block.params]
    numbers = lambda t: random.normal(0, 3, t.shape) if t.is_float else random.integers(-9, 9, t.shape)
    return [
        random.random(t.shape) < 0.6 if t.dtype == "bool" else numbers(t).astype(as_dtype(t.dtype))
        for t in types
        if isinstance(t, TensorType)
    ]


def masked_logsumexp(outer: tuple[int, ...], size: int, dtype: str) -> Block:
    """Log-sum-exp of the rows under a mask, plus a number for each row; rows without an element are 0."""
    b = BlockBuilder()
    x, more = b.param(TensorType((*outer, size), dtype)), b.param(TensorType((*outer, 1), dtype))
    mask = b.param(TensorType((*outer, size), "bool"))
    far = b.emit("where", mask, x, b.emit("full_like", x, value=-np.inf))
    top = b.emit("reduce_max", far, axes=(-1,), keepdims=True)
    fine = b.emit("isfinite", top)
    top = b.emit("where", fine, top, b.emit("zeros_like", top))
    total = b.emit("reduce_sum", b.emit("exp", b.emit("sub", far, top)), axes=(-1,), keepdims=True)
    out = b.emit("add", b.emit("add", b.emit("log", total), top), more)
    return optimize(b.build([b.emit("where", fine, out, more), far, fine]))


def softmax_gradient(outer: tuple[int, ...], size: int, dtype: str) -> Block:
    b = BlockBuilder()
    x, w = b.param(TensorType((*outer, size), dtype)), b.param(TensorType((size,), dtype))
    block = b.build([b.emit("tanh", b.emit("mul", b.emit("softmax", x), w))])
    return optimize(vjp(block, [block.params[0]]))


def mean_cross_entropy(outer: tuple[int, ...], size: int, dtype: str) -> Block:
    """The mean over rows of cross entropy with one label for each row, and its gradient."""
    b = BlockBuilder()
    x, second = b.param(TensorType((*outer, size), dtype)), b.param(TensorType(outer, "bool"))
    block = b.build([b.emit("softmax_with_cross_entropy", x, b.emit("cast", second, dtype="int64"), reduction="mean")])
    return optimize(vjp(block, [block.params[0]]))


def across_rows(outer: tuple[int, ...], size: int, dtype: str) -> Block:
    """The rows lie across those of the array: neighbours in a row are far apart."""
    b = BlockBuilder()
    x = b.param(TensorType((size, *outer), dtype))
    turned = b.emit("transpose", x, axes=(*range(1, len(outer) + 1), 0))
    return optimize(b.build([b.emit("log_softmax", turned), b.emit("reduce_max", turned, axes=(-1,))]))


def affine_gradients(outer: tuple[int, ...], size: int, dtype: str) -> Block:
    """The gradients of scaled and moved rows: sums over the rows of each column, and of numbers of each row."""
    b = BlockBuilder()
    x, scale, move = b.param(TensorType((*outer, size), dtype)), *(b.param(TensorType((size,), dtype)) for _ in "ab")
    each = b.param(TensorType((outer[-1],), dtype))
    y = b.emit("add", b.emit("mul", x, scale), move)
    block = b.build([b.emit("mul", b.emit("logsumexp", b.emit("tanh", y), axes=(-1,)), each)])
    return optimize(vjp(block, block.params[1:]))


def distance_gradients(outer: tuple[int, ...], size: int, dtype: str) -> Block:
    """The gradients of energies of pairs of points: rows are added to those of either point."""
    b = BlockBuilder()
    points = b.param(TensorType((outer[-1], size), dtype))
    others = b.param(TensorType((max(outer[0], 3), size), dtype))
    between = b.emit("sub", b.emit("unsqueeze", points, axes=(0,)), b.emit("unsqueeze", others, axes=(1,)))
    square = b.emit("reduce_sum", b.emit("square", between), axes=(2,))
    block = b.build([b.emit("exp", b.emit("scale", square, scale=-0.1))])
    return optimize(vjp(block, block.params))


MAKERS = [masked_logsumexp, softmax_gradient, mean_cross_entropy, across_rows, affine_gradients, distance_gradients]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("outer", OUTER, ids=str)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 9, 10, 12])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", MAKERS)
def test_short_rows_equal_the_reference_executor(make: Callable[..., Block], dtype, size, outer, blocks):
    block = make(outer, size, dtype)

    with np.errstate(all="ignore"):
        both(block, drawn(block))

    assert blocks or outer[-1] < lanes(dtype)


@pytest.mark.sampled(2, each="make")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("size", [2, 3, 10])
@pytest.mark.parametrize("make", [masked_logsumexp, softmax_gradient, mean_cross_entropy, across_rows])
def test_short_rows_of_16_bit_floats_equal_the_reference_executor(make: Callable[..., Block], dtype, size, blocks):
    block = make((2, L + 1), size, dtype)

    halves_agree(block, drawn(block), units=2)

    assert blocks


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 10, 12])
def test_short_rows_of_integers_equal_the_reference_executor(size, dtype, blocks):
    b = BlockBuilder()
    x, y = (b.param(TensorType((4, L + 3, size), dtype)) for _ in range(2))
    total = b.emit("reduce_sum", b.emit("mul", x, y), axes=(-1,), keepdims=True)
    less = b.emit("less_than", x, total)
    block = optimize(b.build([b.emit("where", less, total, y), less, b.emit("reduce_any", less, axes=(-1,))]))

    both(block, drawn(block))

    assert blocks


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make", [masked_logsumexp, softmax_gradient])
@pytest.mark.parametrize("dtype", ["float32", "float64", *HALVES])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 10, 12])
def test_the_bits_of_a_row_do_not_depend_on_its_place(size, dtype, make: Callable[..., Block], blocks):
    """Rows in a block, in a smaller one and behind it have the same bits, so threads may share the rows anyhow."""
    rows = 2 * L + L // 2 + L // 4
    block = make((rows,), size, dtype)
    step = native_interpreter(block, CPU)
    args = drawn(block)
    of_rows = [a.shape[:1] == (rows,) for a in args]
    with np.errstate(all="ignore"):
        first = [np.array(a) for a in step(Run(), *args)]

        for by in range(1, rows):
            moved = [np.roll(a, by, axis=0) if own else a for a, own in zip(args, of_rows, strict=True)]
            for a, b in zip(first, step(Run(), *moved), strict=True):
                if a.shape[:1] == (rows,):
                    assert np.roll(a, by, axis=0).tobytes() == np.asarray(b).tobytes()

    assert len({each.rows for each in blocks}) == (1 if dtype == "float64" and lanes(dtype) == 2 else 2)


@pytest.mark.parametrize("outer", [(3 * L + 5,), (3, L + 2)], ids=str)
@pytest.mark.parametrize("make", [masked_logsumexp, softmax_gradient])
def test_the_bits_do_not_depend_on_the_number_of_threads(make: Callable[..., Block], outer, monkeypatch, blocks):
    monkeypatch.setattr(parallel, "LONG", 1)
    block = make(outer, 3, "float32")
    args, found = drawn(block), []
    for threads in (1, 3):
        monkeypatch.setattr(backend, "thread_count", lambda threads=threads: threads)
        with np.errstate(all="ignore"):
            found.append([np.array(a) for a in native_interpreter(block, CPU)(Run(), *args)])

    for a, b in zip(*found, strict=True):
        assert a.tobytes() == b.tobytes()
    assert blocks


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("make", "outer", "size"),
    [
        (mean_cross_entropy, (3, 2 * L + 3), 21),
        *((affine_gradients, (3, 2 * L + 3), size) for size in (2, 3, 5, 8, 9, 12)),
        *((distance_gradients, (5, 2 * L + 3), size) for size in (2, 3, 5, 8, 9, 12)),
    ],
)
def test_sums_over_the_rows_of_short_runs_have_the_bits_of_rows_alone(make, outer, size, monkeypatch, blocks):
    """Each number of a row is added by itself."""
    block, found = make(outer, size, "float32"), []
    args = drawn(block)
    for longest in (row_blocks.LONGEST_EXPENSIVE, 1):
        monkeypatch.setattr(row_blocks, "LONGEST_EXPENSIVE", longest)
        monkeypatch.setattr(row_blocks, "LONGEST", min(longest, row_blocks.LONGEST))
        found.append([np.array(a).tobytes() for a in native_interpreter(block, CPU)(Run(), *args)])

    assert found[0] == found[1]
    assert blocks


def row_norms(outer: tuple[int, ...], size: int, dtype: str) -> Block:
    """Sums of all elements, of each column, of each line of rows, and of one number for each row; extreme values."""
    b = BlockBuilder()
    x, each = b.param(TensorType((*outer, size), dtype)), b.param(TensorType((*outer, 1), dtype))
    y = b.emit("mul", b.emit("softmax", x), each)
    rest, last = tuple(range(len(outer))), len(outer)
    total = b.emit("reduce_sum", y, axes=(last,), keepdims=True)
    sums = [b.emit("reduce_sum", y, axes=axes) for axes in ((*rest, last), rest, (last - 1, last), (last - 1,))]
    extreme = [b.emit("reduce_max", y, axes=rest), b.emit("reduce_min", total, axes=(*rest, last))]
    return optimize(b.build([*sums, *extreme, b.emit("reduce_sum", total, axes=(last - 1, last)), y]))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("outer", [(RUN * L,), (RUN * L + L + 3,), (2, RUN * L + L // 2), (2, 3, RUN * L + 1)], ids=str)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 9, 12])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", [row_norms, mean_cross_entropy, affine_gradients, distance_gradients])
def test_sums_over_the_rows_of_long_runs_equal_the_reference_executor(
    make: Callable[..., Block], dtype, size, outer, blocks
):
    block = make(outer, size, dtype)

    both(block, drawn(block))

    assert any(each.sums.numbers for each in blocks) or make is affine_gradients


def test_a_sum_over_a_million_rows_is_exact_to_a_few_units(blocks):
    b = BlockBuilder()
    x = b.param(TensorType((1_000_003, 3), "float32"))
    top = b.emit("reduce_max", x, axes=(-1,), keepdims=True)
    block = optimize(b.build([b.emit("reduce_sum", b.emit("sub", top, b.emit("scale", x, scale=0.5)), axes=(0, 1))]))
    given = np.random.default_rng(2).random((1_000_003, 3), "float32")
    exact = (given.max(1, keepdims=True).astype("float64") - given / 2).sum()

    (found,) = native_interpreter(block, CPU)(Run(), given)

    assert abs(found - exact) < 4 * np.spacing(np.float32(exact))
    assert any(each.sums.numbers for each in blocks)


def test_positions_count_along_and_across_short_rows(blocks):
    b = BlockBuilder()
    x = b.param(TensorType((2, L + 2, 3), "float32"))
    labels = b.param(TensorType((2, L + 2, 1), "int64"))
    low = b.emit("tril", b.emit("exp", x))
    picked = b.emit("take_along_axis", b.emit("log_softmax", x), labels, axis=-1)
    block = optimize(b.build([b.emit("mul", low, b.emit("reduce_sum", low, axes=(-1,), keepdims=True)), picked]))
    random = np.random.default_rng(1)

    both(block, [random.normal(size=(2, L + 2, 3)).astype("float32"), random.integers(-3, 3, (2, L + 2, 1))])

    assert any(i.kind == "iota" for each in blocks for i in each.kernel.code)


@pytest.mark.parametrize("row", [0, L - 1, L, 2 * L])
@pytest.mark.parametrize("wrong", [-4, 3])
def test_a_wrong_position_in_any_row_is_an_error(wrong, row, blocks):
    b = BlockBuilder()
    x = b.param(TensorType((2 * L + 1, 3), "float32"))
    total = b.emit("reduce_sum", x, axes=(-1,), keepdims=True)
    at = b.emit("cast", total, dtype="int64")
    block = optimize(b.build([b.emit("take_along_axis", b.emit("div", x, total), at, axis=-1)]))
    step = native_interpreter(block, CPU)
    given = np.ones((2 * L + 1, 3), "float32") / 2
    step(Run(), given)
    given[row] = wrong / 3

    with pytest.raises(ExecutionError, match="out of range"):
        step(Run(), given)

    assert any(i.kind == "check" for each in blocks for i in each.kernel.code)


@pytest.mark.parametrize(("rows", "expected"), [(512, True), (511, False)])
@pytest.mark.parametrize("classes", [5, 12])
def test_blocks_of_longer_rows_pay_for_their_code_from_512_rows_on(rows, expected, classes):
    b = BlockBuilder()
    x = b.param(TensorType((rows, classes), "float32"))
    block = optimize(b.build([b.emit("log_softmax", x)]))

    (kernel,) = (i.kernel for i in plan_block(block, CPU_TARGET).body.instructions if isinstance(i, Rows))

    assert (rows_together(kernel) > 1) == expected
