"""Types of reductions and running totals."""

from __future__ import annotations

from typing import Any

from backpass_client.builder.inference.rules import rule
from backpass_client.builder.inference.sizes import as_axes, as_axis, broadcast, floats, integers, without
from backpass_client.builder.types import InvalidOp, Type

__all__: list[str] = []


@rule("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "norm")
def reduced(x: Type, axes: list[int] | None, keepdims: bool, **attrs: Any) -> Type:
    return Type(x.kind, without(x.dims, as_axes(axes, x.rank), keepdims))


@rule("reduce_mean", "logsumexp", "frobenius_norm", "std", "var")
def reduced_floats(x: Type, axes: list[int] | None, keepdims: bool, **attrs: Any) -> Type:
    floats(x)
    return Type(x.kind, without(x.dims, as_axes(axes, x.rank), keepdims))


@rule("reduce_all", "reduce_any")
def reduced_bools(x: Type, axes: list[int] | None, keepdims: bool, **attrs: Any) -> Type:
    if x.dtype not in ("bool", None):
        raise InvalidOp(f"needs bool operands, not {x}")
    return Type("bool", without(x.dims, as_axes(axes, x.rank), keepdims))


@rule("l1_norm", "squared_l2_norm")
def number(x: Type, **attrs: Any) -> Type:
    return Type(x.dtype, ())


@rule("mean")
def to_one_number(x: Type, **attrs: Any) -> Type:
    floats(x)
    return Type(x.dtype, ())


@rule("argmax", "argmin")
def position(x: Type, axis: int, keepdims: bool, **attrs: Any) -> Type:
    return Type("int64", without(x.dims, (as_axis(axis, x.rank),), keepdims))


@rule("sum")
def sum_(x: list[Type], **attrs: Any) -> Type:
    return broadcast(*x)


@rule("cumsum", "cumprod", "shift")
def along(x: Type, axis: int, **attrs: Any) -> Type:
    as_axis(axis, x.rank)
    return x


@rule("cummax", "cummin", "sort")
def along_with_positions(x: Type, axis: int, **attrs: Any) -> tuple[Type, Type]:
    as_axis(axis, x.rank)
    return x, Type("int64", x.dims)


@rule("running_argmax", "argsort")
def running_position(x: Type, axis: int, **attrs: Any) -> Type:
    as_axis(axis, x.rank)
    return Type("int64", x.dims)


@rule("linear_scan")
def linear_scan(a: Type, b: Type, begins: Type | None, axis: int, **attrs: Any) -> Type:
    both = broadcast(a, b)
    as_axis(axis, both.rank)
    if begins is not None and begins.dtype not in ("bool", None):
        raise InvalidOp(f"begins must be bool, not {begins}")
    return both


@rule("quantile", "nanquantile")
def quantile(x: Type, q: list[float], axis: int | None, keepdims: bool, **attrs: Any) -> Type:
    floats(x)
    axes = None if axis is None else [axis]
    return Type(x.kind, (len(q), *without(x.dims, as_axes(axes, x.rank), keepdims)))


@rule("segment_sum", "segment_mean", "segment_max", "segment_min", "segment_prod")
def segments(x: Type, ids: Type, like: Type | None, num_segments: int, **attrs: Any) -> Type:
    integers(ids)
    first = like.dims[0] if like is not None else None if num_segments < 0 else num_segments
    return Type(x.kind, (first, *x.dims[1:]))
