"""Sums over paths, in logarithms, for the losses of sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, op
from core.ops.control.array_joins import array_unstack
from core.ops.control.loop import loop
from core.ops.elementwise.logic import where
from core.ops.indexing.gather import check_index
from core.ops.shape.creation import full_like

__all__ = ["check_counts", "counts_within", "masked", "over_steps"]


def over_steps(step: Callable[..., Any], state: Any, captured: Sequence[Any], elements: Sequence[Any]) -> Any:
    """The last state of ``step(state, captured, elements at t)``, for t over the first axis of each element.

    The step is the body of a `loop`, so it has gradients of any order.
    """
    b = BlockBuilder()
    inner = b.param(state.type)
    fixed = [b.param(v.type) for v in captured]
    now = [b.param(TensorType(v.shape[1:], v.dtype)) for v in elements]
    body = b.build([step(inner, fixed, now)])
    stacks = [array_unstack(v) for v in elements]
    options = {"sub_block": body, "carried": 1, "captured": len(captured), "condition": False}
    return loop(state, *captured, *stacks, **options)


def masked(condition, x):
    """x where `condition` is true, else -inf, which stands for no path."""
    return where(condition, x, full_like(x, value=-math.inf))


def check_counts(counts: TensorType, batch: int, what: str) -> None:
    """Raises ProgramError unless `counts` has one integer for each sequence."""
    check_index(counts, what)
    if counts.rank != 1 or (counts.shape[0] != batch and -1 not in (counts.shape[0], batch)):
        raise ProgramError(f"{what} must be one number for each of {batch} sequences, not {counts}", "shape_mismatch")


def counts_within(xp: Any, counts: Any, batch: int, most: int, what: str) -> Any:
    """`counts`. Raises ExecutionError (shape_mismatch) unless it has one number from 0 to `most` for each sequence."""
    if counts.shape != (batch,):
        raise ExecutionError(f"there are {counts.shape[0]} {what} for {batch} sequences", "shape_mismatch")
    if counts.size and bool(((counts < 0) | (counts > most)).any()):
        raise ExecutionError(f"{what} must be from 0 to {most}", "shape_mismatch")
    return counts


@op(no_gradient="its result is bool")
def steps_within(xp, x, lengths=None):
    """``out[i, t] = t < lengths[i]``: whether sequence i has step t, bool [n, time] for x [n, time, ...].

    Without `lengths` all are true. Only the shape of x matters.
    """
    batch, time = x.shape[:2]
    if lengths is None:
        return xp.ones((batch, time), bool)
    return xp.arange(time)[None, :] < counts_within(xp, lengths, batch, time, "lengths")[:, None]


@steps_within.infer
def steps_within_infer(x, lengths):
    if x.rank < 2:
        raise ProgramError(f"sequences must be [n, time, ...], not {x}", "shape_mismatch")
    if lengths is not None:
        check_counts(lengths, x.shape[0], "lengths")
    return TensorType(x.shape[:2], "bool")


steps_within.example(
    lambda: [
        Example((np.zeros((2, 3, 4)), np.array([1, 3])), (np.array([[True, False, False], [True, True, True]]),)),
        Example((np.zeros((1, 2)),), (np.array([[True, True]]),)),
    ]
)
