"""Ops along an axis whose elements depend on their order: running results, sorting."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from core.ir import HOLE, Op, TensorType
from core.ops.indexing.gather import cut
from core.plan.compose import Maker
from core.plan.draws import drawn
from core.plan.geometry import Order, Scan
from core.plan.instructions import Kernel
from core.plan.lowering import Lowering, lowers
from core.plan.memory import View
from core.plan.slabs import as_slabs

__all__ = ["order_of"]


@lowers("cumsum", "cumprod")
def lower_cumulative(low: Lowering, op: Op) -> None:
    _scan(low, op, op.type.removeprefix("cum"), exclusive=op.attrs["exclusive"], reverse=op.attrs["reverse"])


@lowers("linear_scan")
def lower_linear_scan(low: Lowering, op: Op) -> None:
    _scan(low, op, "linear", reverse=op.attrs["reverse"])


@lowers("logcumsumexp")
def lower_logcumsumexp(low: Lowering, op: Op) -> None:
    _scan(low, op, "logsum")


@lowers("running_argmax")
def lower_running_argmax(low: Lowering, op: Op) -> None:
    _scan(low, op, f"arg{op.attrs['sign']}")


def _scan(low: Lowering, op: Op, kind: Any, **how: bool) -> None:
    low.no_halves(op)
    given = [low.dense(low.entry(n)) for n in op.inputs if n != HOLE]
    outer, size, inner = as_slabs(given[0].shape, op.attrs["axis"])
    out = low.destination(op.outputs[0])
    spec = Scan(kind, given[0].dtype, outer, size, inner, restarts=len(given) > 2, **how)
    name = "scan" if kind != "linear" else "restarted_recurrence" if spec.restarts else "recurrence"
    low.add(Kernel(name, spec, (*given, out), location=op.location))
    low.define(op.outputs[0], out)


@lowers("argsort")
def lower_argsort(low: Lowering, op: Op) -> None:
    low.no_halves(op)
    x, axis = low.dense(low.entry(op.inputs[0])), op.attrs["axis"]
    first, end = _wanted(low, op)
    spec = Order(x.dtype, *as_slabs(x.shape, axis), op.attrs["descending"], first=first, end=end)
    if end is None:
        _order(low, op, x, spec)
        return
    at = axis % len(x.shape)
    out = low.allocate((*x.shape[:at], spec.wanted, *x.shape[at + 1 :]), "int64")
    low.add(Kernel("order", spec, (x, out), location=op.location))
    # all positions of the row, of which nothing reads those outside the memory
    low.define(op.outputs[0], replace(out, shape=x.shape, offset=out.offset - first * out.strides[at]))


def _wanted(low: Lowering, op: Op) -> tuple[int, int | None]:
    """The range of the positions of an order that are read, if only slices of a part of them are."""
    type = low.block.types[op.outputs[0]]
    if not isinstance(type, TensorType) or not type.is_static or not type.rank:
        return 0, None
    axis, wanted = op.attrs["axis"] % type.rank, set[int]()
    for reader in low.uses.readers(op.outputs[0]):
        parts = dict(cut(type.rank, **reader.attrs)) if reader is not None and reader.type == "slice" else {}
        if axis not in parts:
            return 0, None
        places = range(type.shape[axis])[parts[axis]]
        wanted |= {*places[:1], *places[-1:]}
    if not wanted or max(wanted) - min(wanted) + 1 == type.shape[axis]:
        return 0, None
    return min(wanted), max(wanted) + 1


@lowers("randperm")
def lower_randperm(low: Lowering, op: Op) -> None:
    type = low.type(op.outputs[0])
    x = low.dense(drawn(low, op, type.shape, "float64"))
    if type.dtype == "int64":
        _order(low, op, x, Order(x.dtype, 1, type.shape[0], 1))
        return
    low.define(op.outputs[0], Maker(low).cast(order_of(low, op, x), type.dtype))


@lowers("is_last")
def lower_is_last(low: Lowering, op: Op) -> None:
    x = low.dense(low.entry(op.inputs[0]))
    _order(low, op, x, Order(x.dtype, 1, math.prod(x.shape), 1, last=True))


def order_of(low: Lowering, op: Op, x: View) -> View:
    """The positions of the elements along the last axis in ascending order; equal ones keep theirs."""
    out = low.allocate(x.shape, "int64")
    low.add(Kernel("order", Order(x.dtype, *as_slabs(x.shape, -1)), (x, out), location=op.location))
    return out


def _order(low: Lowering, op: Op, x: View, spec: Order) -> None:
    out = low.destination(op.outputs[0])
    low.add(Kernel("order", spec, (x, out), location=op.location))
    low.define(op.outputs[0], out)
