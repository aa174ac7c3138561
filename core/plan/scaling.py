"""Ops on all gradients of a step: clipping by their norm, checks, and the division by the loss scale."""

from __future__ import annotations

import numpy as np

from core.ir import Op
from core.ops.common.types import as_dtype
from core.plan.compose import Maker
from core.plan.entries import Entry, Uniform
from core.plan.lowering import Lowering, lowers
from core.plan.shapes import reshaped

__all__: list[str] = []


@lowers("check_finite")
def lower_check_finite(low: Lowering, op: Op) -> None:
    of, x = Maker(low), low.entry(op.inputs[0])
    of.check(of("isfinite", x), "not_finite", "a value is not finite", op.location)
    low.define(op.outputs[0], x)


@lowers("clip_by_global_norm")
def lower_clip(low: Lowering, op: Op) -> None:
    """The norm is computed in float64, as the reference does."""
    of, limit = Maker(low), Uniform(op.attrs["max_norm"], "float64", ())
    total: Entry = of.number(0.0)
    for name in op.inputs:
        low.type(name)
        total = of.add(total, _whole(of, "sum", of("square", of.cast(low.entry(name), "float64"))))
    norm = of("sqrt", total)
    factor = of.where(of("isfinite", norm), of("div", limit, of("maximum", norm, limit)), of.number(1.0))
    for name, out in zip(op.inputs, op.outputs, strict=True):
        x = low.entry(name)
        low.define(out, of.cast(of.mul(of.cast(x, "float64"), factor), x.dtype))


@lowers("unscale")
def lower_unscale(low: Lowering, op: Op) -> None:
    of = Maker(low)
    scale = reshaped(low, low.entry(op.inputs[0]), ())
    finite: Entry = Uniform(True, "bool", ())
    for name, out in zip(op.inputs[1:], op.outputs, strict=False):
        low.type(name)
        x = low.entry(name)
        finite = of("logical_and", finite, _whole(of, "and", of("isfinite", x)))
        wide = np.result_type(as_dtype(x.dtype), as_dtype(scale.dtype)).name
        low.define(out, of.cast(of("div", of.cast(x, wide), of.cast(scale, wide)), x.dtype))
    low.define(op.outputs[-1], of("logical_not", finite))


def _whole(of: Maker, kind: str, x: Entry) -> Entry:
    """`x` reduced to one number."""
    return reshaped(of.low, of.reduce(kind, x, frozenset(range(len(x.shape)))), ())
