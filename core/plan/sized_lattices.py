"""Lowerings of lattices of sequences whose number only the run tells (`core.plan.sized`).

Labels and lengths are 0 beyond the number of sequences, which is right for any lattice. The number of steps is known.
"""

from __future__ import annotations

from core.ir import HOLE, Op
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import sizes_of, with_equal
from core.plan.sized import rule, run, set_sizes
from core.plan.unsupported import Unsupported

__all__: list[str] = []

PER_SEQUENCE = {
    "ctc_lattice": (1, None, 0, 1, 0, 0),
    "crf_moves": (0, 0, 0),
    "crf_decoding": (0,),
    "steps_within": (0,),
}
"""Op -> the axis of each result that counts the sequences; None for one that all share."""

SCORES = {"ctc_lattice": (3, 1), "crf_moves": (1, 0), "crf_decoding": (0, 0), "steps_within": (0, 0)}
"""Op -> the operand with the scores, and its axis that counts the sequences."""

SHARED = {"crf_decoding": (1,)}
"""Op -> the operands without such an axis."""


@rule(*PER_SEQUENCE)
def _of_each_sequence(low: Lowering, op: Op) -> None:
    scores = SCORES[op.type]
    for i, name in enumerate(op.inputs):
        if name != HOLE and i != scores[0] and i not in SHARED.get(op.type, ()):
            op = with_equal(low, op, scores, (i, 0))
    operand, axis = scores
    for i, name in enumerate(op.inputs):
        if name != HOLE and sizes_of(low, name).keys() - {axis if i == operand else 0}:
            raise Unsupported("sequences whose number of steps only the run tells")
    size = sizes_of(low, op.inputs[operand]).get(axis)
    set_sizes(low, op, [{at: size} if size is not None and at is not None else {} for at in PER_SEQUENCE[op.type]])
    run(low, op)
