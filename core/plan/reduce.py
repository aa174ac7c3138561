"""Reductions: inside their fusion if they run along its row, else into memory."""

from __future__ import annotations

import numpy as np

from core.ir import Op, TensorType
from core.ir.precision import is_half
from core.ir.registry import lookup
from core.ops.common.types import as_dtype, fits
from core.plan.entries import Entry, Uniform
from core.plan.fusion import Member
from core.plan.halves import narrowed, wide, widened
from core.plan.lowering import Lowering, lowers
from core.plan.unsupported import Unsupported

__all__ = ["lower_reduce", "reduced", "reduced_axes"]

KINDS = {
    "reduce_sum": "sum",
    "reduce_mean": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_prod": "prod",
    "sum_to": "sum",
    "sum_to_like": "sum",
    "reduce_all": "and",
    "reduce_any": "or",
}


@lowers("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_all", "reduce_any")
def lower_reduce(low: Lowering, op: Op) -> None:
    _reduce(low, op, low.entry(op.inputs[0]), reduced_axes(low, op))


@lowers("sum_to", "sum_to_like")
def lower_sum_to(low: Lowering, op: Op) -> None:
    entry, shape = low.entry(op.inputs[0]), low.type(op.outputs[0]).shape
    if not fits(shape, entry.shape):
        raise Unsupported("a sum to sizes that do not fit")
    extra = len(entry.shape) - len(shape)
    over = {*range(extra)} | {i for i, n in enumerate(shape, start=extra) if n == 1 and entry.shape[i] != 1}
    _reduce(low, op, entry, frozenset(over))


def reduced_axes(low: Lowering, op: Op) -> frozenset[int]:
    """The axes of its operand that `op` reduces."""
    type, axes = low.types[op.inputs[0]], op.attrs["axes"]
    assert isinstance(type, TensorType)
    return frozenset(range(type.rank) if axes is None else (a % type.rank for a in axes))


def _reduce(low: Lowering, op: Op, entry: Entry, over: frozenset[int]) -> None:
    name = op.outputs[0]
    type, given = low.type(name), low.type(op.inputs[0])
    if type.dtype != given.dtype:
        raise Unsupported(f"{op.type} of {given.dtype} gives {type.dtype}")
    if isinstance(entry, Uniform):
        with np.errstate(all="ignore"):
            whole = np.broadcast_to(np.asarray(entry.number, as_dtype(entry.dtype)), entry.shape)
            like = [np.empty(type.shape)] if op.type == "sum_to_like" else []
            number = lookup(op.type).body(np, whole, *like, **op.attrs)
        low.define(name, Uniform(np.ravel(number)[0], type.dtype, type.shape))
        return
    kind = KINDS[op.type]
    count = int(np.prod([entry.shape[i] for i in over], dtype=np.int64))
    if op.type != "reduce_mean":
        low.define(name, reduced(low, kind, entry, over, type, name))
        return
    if not type.is_float:
        raise Unsupported(f"{op.type} of {type.dtype}")
    half, exact = is_half(type), wide(type)
    result = reduced(low, kind, widened(low, entry) if half else entry, over, exact)
    divisor = Uniform(np.dtype(exact.dtype).type(count), exact.dtype, ())
    result = low.apply("div", {}, [result, divisor], [exact.dtype] * 2, exact)
    low.define(name, narrowed(low, result, type) if half else result)


def reduced(
    low: Lowering, kind: str, entry: Entry, over: frozenset[int], type: TensorType, name: str | None = None
) -> Entry:
    """`entry` reduced over its axes `over`.

    type: of the result, which may lack axes of size 1.
    name: the variable of the result, whose destination is used; None if it is no variable.

    The sum of bools is true if one of them is.

    Raises Unsupported if a value that is complete up to a length only, which the run tells, must leave its fusion.
    """
    if type.dtype == "bool" and kind == "sum":
        kind = "or"
    home = entry.fusion if isinstance(entry, Member) and entry.fusion.size is not None and 0 in over else None
    if is_half(type) and kind in ("sum", "prod"):
        return narrowed(low, reduced(low, kind, widened(low, entry), over, wide(type)), type)
    if 0 in entry.shape:
        raise Unsupported("a reduction of nothing inside another op")
    fusion, axes = low.join(entry.shape, [entry])
    limited = fusion.size is not None and 0 in over
    if home is not None and fusion is not home:
        raise Unsupported("a sum of rows whose number only the run tells")
    kept = tuple(a for i, a in enumerate(axes) if i not in over)
    gone = frozenset(a for i, a in enumerate(axes) if i in over and a is not None)
    if limited and (not gone or fusion.can_reduce(gone)):  # without rows, nothing would compute it
        raise Unsupported("a sum of rows whose number only the run tells")
    inner = _spread(entry.shape, over, kept, type.shape)
    arg = low.argument(fusion, entry, entry.shape, axes)
    if not gone:
        return Member(fusion, arg, type.dtype, type.shape, inner)
    fusion.ops.append(f"reduce_{kind}")
    if fusion.can_reduce(gone, across=name is not None and _returns(low, name, entry.shape)):
        return Member(fusion, fusion.reduce(kind, arg, gone, type.dtype), type.dtype, type.shape, inner)
    view = low.destination(name) if name else low.allocate(type.shape, type.dtype)
    if not fusion.can_load(fusion.strides(view, inner)) or not fusion.covers(gone, kept):
        if limited:
            raise Unsupported("a sum of rows whose number only the run tells")
        stored = low.stored(Member(fusion, arg, type.dtype, entry.shape, axes))
        fusion = low.new_fusion(entry.shape)
        axes = tuple(range(len(entry.shape)))
        inner = _spread(entry.shape, over, tuple(a for a in axes if a not in over), type.shape)
        gone = over
        arg = fusion.load(stored, axes)
    fusion.accumulate(kind, arg, view, inner, gone)
    low.instructions.written(view.root, fusion.position)
    return view


def _returns(low: Lowering, name: str, shape: tuple[int, ...]) -> bool:
    """Whether an elementwise op combines the variable, a reduction of an array of `shape`, with such an array again."""
    readers = [each for each in low.uses.readers(name) if each is not None and lookup(each.type).elementwise]
    types = [low.types[each.outputs[0]] for each in readers]
    return any(isinstance(type, TensorType) and type.shape == shape for type in types)


def _spread(
    shape: tuple[int, ...], over: frozenset[int], kept: tuple[int | None, ...], result: tuple[int, ...]
) -> tuple[int | None, ...]:
    """The domain's axis for each axis of `result`. Reduced axes have size 1 there, or are missing."""
    rest = iter([a for a, n in zip(kept, (n for i, n in enumerate(shape) if i not in over), strict=True) if n != 1])
    return tuple(None if n == 1 else next(rest) for n in result)
