"""Activations, softmax and related ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.beside_torch.installed import F, torch
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def channelled(alpha: Any, x: Any, mode: str) -> Any:
    """prelu's alpha, shaped to broadcast against x."""
    if mode == "channel":
        return alpha.reshape(-1, *[1] * (x.ndim - 2))
    return alpha.reshape(()) if mode == "all" else alpha


def softplus(x: Any, beta: float, threshold: float | None) -> Any:
    return F.softplus(x, beta, 20 * 30 if threshold is None else threshold)


def maxout(x: Any, groups: int, axis: int) -> Any:
    axis %= x.ndim
    return torch.amax(x.unflatten(axis, (-1, groups)), axis + 1)


UNARY: dict[str, Callable[..., Any]] = {
    "celu": lambda x, alpha: F.celu(x, alpha),
    "elu": lambda x, alpha: F.elu(x, alpha),
    "gelu": lambda x, approximate: F.gelu(x, approximate="tanh" if approximate else "none"),
    "hard_shrink": lambda x, threshold: F.hardshrink(x, threshold),
    "hard_sigmoid": lambda x, slope, offset: F.hardtanh(slope * x + offset, 0, 1),  # hardsigmoid's 1/6 is a float32
    "hard_swish": lambda x, threshold, scale, offset: (
        F.hardswish(x)
        if (threshold, scale, offset) == (6, 6, 3)
        else x * F.hardtanh(x + offset, 0.0, threshold) / scale
    ),
    "hard_tanh": lambda x, min, max: F.hardtanh(x, min, max),
    "leaky_relu": lambda x, alpha: F.leaky_relu(x, alpha),
    "logsigmoid": lambda x: F.logsigmoid(x),
    "mish": lambda x: F.mish(x),
    "relu": lambda x: F.relu(x),
    "relu6": lambda x: F.relu6(x),
    "selu": lambda x: F.selu(x),
    "shrink": lambda x, threshold, bias: torch.where(
        x < -threshold, x + bias, torch.where(x > threshold, x - bias, torch.zeros_like(x))
    ),
    "silu": lambda x: F.silu(x),
    "softplus": softplus,
    "softshrink": lambda x, alpha: F.softshrink(x, alpha),
    "softsign": lambda x: F.softsign(x),
    "swish": lambda x, beta: x * torch.sigmoid(beta * x),
    "tanh_shrink": lambda x: F.tanhshrink(x),
    "thresholded_relu": lambda x, threshold: F.threshold(x, threshold, 0.0),
}

ALONG: dict[str, Callable[..., Any]] = {
    "log_softmax": lambda x, axis: F.log_softmax(x, axis),
    "softmax": lambda x, axis: F.softmax(x, axis),
    "softmin": lambda x, axis: F.softmin(x, axis),
}

OPS: dict[str, Callable[..., Any]] = {
    **UNARY,
    **ALONG,
    "glu": lambda x, axis: F.glu(x, axis),
    "maxout": maxout,
    "prelu": lambda x, alpha, mode: (
        torch.where(x > 0, x, x * channelled(alpha, x, mode))
        if mode == "element" or (x.ndim < 2 and alpha.numel() > 1)
        else F.prelu(x, alpha.reshape(-1))
    ),
}

WIDE = (-9.0, 9.0)

MORE: dict[str, list[Inputs]] = {
    name: [case((2, 3, 4), span=(-3, 3)), case((40,), span=WIDE), case((), span=WIDE), case((0, 3))] for name in UNARY
}
MORE |= {
    name: [case((2, 3, 4), axis=axis, span=WIDE) for axis in (0, 1, 2, -2)] + [case((3,)), case((1, 3), axis=0)]
    for name in ALONG
}
MORE["celu"] += [case((9,), alpha=a, span=WIDE) for a in (0.5, 3.0)]
MORE["elu"] += [case((9,), alpha=a, span=WIDE) for a in (1.0, 2.5)]
MORE["gelu"] += [case((40,), approximate=True, span=WIDE)]
MORE["hard_sigmoid"] += [case((40,), slope=0.2, offset=0.4, span=WIDE)]
MORE["hard_swish"] += [case((40,), threshold=4.0, scale=5.0, offset=2.0, span=WIDE)]
MORE["hard_tanh"] += [case((40,), min=-0.3, max=2.2, span=WIDE)]
MORE["leaky_relu"] += [case((9,), alpha=a, span=WIDE) for a in (0.3, 1.0, -0.5)]
MORE["softplus"] += [case((40,), beta=b, threshold=t, span=WIDE) for b in (0.5, 2.0) for t in (None, 3.0, 20.0)]
MORE["softshrink"] += [case((40,), alpha=2.0, span=WIDE)]
MORE["hard_shrink"] += [case((40,), threshold=2.0, span=WIDE)]
MORE["shrink"] += [case((40,), threshold=2.0, bias=0.5, span=WIDE)]
MORE["thresholded_relu"] += [case((40,), threshold=t, span=WIDE) for t in (0.5, -2.0)]
MORE["swish"] += [case((40,), beta=b, span=WIDE) for b in (1.0, -0.7)]
MORE["glu"] = [case((2, 6, 4), axis=axis) for axis in (0, 1, 2)] + [case((4,))]
MORE["maxout"] = [case((2, 6, 4), groups=g, axis=1) for g in (1, 2, 3, 6)] + [case((4, 3), groups=2, axis=-2)]
MORE["prelu"] = [
    case((2, 3, 4), (1,)),
    case((2, 3, 4), ()),
    case((2, 3, 4), (3,), mode="channel"),
    case((2, 3, 4, 2), (3,), mode="channel"),
    case((2, 3, 4), (3, 4), mode="element"),
]
