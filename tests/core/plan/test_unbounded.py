"""Ops whose results have sizes without a largest value agree with the reference executor, whatever the sizes are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.registry import as_tuple
from core.passes.expand import expand_composites
from core.plan.partition import plan_parts
from tests.laws.agreement import both

Case = tuple[list[Any], dict[str, Any]]
SCALES = (0, 1, 3, 30, 900)
"""Largest counts; from 30 on, most results are larger than the code expects at first."""


def lengths_of(rng: np.random.Generator, count: int, rows: int) -> np.ndarray:
    """Lengths of `count` sequences, some of them empty, with `rows` rows in all."""
    cuts = np.sort(rng.integers(0, rows + 1, count - 1))
    return np.diff(np.concatenate([[0], cuts, [rows]])).astype("int64")


def spoiled(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
    """Now and then one of the numbers is wrong: negative, or too large for any memory."""
    counts = counts.copy()
    if len(counts) and rng.random() < 0.2:
        counts[rng.integers(len(counts))] = rng.choice([-1, -(2**62), 2**62, 7])
    return counts


def repeats(rng: np.random.Generator, scale: int) -> Case:
    counts = spoiled(rng, rng.integers(0, scale + 1, rng.integers(1, 6)))
    return [counts if rng.random() < 0.5 else np.clip(counts, -9, 9**5).astype("int32")], {}


def copies(rng: np.random.Generator, scale: int) -> Case:
    rows, count = int(rng.integers(1, 9)), int(rng.integers(1, 5))
    times = spoiled(rng, rng.integers(0, scale + 1, count))
    return [times, spoiled(rng, lengths_of(rng, count, rows)), rng.standard_normal((rows, 2))], {}


def ranges(rng: np.random.Generator, scale: int) -> Case:
    dtype = rng.choice(["int64", "int32", "float64", "float32"])
    if dtype.startswith("int"):
        ends = rng.integers(-scale, scale + 1, 2), rng.choice([-3, -1, 0, 1, 2], p=[0.2, 0.2, 0.1, 0.3, 0.2])
    else:
        ends = (
            rng.choice([-1.5 * scale, 0.25, scale, np.inf, np.nan], 2, p=[0.3, 0.3, 0.3, 0.05, 0.05]),
            rng.choice([-0.5, 0.75, 0.0, np.inf], p=[0.4, 0.4, 0.1, 0.1]),
        )
    return [np.asarray(each, dtype) for each in (*ends[0], ends[1])], {}


def filled(rng: np.random.Generator, scale: int) -> Case:
    rank = int(rng.integers(1, 4))
    sizes = rng.integers(0, max(1, int(scale ** (1 / rank))) + 2, rank)
    shape = [int(n) if rng.random() < 0.4 else -1 for n in sizes]
    return [spoiled(rng, sizes)], {"shape": tuple(shape), "value": 2.0, "dtype": str(rng.choice(["float64", "int64"]))}


def expanded(rng: np.random.Generator, scale: int) -> Case:
    own = [int(rng.choice([1, 1, 3])) for _ in range(rng.integers(0, 3))]
    rank = len(own) + int(rng.integers(0, 2))
    whole = [1] * (rank - len(own)) + own
    sizes = [int(rng.integers(0, min(scale, 70) + 2)) if n == 1 else int(rng.choice([1, n])) for n in whole]
    shape = [-1 if n == 1 and rng.random() < 0.7 else m if n == 1 else n for m, n in zip(sizes, whole, strict=True)]
    x = rng.standard_normal(own) if rng.random() < 0.7 else rng.integers(0, 5, own)
    return [x, spoiled(rng, np.array(sizes, "int64"))], {"shape": tuple(shape)}


def reshaped(rng: np.random.Generator, scale: int) -> Case:
    rows = max(1, scale)
    x = rng.standard_normal((rows, 6))
    shape = [(-1, 3), (-1,), (-1, 2, 3), (rows * 6,), (rows, 3, 2)][rng.integers(5)]
    rest = int(np.prod([n for n in shape if n != -1]))
    sizes = np.array([rows * 6 // rest if n == -1 else n for n in shape])
    if rng.random() < 0.4:
        sizes[rng.integers(len(sizes))] = -1
    return [x, spoiled(rng, sizes)], {"shape": shape}


def wide(rng: np.random.Generator, scale: int) -> Case:
    return [rng.integers(0, scale + 1, rng.integers(1, 5))], {}


def padded(rng: np.random.Generator, scale: int) -> Case:
    return wide(rng, scale)[0], {"shape": (2,), "value": 2.0, "dtype": str(rng.choice(["float64", "int64"]))}


def rows_of(rng: np.random.Generator, scale: int) -> Case:
    rows, count = max(1, scale), int(rng.integers(1, 5))
    lengths = lengths_of(rng, count, rows)
    attrs = {} if rng.random() < 0.6 else {"width": int(max(1, lengths.max() - rng.integers(-1, 2)))}
    return [spoiled(rng, lengths), rng.standard_normal((rows, 2))], attrs


def parts(rng: np.random.Generator, scale: int) -> Case:
    rows, count = max(1, scale), int(rng.integers(1, 5))
    lengths = lengths_of(rng, count, rows)
    offsets = rng.integers(0, lengths + 1)
    counts = rng.integers(0, lengths - offsets + 1)
    given = [lengths, offsets, counts]
    which = rng.integers(3)
    given[which] = spoiled(rng, given[which])
    return [*given, rng.standard_normal((rows, 2))], {}


def steps(rng: np.random.Generator, scale: int) -> Case:
    rows, count = max(1, scale), int(rng.integers(1, 6))
    return [spoiled(rng, lengths_of(rng, count, rows)), rng.standard_normal((rows, 2))], {}


def merged(rng: np.random.Generator, scale: int) -> Case:
    count, size = max(1, scale), int(rng.integers(2, 9))
    ids = rng.integers(-size, size, count)
    if rng.random() < 0.2:
        ids[rng.integers(count)] = size
    attrs = {"padding_idx": int(rng.integers(size))} if rng.random() < 0.4 else {}
    return [rng.standard_normal((count, 3)), ids, rng.standard_normal((size, 3))], attrs


CASES: dict[str, Callable[[np.random.Generator, int], Case]] = {
    "repeat_positions": repeats,
    "expanded_rows": copies,
    "dynamic_range": ranges,
    "dynamic_fill": filled,
    "dynamic_expand": expanded,
    "dynamic_reshape": reshaped,
    "sequence_mask": wide,
    "padded_like": padded,
    "padded_rows": rows_of,
    "sequence_slice_rows": parts,
    "step_rows": steps,
    "merge_rows": merged,
}


def block_of(name: str, given: Sequence[np.ndarray], attrs: dict[str, Any]) -> Block:
    """The op, and the sum of the squares of each result that is of floats."""
    b = BlockBuilder()
    results = as_tuple(b.emit(name, *(b.param(TensorType(x.shape, str(x.dtype))) for x in given), **attrs))
    sums = [b.emit("reduce_sum", b.emit("square", each)) for each in results if each.type.is_float]
    return b.build([*results, *sums])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", CASES)
def test_results_of_any_size_agree_with_the_reference_executor(name, scale):
    for seed in range(8):
        given, attrs = CASES[name](np.random.default_rng(100 * scale + seed), scale)
        given = [np.asarray(x) for x in given]
        block = optimize(block_of(name, given, attrs))
        both(block, given)
        both(block, given)


@pytest.mark.parametrize("name", CASES)
def test_an_op_whose_size_has_no_largest_value_has_machine_code(name):
    given, attrs = CASES[name](np.random.default_rng(7), 3)
    found = plan_parts(optimize(block_of(name, [np.asarray(x) for x in given], attrs)), CPU_TARGET)

    assert not found.refused
    assert all(not part.interpreted for part in found.regions)


def lookups(rng: np.random.Generator, scale: int) -> tuple[Block, list[np.ndarray]]:
    """Rows of a table merged and looked up again, with the gradient of the sum of their squares."""
    count, size = max(1, scale), int(rng.integers(2, 9))
    x, like = rng.standard_normal((count, 3)), rng.standard_normal((size, 3))
    ids, wanted = rng.integers(0, size, count), rng.integers(-size, size, (2, 4))
    b = BlockBuilder()
    given = [b.param(TensorType(each.shape, str(each.dtype))) for each in (x, ids, like, wanted)]
    rows, values = b.emit("merge_rows", *given[:3])
    out = b.emit("read_rows", b.emit("sin", values), rows, given[3], given[2])
    block = b.build([b.emit("reduce_sum", b.emit("square", out))])
    return vjp(block, [block.params[0]]), [x, ids, like, wanted, np.array(1.0)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scale", SCALES)
def test_rows_that_only_the_run_counts_are_looked_up(scale):
    for seed in range(6):
        block, given = lookups(np.random.default_rng(seed), scale)
        block = optimize(block)
        assert not plan_parts(block, CPU_TARGET).refused
        both(block, given)


def test_row_numbers_that_do_not_ascend_are_an_error():
    b = BlockBuilder()
    flags, like = b.param(TensorType((4,), "bool")), b.param(TensorType((5, 2), "float64"))
    rows = b.emit("reshape", b.emit("nonzero", flags), shape=(-1,))
    numbers = b.emit("scale", rows, scale=-1.0, bias=4.0)
    values = b.emit("gather", like, rows)
    block = optimize(b.build([b.emit("read_rows", values, numbers, rows, like)]))

    for mask in ([True, True, False, True], [False, True, False, False], [False] * 4):
        both(block, [np.array(mask), np.arange(10.0).reshape(5, 2)])


@pytest.mark.sampled(1, each="valued")
@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("scale", SCALES)
def test_sequences_are_padded_to_the_longest_one(scale, valued):
    """Its length is an open size of the second axis; the gradient goes to the rows, and to the value of the padding."""
    rng = np.random.default_rng(scale)
    for _ in range(4):
        rows, count = max(1, scale), int(rng.integers(1, 5))
        b = BlockBuilder()
        x, lengths = b.param(TensorType((rows, 3), "float64")), b.param(TensorType((count,), "int64"))
        value = [b.param(TensorType((1,), "float64"))] if valued else []
        out = b.emit("sequence_pad", x, lengths, *value, pad_value=0.5)
        block = b.build([b.emit("reduce_sum", b.emit("square", b.emit("sin", out)))])
        block = optimize(vjp(block, [x.name, *(each.name for each in value)]))
        given = [rng.standard_normal((rows, 3)), lengths_of(rng, count, rows), *([np.array([0.25])] if valued else [])]

        assert not plan_parts(block, CPU_TARGET).refused
        both(block, [*given, np.array(1.0)])


@pytest.mark.parametrize("chosen", [0, 1, 3, 4])
def test_an_open_vector_is_summed_to_the_cotangent_of_a_number(chosen):
    b = BlockBuilder()
    x, scale, mask = (
        b.param(TensorType(shape, dtype)) for shape, dtype in (((4,), "float64"), ((), "float64"), ((4,), "bool"))
    )
    rows = b.emit("gather", x, b.emit("reshape", b.emit("nonzero", mask), shape=(-1,)))
    block = vjp(b.build([b.emit("reduce_sum", b.emit("sin", b.emit("mul", rows, scale)))]), [x.name, scale.name])
    given = [np.arange(4.0), np.array(0.5), np.arange(4) < chosen, np.array(1.0)]

    both(optimize(block), given)


@pytest.mark.parametrize("type", ["add", "where"])
def test_sizes_of_different_ops_are_compared_by_the_run(type):
    """Rows that two masks choose: equally many, one against several, which broadcasts, and numbers that do not fit."""
    b = BlockBuilder()
    x, *masks = (
        b.param(TensorType(shape, dtype)) for shape, dtype in (((5,), "float64"), ((5,), "bool"), ((5,), "bool"))
    )
    first, second = (b.emit("gather", x, b.emit("reshape", b.emit("nonzero", m), shape=(-1,))) for m in masks)
    out = (
        b.emit("add", first, second)
        if type == "add"
        else b.emit("where", b.emit("less_than", first, second), first, second)
    )
    block = optimize(vjp(b.build([b.emit("reduce_sum", b.emit("sin", out))]), [x.name]))
    assert not plan_parts(block, CPU_TARGET).refused

    for chosen in ((2, 2), (0, 0), (1, 4), (4, 1), (2, 3), (0, 1), (0, 2)):
        both(block, [np.arange(5.0), *(np.arange(5) < n for n in chosen), np.array(1.0)])


@pytest.mark.parametrize("times", [0, 3, 100, -1])
def test_rows_are_repeated_as_often_as_a_constant_says(times):
    """100 times 4 rows are more than the code expects at first, and the planner knows it."""
    b = BlockBuilder()
    x = b.param(TensorType((4, 2), "float64"))
    counts = b.constant(times, "int64", (4,))
    rows = b.emit("repeat", x, counts, axis=0)
    start, step = b.constant(0, "int64"), b.constant(1, "int64")
    numbers = b.emit("dynamic_range", start, b.constant(3 * times, "int64"), step)
    block = b.build([rows, b.emit("reduce_sum", b.emit("square", rows)), numbers])

    for each in (block, optimize(block)):
        both(expand_composites(each), [np.arange(8.0).reshape(4, 2)])
        both(expand_composites(each), [np.arange(8.0).reshape(4, 2)])
