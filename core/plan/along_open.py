"""Running results and sorting along an axis whose size only the run tells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from core.ir import HOLE, Op, TensorType
from core.ops.common.types import as_dtype
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import Incomparable
from core.plan.sized import of_known_sizes, rule, set_sizes, under, whole
from core.plan.sized import run as run_known
from core.plan.sized_shapes import along_known

__all__: list[str] = []

NEUTRAL = {"cumsum": 0.0, "cumprod": 1.0, "linear_scan": 0.0, "logcumsumexp": -math.inf, "shift": 0.0}


@rule("argsort", *NEUTRAL)
def _along(low: Lowering, op: Op) -> None:
    """Fill the positions beyond the length with a neutral value, or for `argsort` with one that sorts last."""
    x = op.inputs[0]
    own, type = low.sizes.get(x, {}), low.type(x)
    axis = op.attrs["axis"] % max(type.rank, 1)
    arrays, begins = op.inputs[:2], [n for n in op.inputs[2:] if n != HOLE]
    if axis not in own:
        of_known_sizes(low, op, begins)
        along_known(low, op)
        return
    sizes = [*(low.sizes.get(n, {}) == own for n in arrays), *(low.sizes.get(n) == {0: own[axis]} for n in begins)]
    if not all(sizes):
        raise Incomparable
    set_sizes(low, op, [dict(own)])
    fill: Any = _last(type, op.attrs["descending"]) if op.type == "argsort" else NEUTRAL[op.type]
    entries = {n: whole(low, n, fill, frozenset({axis})) for n in arrays}
    run_known(low, under(low, op, entries | {n: whole(low, n, False) for n in begins}))


def _last(type: TensorType, descending: bool) -> Any:
    """The value that comes last in order, behind equal ones that stand before it."""
    dtype = as_dtype(type.dtype)
    if type.dtype == "bool":
        return not descending
    if not type.is_float:
        return np.iinfo(dtype).min if descending else np.iinfo(dtype).max
    return -np.inf if descending else np.nan


@rule("is_last")
def _is_last(low: Lowering, op: Op) -> None:
    """Fill the positions beyond the length with a number that no index has."""
    x = op.inputs[0]
    set_sizes(low, op, [dict(low.sizes.get(x, {}))])
    run_known(low, under(low, op, {x: whole(low, x, np.iinfo(as_dtype(low.type(x).dtype)).min)}))
