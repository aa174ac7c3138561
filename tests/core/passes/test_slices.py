"""Gradients of slices side by side: which sums become one array, and that their values stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.ir import Block
from core.passes.dce import eliminate_dead
from core.passes.slices import join_slices
from core.runtime.reference import execute
from tests.core.blocks import Writer

SHAPE = (4, 9)

Slices = Sequence[tuple[int, int, int, int]]
"""(axis, start, end, step) of each slice of an array of `SHAPE`."""


def sum_of(slices: Slices, more: bool = False) -> Block:
    """The gradients of slices of x, summed up, and y among them if `more`."""
    x = np.zeros(SHAPE)
    shapes = [x[tuple(slice(*part) if i == axis else slice(None) for i in range(2))].shape for axis, *part in slices]
    w = Writer(x=SHAPE, y=SHAPE, **{f"g{i}": shape for i, shape in enumerate(shapes)})
    for i, (axis, start, end, step) in enumerate(slices):
        w.op(f"p{i}", "slice_into", f"g{i}", "x", axes=(axis,), starts=(start,), ends=(end,), steps=(step,))
    addends = [f"p{i}" for i in range(len(slices))]
    w.op("total", "sum", *addends[:1], *(["y"] if more else []), *addends[1:])
    return w.block("total")


def ops(block: Block) -> list[str]:
    return [op.type for op in eliminate_dead(block).ops]


def check(block: Block) -> list[str]:
    """The ops after the pass; the values are those of the block before it."""
    rng = np.random.default_rng(0)
    values = [rng.integers(-9, 9, block.types[name].shape).astype("float64") for name in block.params]
    found = join_slices(block)
    for ours, wanted in zip(execute(found, values), execute(block, values), strict=True):
        np.testing.assert_array_equal(ours, wanted)
    assert found.results == block.results
    return ops(found)


CASES = {
    "all of an axis, in another order": ([(1, 5, 9, 1), (1, 0, 5, 1)], ["concat"]),
    "negative positions": ([(1, 0, -4, 1), (1, -4, 99, 1)], ["concat"]),
    "zeros before, between and behind": ([(1, 1, 3, 1), (1, 4, 8, 1)], ["fill_constant"] * 3 + ["concat"]),
    "three slices of the first axis": ([(0, 2, 3, 1), (0, 0, 2, 1), (0, 3, 4, 1)], ["concat"]),
    "an overlap": ([(1, 0, 5, 1), (1, 4, 9, 1)], ["slice_into"] * 2 + ["sum"]),
    "an overlap of three": ([(1, 0, 5, 1), (1, 4, 7, 1), (1, 5, 9, 1)], ["slice_into", "concat", "sum"]),
    "steps": ([(1, 0, 9, 2), (1, 1, 9, 2)], ["slice_into"] * 2 + ["sum"]),
    "two axes": ([(0, 0, 2, 1), (1, 0, 5, 1), (1, 5, 9, 1)], ["slice_into", "concat", "sum"]),
    "one slice": ([(1, 0, 5, 1)], ["slice_into", "sum"]),
}


@pytest.mark.parametrize("name", CASES)
def test_slices_that_do_not_overlap_are_joined(name):
    slices, wanted = CASES[name]
    assert check(sum_of(slices)) == wanted


def test_other_addends_stay_in_the_sum():
    assert check(sum_of([(1, 0, 5, 1), (1, 5, 9, 1)], more=True)) == ["concat", "sum"]


def test_an_addend_that_something_else_reads_stays():
    w = Writer(x=SHAPE, a=(4, 5), b=(4, 4))
    w.op("p", "slice_into", "a", "x", axes=(1,), starts=(0,), ends=(5,), steps=(1,))
    w.op("q", "slice_into", "b", "x", axes=(1,), starts=(5,), ends=(9,), steps=(1,))
    w.op("total", "sum", "p", "q")
    w.op("other", "neg", "p")
    assert check(w.block("total other")) == ["slice_into", "slice_into", "sum", "neg"]


@settings(max_examples=60, deadline=None)
@given(
    slices=st.lists(
        st.tuples(st.integers(0, 1), st.integers(-5, 9), st.integers(-5, 12), st.sampled_from((1, 1, 1, 2, -1))),
        min_size=1,
        max_size=6,
    ),
    more=st.booleans(),
)
def test_any_slices_keep_their_sum(slices, more):
    check(sum_of(slices, more))
