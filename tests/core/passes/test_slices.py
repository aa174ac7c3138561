"""Gradients of slices of one array: which sums become one array, and that their values stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.ir import Block
from core.passes import slices as passes
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


LARGE = {
    "an overlap": ([(1, 0, 5, 1), (1, 4, 9, 1)], ["slice"] * 4 + ["sum", "concat"]),
    "a slice of all": ([(1, 0, 9, 1), (1, 4, 5, 1)], ["slice"] * 3 + ["sum", "concat"]),
    "a gap": ([(1, 0, 5, 1), (1, 0, 4, 1), (1, 8, 9, 1)], ["slice", "sum", "slice", "fill_constant", "concat"]),
    "side by side": ([(1, 0, 5, 1), (1, 5, 9, 1)], ["concat"]),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_array_is_cut_where_slices_overlap(monkeypatch, name):
    monkeypatch.setattr(passes, "LEAST_ELEMENTS", 0)
    slices, wanted = LARGE[name]
    assert sorted(check(sum_of(slices))) == sorted(wanted)


def test_a_large_addend_of_all_is_cut_too(monkeypatch):
    monkeypatch.setattr(passes, "LEAST_ELEMENTS", 0)
    assert sorted(check(sum_of([(1, 2, 5, 1)], more=True))) == sorted(["slice"] * 3 + ["sum", "concat"])


def test_slices_are_taken_before_ops_on_one_operand(monkeypatch):
    monkeypatch.setattr(passes, "LEAST_ELEMENTS", 0)
    w = Writer(x=SHAPE, a=(4, 6), b=(4, 6))
    w.op("m", "scale", "a", scale=3.0)
    w.op("n", "neg", "m")
    w.op("p", "slice_into", "n", "x", axes=(1,), starts=(0,), ends=(6,), steps=(1,))
    w.op("q", "slice_into", "b", "x", axes=(1,), starts=(3,), ends=(9,), steps=(1,))
    w.op("total", "sum", "p", "q")
    found = eliminate_dead(join_slices(w.block("total"))).ops
    assert [op.inputs for op in found if op.type == "slice"] == [("a",), ("a",), ("b",), ("b",)]
    check(w.block("total"))


def test_too_many_overlapping_slices_stay_in_the_sum(monkeypatch):
    monkeypatch.setattr(passes, "LEAST_ELEMENTS", 0)
    monkeypatch.setattr(passes, "MOST_TERMS", 4)
    found = check(sum_of([(1, 0, 5, 1), (1, 4, 7, 1), (1, 5, 9, 1), (1, 3, 6, 1)]))
    assert found == ["slice_into", "slice_into", "concat", "sum"]


@settings(max_examples=60, deadline=None)
@given(
    slices=st.lists(
        st.lists(st.tuples(st.integers(-3, 4), st.integers(0, 9)), min_size=1, max_size=2), min_size=1, max_size=5
    ),
    more=st.booleans(),
    most=st.sampled_from((8, 512)),
)
def test_slices_along_several_axes_keep_their_sum(slices, more, most):
    x = np.zeros(SHAPE)
    names: dict[str, tuple[int, ...]] = {"x": SHAPE, "y": SHAPE}
    attrs = []
    for i, ranges in enumerate(slices):
        axes = tuple(range(len(ranges)))
        starts, ends = zip(*ranges, strict=True)
        attrs.append({"axes": axes, "starts": starts, "ends": ends, "steps": (1,) * len(axes)})
        names[f"g{i}"] = x[tuple(slice(*each) for each in ranges)].shape
    w = Writer(**names)
    for i, each in enumerate(attrs):
        w.op(f"p{i}", "slice_into", f"g{i}", "x", **each)
    w.op("total", "sum", *(f"p{i}" for i in range(len(attrs))), *(["y"] if more else []))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "LEAST_ELEMENTS", 0)
        patch.setattr(passes, "MOST_TERMS", most)
        check(w.block("total"))


def test_a_stencil_of_two_axes_becomes_one_array(monkeypatch):
    monkeypatch.setattr(passes, "LEAST_ELEMENTS", 0)
    w = Writer(x=SHAPE, a=(2, 7), b=(2, 7), c=(2, 7))
    for name, (row, column) in {"a": (0, 1), "b": (1, 0), "c": (2, 2)}.items():
        ends = (row + 2, column + 7)
        w.op(f"p{name}", "slice_into", name, "x", axes=(0, 1), starts=(row, column), ends=ends, steps=(1, 1))
    w.op("total", "sum", "pa", "pb", "pc")
    found = check(w.block("total"))
    assert "slice_into" not in found and found[-1] == "concat"


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
    large=st.booleans(),
)
def test_any_slices_keep_their_sum(slices, more, large):
    with pytest.MonkeyPatch.context() as patch:
        if large:
            patch.setattr(passes, "LEAST_ELEMENTS", 0)
        check(sum_of(slices, more))
