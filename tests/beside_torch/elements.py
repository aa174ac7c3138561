"""Elementwise ops."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from tests.beside_torch.installed import F, torch
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def straight(rounded: Callable[[Any], Any]) -> Callable[..., Any]:
    """A step function: its gradient is 0, or that of x (straight-through)."""
    return lambda x, straight_through: x + (rounded(x) - x).detach() if straight_through else rounded(x)


def aligned(f: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """`f` with the axes of y aligned to those of x from `axis` on."""

    def at_axis(x: Any, y: Any, axis: int | None) -> Any:
        if axis is None or axis == -1:
            return f(x, y)
        return f(x, y.reshape(*y.shape, *[1] * (x.ndim - axis - y.ndim)))

    return at_axis


def floor_div(x: Any, y: Any) -> Any:
    return torch.div(x, y, rounding_mode="floor")


BINARY: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: torch.add(x, y),
    "atan2": lambda x, y: torch.atan2(x, y),
    "div": lambda x, y: torch.div(x, y),
    "floor_div": floor_div,
    "fmod": lambda x, y: torch.fmod(x, y),
    "grad_add": lambda x, y: torch.add(x, y),
    "hypot": lambda x, y: torch.hypot(x, y),
    "logaddexp": lambda x, y: torch.logaddexp(x, y),
    "maximum": lambda x, y: torch.maximum(x, y),
    "minimum": lambda x, y: torch.minimum(x, y),
    "mod": lambda x, y: torch.remainder(x, y),
    "mul": lambda x, y: torch.mul(x, y),
    "pow": lambda x, y: torch.pow(x, y),
    "square_error_cost": lambda x, label: F.mse_loss(*torch.broadcast_tensors(x, label), reduction="none"),
    "sub": lambda x, y: torch.sub(x, y),
    "xlogy": lambda x, y: torch.xlogy(x, y),
}

UNARY: dict[str, Callable[..., Any]] = {
    "abs": lambda x: torch.abs(x),
    "acos": lambda x: torch.acos(x),
    "acosh": lambda x: torch.acosh(x),
    "asin": lambda x: torch.asin(x),
    "asinh": lambda x: torch.asinh(x),
    "assign": lambda x: x.clone(),
    "atan": lambda x: torch.atan(x),
    "atanh": lambda x: torch.atanh(x),
    "cast": lambda x, dtype: x.to(getattr(torch, dtype)),
    "ceil": straight(lambda x: torch.ceil(x)),
    "check_finite": lambda x: x.clone(),
    "check_shape": lambda x, like=None, *, shape, axes: x.clone(),
    "clip": lambda x, min, max: torch.clamp(x, min, max),
    "cos": lambda x: torch.cos(x),
    "cosh": lambda x: torch.cosh(x),
    "digamma": lambda x: torch.digamma(x),
    "erf": lambda x: torch.erf(x),
    "erfc": lambda x: torch.erfc(x),
    "erfinv": lambda x: torch.erfinv(x),
    "exp": lambda x: torch.exp(x),
    "expm1": lambda x: torch.expm1(x),
    "floor": straight(lambda x: torch.floor(x)),
    "increment": lambda x, step: (x + step).to(x.dtype),
    "lgamma": lambda x: torch.lgamma(x),
    "log": lambda x: torch.log(x),
    "log10": lambda x: torch.log10(x),
    "log1p": lambda x: torch.log1p(x),
    "log2": lambda x: torch.log2(x),
    "neg": lambda x: torch.neg(x),
    "polygamma": lambda x, order: torch.polygamma(order, x),
    "reciprocal": lambda x: torch.reciprocal(x),
    "round": straight(lambda x: torch.round(x)),
    "rsqrt": lambda x: torch.rsqrt(x),
    "scale": lambda x, scale, bias: x * scale + bias,
    "sigmoid": lambda x: torch.sigmoid(x),
    "sign": straight(lambda x: torch.sign(x)),
    "sin": lambda x: torch.sin(x),
    "sinh": lambda x: torch.sinh(x),
    "sqrt": lambda x: torch.sqrt(x),
    "square": lambda x: torch.square(x),
    "tan": lambda x: torch.tan(x),
    "tanh": lambda x: torch.tanh(x),
    "trunc": straight(lambda x: torch.trunc(x)),
}

OPS: dict[str, Callable[..., Any]] = {
    **BINARY,
    **UNARY,
    "assert": lambda x, condition: x.clone(),
    "barrier": lambda *x: tuple(each.clone() for each in x),
    "elementwise_add": aligned(lambda x, y: torch.add(x, y)),
    "elementwise_div": aligned(lambda x, y: torch.div(x, y)),
    "elementwise_floordiv": aligned(floor_div),
    "elementwise_max": aligned(lambda x, y: torch.maximum(x, y)),
    "elementwise_min": aligned(lambda x, y: torch.minimum(x, y)),
    "elementwise_mod": aligned(lambda x, y: torch.remainder(x, y)),
    "elementwise_mul": aligned(lambda x, y: torch.mul(x, y)),
    "elementwise_pow": aligned(lambda x, y: torch.pow(x, y)),
    "elementwise_sub": aligned(lambda x, y: torch.sub(x, y)),
    "lerp": lambda x, y, weight: torch.lerp(*torch.broadcast_tensors(x, y, weight)),
    "mask_gradient": lambda condition, x: torch.where(condition, x, x.detach()),
    "print": lambda x: x.clone(),
    "sum": lambda *x: reduce(torch.add, x),
    "where": lambda condition, x, y: torch.where(condition, x, y),
}

MORE: dict[str, list[Inputs]] = {
    **{
        name: [case((2, 3, 4)), case((9,)), case(()), case((0, 3)), case((2, 1, 5))]
        for name in UNARY
        if name not in ("cast", "check_shape")
    },
    **{
        name: [case((2, 3), (2, 3)), case((3, 1), (1, 4)), case((), (2,)), case((2, 1, 3), (4, 1)), case((0, 3), (3,))]
        for name in BINARY
    },
    "cast": [case((2, 3), dtype="float64"), case((), dtype="float32"), case((2, 2), dtype="int64")],
    "check_shape": [case((2, 3), shape=(2, -1)), case((2, 3), (3, 4), shape=(-1, 3), axes=(1, 0))],
    "clip": [case((2, 3, 4)), case((5,), min=0.25), case((5,), max=0.25), case((7,), min=-0.5, max=0.5)],
    "lerp": [case((2, 3), (2, 3), (2, 3)), case((3, 1), (4,), ())],
    "polygamma": [case((2, 3), order=n) for n in (0, 1, 2, 3, 4)],
    "scale": [case((2, 3), scale=-0.5, bias=2.0), case((), scale=0.0)],
    "sum": [case((2, 3)), case((2, 3), (2, 1), (3,), ()), case((4,), (4,))],
    **{
        f"elementwise_{name}": [
            case((2, 3, 4, 5), (3, 4), axis=1),
            case((2, 3, 4), (2,), axis=0),
            case((2, 3), (2, 3), axis=0),
            case((2, 3, 4), (4,)),
            case((2, 3, 4), (3, 1), axis=-1),
        ]
        for name in ("add", "div", "floordiv", "max", "min", "mod", "mul", "pow", "sub")
    },
}
