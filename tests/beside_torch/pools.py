"""Pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.beside_torch.installed import F, torch
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def each(values: Any, n: int) -> tuple[int, ...]:
    return tuple(values) * n if len(values) == 1 else tuple(values)


def pads(paddings: Any, n: int) -> list[tuple[int, int]]:
    """(before, after) for each axis."""
    if len(paddings) == 2 * n:
        return list(zip(paddings[::2], paddings[1::2], strict=True))
    return [(p, p) for p in each(paddings, n)]


def bordered(x: Any, sides: list[tuple[int, int]], value: float = 0.0) -> Any:
    """F.pad, with the first axis first; a negative border is cut off."""
    return F.pad(x, [p for pair in reversed(sides) for p in pair], value=value)


def windows(x: Any, kernel_size: Any, strides: Any, paddings: Any, dilations: Any, ceil_mode: bool, fill: float) -> Any:
    """[n, c, *windows, elements]: every window, with `fill` outside of x."""
    n = x.ndim - 2
    kernel, spread = each(kernel_size, n), each(dilations, n)
    steps = kernel if strides is None else each(strides, n)
    long = [d * (k - 1) + 1 for k, d in zip(kernel, spread, strict=True)]
    sides = []
    for m, k, s, (a, b) in zip(x.shape[2:], long, steps, pads(paddings, n), strict=True):
        count = (-(-(m + a + b - k) // s) if ceil_mode else (m + a + b - k) // s) + 1
        if ceil_mode and (count - 1) * s >= m + a:
            count -= 1
        sides.append((a, (count - 1) * s + k - m - a))
    x = bordered(x, sides, fill)
    for axis, (k, s) in enumerate(zip(long, steps, strict=True), start=2):
        x = x.unfold(axis, k, s)
    return x[(..., *(slice(None, None, d) for d in spread))].flatten(-n)


def window_sum(x: Any, kernel_size: Any, strides: Any, paddings: Any, dilations: Any, ceil_mode: bool) -> Any:
    return windows(x, kernel_size, strides, paddings, dilations, ceil_mode, 0.0).sum(-1)


def window_sum_adjoint(
    ct: Any, like: Any, kernel_size: Any, strides: Any, paddings: Any, dilations: Any, ceil_mode: bool
) -> Any:
    """window_sum is linear: its transpose is its own pullback."""
    x = torch.zeros_like(like, requires_grad=True)
    out = window_sum(x, kernel_size, strides, paddings, dilations, ceil_mode)
    return torch.autograd.grad(out, x, ct, create_graph=True)[0]


def even(paddings: Any, n: int) -> bool:
    return all(a == b for a, b in pads(paddings, n))


def avg_pool(n: int) -> Callable[..., Any]:
    def f(
        x: Any, kernel_size: Any, strides: Any, paddings: Any, dilations: Any, ceil_mode: bool, exclusive: bool
    ) -> Any:
        if even(paddings, n) and max(dilations) == 1:
            run = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[n - 1]
            steps = None if strides is None else each(strides, n)
            borders = tuple(a for a, _ in pads(paddings, n))
            return run(x, each(kernel_size, n), steps, borders, ceil_mode, not exclusive)
        total = window_sum(x, kernel_size, strides, paddings, dilations, ceil_mode)
        kernel = each(kernel_size, n)
        if not exclusive:
            return total / np.prod(kernel)
        return total / window_sum(torch.ones_like(x), kernel, strides, paddings, dilations, ceil_mode)

    return f


def max_pool(x: Any, kernel_size: Any, strides: Any, paddings: Any, dilations: Any, ceil_mode: bool) -> Any:
    n = x.ndim - 2
    kernel, spread = each(kernel_size, n), each(dilations, n)
    if even(paddings, n) and all(2 * a <= k for (a, _), k in zip(pads(paddings, n), kernel, strict=True)):
        run = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]
        steps = None if strides is None else each(strides, n)
        borders = tuple(a for a, _ in pads(paddings, n))
        return run(x, kernel, steps, borders, spread, ceil_mode, return_indices=True)
    found = windows(x, kernel, strides, paddings, dilations, ceil_mode, float("-inf"))
    place = torch.arange(x[0, 0].numel(), dtype=x.dtype).reshape(1, 1, *x.shape[2:])
    places = windows(place, kernel, strides, paddings, dilations, ceil_mode, -1.0).expand_as(found)
    at = found.argmax(-1, keepdim=True)
    return found.gather(-1, at).squeeze(-1), places.gather(-1, at).squeeze(-1).long()


def lp_pool(x: Any, p: float, kernel_size: Any, strides: Any, paddings: Any, dilations: Any, ceil_mode: bool) -> Any:
    """F.lp_pool2d takes no absolute value of x, and no padding."""
    return torch.linalg.vector_norm(windows(x, kernel_size, strides, paddings, dilations, ceil_mode, 0.0), p, -1)


def adaptive(run: Callable[[], Any], n: int) -> Callable[..., Any]:
    return lambda x, output_size: run()(x, each(output_size, n))


def unpool(x: Any, index: Any, size: Any) -> Any:
    flat = torch.zeros(*x.shape[:2], int(np.prod(size)), dtype=x.dtype)
    return flat.scatter_add(2, index.flatten(2), x.flatten(2)).reshape(*x.shape[:2], *size)


OPS: dict[str, Callable[..., Any]] = {
    "adaptive_avg_pool1d": adaptive(lambda: F.adaptive_avg_pool1d, 1),
    "adaptive_avg_pool2d": adaptive(lambda: F.adaptive_avg_pool2d, 2),
    "adaptive_avg_pool3d": adaptive(lambda: F.adaptive_avg_pool3d, 3),
    "adaptive_max_pool1d": adaptive(lambda: F.adaptive_max_pool1d_with_indices, 1),
    "adaptive_max_pool2d": adaptive(lambda: F.adaptive_max_pool2d_with_indices, 2),
    "adaptive_max_pool3d": adaptive(lambda: F.adaptive_max_pool3d_with_indices, 3),
    "avg_pool1d": avg_pool(1),
    "avg_pool2d": avg_pool(2),
    "avg_pool3d": avg_pool(3),
    "global_avg_pool": lambda x: torch.mean(x, tuple(range(2, x.ndim)), keepdim=True),
    "global_max_pool": lambda x: (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[x.ndim - 3](
        x, 1
    ),
    "lp_pool": lp_pool,
    "max_pool": max_pool,
    "max_pool1d": max_pool,
    "max_pool2d": max_pool,
    "max_pool3d": max_pool,
    "max_unpool": lambda x, index, output_size: unpool(x, index, output_size),
    "unpool_like": lambda x, index, like: unpool(x, index, like.shape[2:]),
    "window_sum": window_sum,
    "window_sum_adjoint": window_sum_adjoint,
}

LINE, IMAGE, BOX = (2, 2, 7), (2, 2, 6, 7), (1, 2, 4, 3, 5)
POOLS: list[dict[str, Any]] = [
    {"kernel_size": (2,)},
    {"kernel_size": (3,), "strides": (1,)},
    {"kernel_size": (3,), "strides": (2,), "paddings": (1,)},
    {"kernel_size": (2,), "strides": (3,), "ceil_mode": True},
    {"kernel_size": (3,), "strides": (2,), "paddings": (1,), "ceil_mode": True},
    {"kernel_size": (1,), "strides": (2,)},
    {"kernel_size": (2,), "strides": (1,), "dilations": (2,)},
]

MORE: dict[str, list[Inputs]] = {
    **{
        f"avg_pool{n}d": [case(x, exclusive=e, **a) for a in POOLS for e in (True, False)]
        for n, x in ((1, LINE), (2, IMAGE), (3, BOX))
    },
    **{f"max_pool{n}d": [case(x, **a) for a in POOLS] for n, x in ((1, LINE), (2, IMAGE), (3, BOX))},
    "max_pool": [case(IMAGE, **a) for a in POOLS],
    "lp_pool": [case(IMAGE, p=p, **a) for a in POOLS[:5] for p in (1.0, 2.0, 3.5)],
    "window_sum": [case(IMAGE, **a) for a in POOLS],
    **{f"adaptive_{how}_pool1d": [case(LINE, output_size=(k,)) for k in (1, 2, 5, 7)] for how in ("avg", "max")},
    **{
        f"adaptive_{how}_pool2d": [case(IMAGE, output_size=k) for k in ((1, 1), (4, 3), (6, 5))]
        for how in ("avg", "max")
    },
    **{f"adaptive_{how}_pool3d": [case(BOX, output_size=k) for k in ((1, 1, 1), (3, 2, 4))] for how in ("avg", "max")},
    "global_avg_pool": [case(x) for x in (LINE, IMAGE, BOX)],
    "global_max_pool": [case(x) for x in (LINE, IMAGE, BOX)],
}
