"""Types of elementwise ops whose dtype is not that of their operands, and of ops that keep the type of x."""

from __future__ import annotations

from typing import Any

from backpass_client.builder.inference.rules import rule
from backpass_client.builder.inference.sizes import (
    as_axis,
    broadcast,
    broadcast_sizes,
    changed,
    floats,
    integers,
    same_dtype,
)
from backpass_client.builder.types import INTEGERS, InvalidOp, Type, check_fits

__all__: list[str] = []


@rule("equal", "not_equal", "less_than", "less_equal", "greater_than", "greater_equal")
def comparison(x: Type, y: Type, axis: int | None = None, **attrs: Any) -> Type:
    return Type("bool", broadcast(x, y, axis=axis).shape)


@rule("logical_and", "logical_or", "logical_xor", "logical_not")
def logic(*types: Type, axis: int | None = None, **attrs: Any) -> Type:
    for each in types:
        if each.dtype not in ("bool", None):
            raise InvalidOp(f"needs bool operands, not {each}")
    return broadcast(*types, axis=axis)


@rule("isnan", "isinf", "isfinite")
def classified(x: Type, **attrs: Any) -> Type:
    return Type("bool", x.dims)


@rule("where")
def where(condition: Type, x: Type, y: Type, **attrs: Any) -> Type:
    if condition.dtype not in ("bool", None):
        raise InvalidOp(f"the condition must be bool, not {condition}")
    return Type(same_dtype(x, y), broadcast_sizes(condition.dims, x.dims, y.dims))


@rule("mask_gradient")
def mask_gradient(mask: Type, x: Type, **attrs: Any) -> Type:
    return Type(x.kind, broadcast_sizes(mask.dims, x.dims))


@rule("cast")
def cast(x: Type, dtype: str, **attrs: Any) -> Type:
    return Type(dtype, x.shape)


@rule("div", "pow", "atan2", "hypot")
def of_floats(x: Type, y: Type, axis: int | None = None, **attrs: Any) -> Type:
    floats(x, y)
    return broadcast(x, y, axis=axis)


@rule("lerp")
def lerp(x: Type, y: Type, weight: Type, **attrs: Any) -> Type:
    floats(x)
    return broadcast(x, y, weight)


@rule("bitcast")
def bitcast(x: Type, dtype: str, **attrs: Any) -> Type:
    return Type(dtype, x.dims)


@rule("hardmax", "shrink", "lp_normalize")
def kept_with_axis(x: Type, axis: int = 0, **attrs: Any) -> Type:
    as_axis(axis, max(x.rank, 1))
    return x


@rule("scale")
def scale(x: Type, scale: float, bias: float, **attrs: Any) -> Type:
    if x.dtype == "bool":
        raise InvalidOp("needs numbers; bp.cast(x, dtype=...) converts")
    if x.dtype in INTEGERS and (scale % 1 or bias % 1):
        raise InvalidOp(f"the factor {scale} and the term {bias} must be whole numbers for {x}; bp.cast converts x")
    if x.dtype is not None:
        check_fits([scale, bias], x.dtype)
    return x


@rule("increment", "neg", "abs", "square", "clip", "assign", "stop_gradient", "sign", "relu6")
def kept(x: Type, **attrs: Any) -> Type:
    return x


@rule(
    "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "asinh", "acosh", "atanh", "tanh", "sigmoid", "erf", "erfc", "erfinv", "lgamma", "digamma", "log2", "log10",
    "reciprocal", "logsigmoid", "softplus", "leaky_relu", "elu", "selu", "celu", "mish", "swish",
    "softsign", "softshrink", "hard_shrink", "tanh_shrink", "hard_sigmoid", "hard_swish", "hard_tanh",
    "thresholded_relu", "softmin", "gelu", "silu", "softmax", "log_softmax", "logcumsumexp",
)  # fmt: skip
def kept_floats(x: Type, axis: int | None = None, **attrs: Any) -> Type:
    floats(x)
    if axis is not None and x.shape is not None:
        as_axis(axis, max(x.rank, 1))
    return x


@rule("prelu")
def prelu(x: Type, alpha: Type, **attrs: Any) -> Type:
    floats(x, alpha)
    same_dtype(x, alpha)
    return x


@rule("barrier")
def barrier(x: list[Type], **attrs: Any) -> list[Type]:
    return x


@rule(
    "elementwise_add", "elementwise_sub", "elementwise_mul", "elementwise_div", "elementwise_max", "elementwise_min",
    "elementwise_mod", "elementwise_pow", "elementwise_floordiv",
)  # fmt: skip
def aligned(x: Type, y: Type, axis: int | None, **attrs: Any) -> Type:
    return broadcast(x, y, axis=axis)


@rule("glu", "maxout")
def divided_axis(x: Type, axis: int, groups: int = 2, **attrs: Any) -> Type:
    at = as_axis(axis, x.rank)
    sizes = list(x.dims)
    n = sizes[at]
    if isinstance(n, int) and n % groups:
        raise InvalidOp(f"axis {axis} of size {n} cannot be divided by {groups}")
    sizes[at] = changed(n, lambda size: size // groups)
    return Type(x.dtype, tuple(sizes))


@rule("bitwise_not")
def inverted(x: Type, **attrs: Any) -> Type:
    if x.dtype != "bool":
        integers(x)
    return x
