"""Lowerings of lattices of sequences whose number, steps or labels only the run tells (`core.plan.sized`).

Labels and lengths are 0 beyond the number of sequences, which is right for any lattice.
"""

from __future__ import annotations

from core.ir import HOLE, Op
from core.plan.compose import Maker
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import sizes_of, with_equal
from core.plan.sized import new_size, rule, run, set_sizes
from core.plan.sizes import Size
from core.plan.unsupported import Unsupported

__all__: list[str] = []

OPERANDS = {
    "ctc_lattice": ("nl", "n", "n", "tn"),
    "crf_moves": ("nt", "nt", "n"),
    "crf_decoding": ("nt", "", "n"),
    "steps_within": ("nt", "n"),
}
"""Op -> the first axes of each operand: n sequences, t steps, l labels."""

RESULTS = {
    "ctc_lattice": ("tns", "s", "ns", "tn", "ns", "ns"),
    "crf_moves": ("nt", "nm", "nm"),
    "crf_decoding": ("nt",),
    "steps_within": ("nt",),
}
"""Op -> the first axes of each result: also s states and m moves."""

FOLLOWING = {"s": ("l", 2), "m": ("t", 1)}
"""Axis -> the axis of an operand whose size it follows, and a factor: it has one element more than the product."""


@rule(*OPERANDS)
def _of_sequences(low: Lowering, op: Op) -> None:
    axes, sizes = OPERANDS[op.type], dict[str, Size]()
    for c in dict.fromkeys("".join(axes)):
        first, *others = ((i, own.index(c)) for i, own in _given(op, axes) if c in own)
        for other in others * 2:  # the last one may tell a smaller size for all
            op = with_equal(low, op, first, other)
        size = sizes_of(low, op.inputs[first[0]]).get(first[1])
        if size is not None:
            sizes[c] = size
    if any(axis >= len(own) for i, own in _given(op, axes) for axis in sizes_of(low, op.inputs[i])):
        raise Unsupported("sequences with classes whose number only the run tells")
    for c, (of, factor) in FOLLOWING.items():
        if of in sizes and any(c in own for own in RESULTS[op.type]):
            sizes[c] = _one_more(low, sizes[of], factor)
    set_sizes(low, op, [{i: sizes[c] for i, c in enumerate(own) if c in sizes} for own in RESULTS[op.type]])
    run(low, op)


def _given(op: Op, axes: tuple[str, ...]) -> list[tuple[int, str]]:
    """The positions of the operands that are given, and their axes."""
    return [(i, own) for i, own in enumerate(axes[: len(op.inputs)]) if op.inputs[i] != HOLE]


def _one_more(low: Lowering, size: Size, factor: int) -> Size:
    of, found = Maker(low), new_size(low, factor * size.bound + 1)
    low.copy(of.add(of.mul(size.length, of.integer(factor)), of.integer(1)), found.length)
    return found
