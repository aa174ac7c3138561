"""Reductions, norms, statistics and cumulative ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

from tests.beside_torch.installed import F, torch
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def over(axes: Any, x: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if axes is None else tuple(axes)


def tied(largest: Any, first: Any) -> Callable[..., Any]:
    """amax or amin splits a tie evenly; along one axis max or min takes the first; torch has no tie rule 'all'."""

    def reduced(x: Any, axes: Any, keepdims: bool, tie: str) -> Any:
        axes = over(axes, x)
        if 0 in [x.shape[axis] for axis in axes]:  # torch has no extreme of nothing
            return torch.full_like(x.sum(axes, keepdim=keepdims), -math.inf if largest() is torch.amax else math.inf)
        if tie == "even" or not axes:
            return largest()(x, axes, keepdim=keepdims)
        kept = [i for i in range(x.ndim) if i not in {a % x.ndim for a in axes}]
        rows = x.permute(*kept, *sorted(a % x.ndim for a in axes)).flatten(len(kept))
        if tie == "first":
            out = rows.gather(-1, first()(rows, -1, keepdim=True)).squeeze(-1)
        else:
            best = largest()(rows, -1, keepdim=True).detach()
            out = torch.where(rows == best, rows - rows.detach(), 0.0).sum(-1) + best.squeeze(-1)
        return out.reshape([n if i in kept else 1 for i, n in enumerate(x.shape)]) if keepdims else out

    return reduced


def prod(x: Any, axes: Any, keepdims: bool) -> Any:
    for axis in sorted((a % x.ndim for a in over(axes, x)), reverse=True):
        x = torch.prod(x, axis, keepdim=keepdims)
    return x


def others(x: Any, axes: Any) -> Any:
    """For each element, the product of all other elements."""
    axes = [a % x.ndim for a in over(axes, x)]
    kept = [i for i in range(x.ndim) if i not in axes]
    rows = x.permute(*kept, *axes)
    flat = rows.reshape(*rows.shape[: len(kept)], -1)
    n = flat.shape[-1]
    eye = torch.eye(n, dtype=torch.bool)
    out = torch.prod(torch.where(eye, torch.ones((), dtype=x.dtype), flat.unsqueeze(-2)), -1)
    back = [0] * x.ndim
    for i, a in enumerate([*kept, *axes]):
        back[a] = i
    return out.reshape(rows.shape).permute(*back)


def running(total: Callable[..., Any], start: float) -> Callable[..., Any]:
    """A cumulative op, optionally exclusive or from the end."""

    def f(x: Any, axis: int, exclusive: bool, reverse: bool) -> Any:
        x = x.flip(axis) if reverse else x
        if exclusive:
            first = torch.full_like(x.narrow(axis, 0, min(1, x.shape[axis])), start)
            x = torch.cat([first, x.narrow(axis, 0, max(x.shape[axis] - 1, 0))], axis)
        x = total(x, axis)
        return x.flip(axis) if reverse else x

    return f


def median(x: Any, axis: int, keepdims: bool) -> Any:
    """torch.median takes the lower of two middle elements; this is their mean."""
    n = x.shape[axis]
    low = torch.median(x, axis, keepdim=keepdims).values
    return low if n % 2 else (low + torch.kthvalue(x, n // 2 + 1, axis, keepdim=keepdims).values) / 2


def linear_scan(a: Any, b: Any, begins: Any = None, *, axis: int, reverse: bool) -> Any:
    order = range(a.shape[axis])
    if not a.numel():
        return a * b
    state, out = torch.zeros_like(a.select(axis, 0)), {}
    for t in reversed(order) if reverse else order:
        state = out[t] = b.select(axis, t) + (0 if begins is not None and begins[t] else a.select(axis, t) * state)
    return torch.stack([out[t] for t in order], axis)


def global_norm(xs: Any) -> Any:
    return torch.linalg.vector_norm(torch.cat([x.reshape(-1) for x in xs]))


def clip_by_global_norm(*x: Any, max_norm: float) -> Any:
    norm = global_norm(x)
    share = max_norm / norm if norm > max_norm else 1.0
    return tuple(each * share for each in x)


OPS: dict[str, Callable[..., Any]] = {
    "clip_by_global_norm": clip_by_global_norm,
    "clip_by_norm": lambda x, max_norm: clip_by_global_norm(x, max_norm=max_norm),
    "cos_sim": lambda x, y, axis, epsilon: F.cosine_similarity(*torch.broadcast_tensors(x, y), axis % x.ndim - x.ndim),
    "cummax": lambda x, axis: tuple(torch.cummax(x, axis)),
    "cummin": lambda x, axis: tuple(torch.cummin(x, axis)),
    "cumprod": running(lambda x, axis: torch.cumprod(x, axis), 1.0),
    "cumsum": running(lambda x, axis: torch.cumsum(x, axis), 0.0),
    "dist": lambda x, y, p: torch.dist(x, y, p),
    "frobenius_norm": lambda x, axes, keepdims: torch.linalg.matrix_norm(x, "fro", axes, keepdim=keepdims),
    "kthvalue": lambda x, k, axis, keepdims: tuple(torch.kthvalue(x, k, axis, keepdim=keepdims)),
    "l1_norm": lambda x: torch.linalg.vector_norm(x, 1),
    "l2_normalize": lambda x, axis, epsilon: F.normalize(x, dim=axis, eps=epsilon**0.5),
    "linear_scan": linear_scan,
    "logcumsumexp": lambda x, axis: torch.logcumsumexp(x, axis),
    "logsumexp": lambda x, axes, keepdims: torch.logsumexp(x, over(axes, x), keepdim=keepdims),
    "lp_normalize": lambda x, p, axis: F.normalize(x, p, axis, eps=1e-300),
    "mean": lambda x: torch.mean(x),
    "median": median,
    "mode": lambda x, axis, keepdims: (torch.mode(x, axis, keepdim=keepdims).values, None),
    "norm": lambda x, p, axes, keepdims: torch.linalg.vector_norm(x, p, over(axes, x), keepdim=keepdims),
    "product_of_others": others,
    "reduce_max": tied(lambda: torch.amax, lambda: torch.argmax),
    "reduce_mean": lambda x, axes, keepdims: torch.mean(x, over(axes, x), keepdim=keepdims),
    "reduce_min": tied(lambda: torch.amin, lambda: torch.argmin),
    "reduce_prod": prod,
    "reduce_sum": lambda x, axes, keepdims: torch.sum(x, over(axes, x), keepdim=keepdims),
    "sort": lambda x, axis, descending: tuple(torch.sort(x, dim=axis, descending=descending, stable=True)),
    "squared_l2_norm": lambda x: torch.sum(torch.square(x)),
    "std": lambda x, axes, ddof, keepdims: torch.std(x, over(axes, x), correction=ddof, keepdim=keepdims),
    "sum_to": lambda x, shape: x.sum_to_size(shape),
    "sum_to_like": lambda x, like: x.sum_to_size(like.shape),
    "topk": lambda x, k, axis, largest: tuple(torch.topk(x, k, axis, largest, sorted=True)),
    "unscale": lambda scale, *x: (
        *(each / scale.reshape(()) for each in x),
        ~reduce(torch.logical_and, [torch.isfinite(each / scale.reshape(())).all() for each in x]),
    ),
    "var": lambda x, axes, ddof, keepdims: torch.var(x, over(axes, x), correction=ddof, keepdim=keepdims),
}

AXES: list[dict[str, Any]] = [
    {},
    {"keepdims": True},
    {"axes": (0,)},
    {"axes": (-1,), "keepdims": True},
    {"axes": (0, 2)},
    {"axes": (2, 1), "keepdims": True},
]
REDUCED = ("logsumexp", "norm", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum", "std", "var")

MORE: dict[str, list[Inputs]] = {
    name: [case((2, 3, 4), **axes) for axes in AXES] + [case((4, 1, 3), axes=(0,)), case((5,)), case((3, 2))]
    for name in REDUCED
}
MORE |= {
    name: [case((2, 3, 4), axis=axis) for axis in (0, 1, -1)] + [case((6,)), case((1, 3), axis=0)]
    for name in ("cummax", "cummin", "linear_scan", "logcumsumexp", "sort")
}
MORE |= {
    name: [
        case((2, 3, 4), axis=axis, exclusive=e, reverse=r)
        for axis in (0, 1, 2)
        for e in (0 > 1, True)
        for r in (0 > 1, True)
    ]
    for name in ("cumprod", "cumsum")
}
MORE["linear_scan"] = [case((2, 3, 4), (2, 3, 4), axis=axis, reverse=r) for axis in (0, 1, 2) for r in (False, True)]
MORE["sort"] += [case((2, 3, 4), axis=1, descending=True)]
MORE["norm"] += [
    case((2, 3, 4), p=p, **axes)
    for p in (1.0, 3.0, -1.0, -2.5, 0.5, float("inf"), float("-inf"), 0.0)
    for axes in AXES[:5:2]
]
MORE["std"] += [case((2, 3, 4), ddof=d, axes=(1,)) for d in (0, 1, 2)]
MORE["var"] += [case((2, 3, 4), ddof=d, axes=(1,)) for d in (0, 1, 2)]
MORE["reduce_max"] += [case((2, 3, 4), axes=(1,), tie=t, keepdims=k) for t in ("first", "all") for k in (False, True)]
MORE["reduce_min"] += [case((2, 3, 4), axes=(1,), tie=t, keepdims=k) for t in ("first", "all") for k in (False, True)]
MORE["median"] = [case((2, 5, 4), axis=axis, keepdims=k) for axis in (0, 1, 2) for k in (False, True)] + [case((7,))]
MORE["kthvalue"] = [case((2, 5, 4), k=k, axis=1) for k in (1, 2, 5)] + [case((5, 2), k=3, axis=0, keepdims=True)]
MORE["topk"] = [case((3, 5), k=k, axis=-1, largest=big) for k in (1, 3, 5) for big in (True, False)] + [
    case((5, 2, 2), k=2, axis=0)
]
MORE["mode"] = [case((2, 4, 3), axis=1)]
MORE["mean"] = [case((2, 3, 4)), case(()), case((1,))]
MORE["dist"] = [case((2, 3, 4), (3, 1), p=p) for p in (0.5, 1.0, 2.0, 2.5, float("inf"))]
MORE["cos_sim"] = [case((2, 3, 4), (2, 3, 4), axis=axis) for axis in (0, 1, 2)] + [case((4, 3), (1, 3))]
MORE["frobenius_norm"] = [case((2, 3, 4), axes=(0, 2)), case((2, 3, 4), axes=(1, 2), keepdims=True)]
MORE["l1_norm"] = [case((5,)), case((2, 3, 4))]
MORE["l2_normalize"] = [case((2, 3, 4), axis=axis) for axis in (0, 1, 2)] + [case((5,), epsilon=0.01)]
MORE["lp_normalize"] = [case((2, 3, 4), p=p, axis=a) for p in (1.0, 2.0, 3.0) for a in (0, 1, 2)]
MORE["squared_l2_norm"] = [case((5,)), case((2, 3, 4))]
MORE["product_of_others"] = [case((2, 3, 4), axes=a) for a in (None, (0,), (1, 2), (2, 0))]
MORE["clip_by_norm"] = [case((2, 3, 4), max_norm=n) for n in (0.3, 1.0, 50.0)]
MORE["clip_by_global_norm"] = [case((2, 3), (4,), (), max_norm=n) for n in (0.3, 1.0, 50.0)]
MORE["sum_to"] = [case((2, 3, 4), shape=s) for s in ((), (4,), (3, 1), (1, 3, 4), (2, 1, 1))]
MORE["sum_to_like"] = [case((2, 3, 4), s) for s in ((), (4,), (3, 1), (1, 3, 4), (2, 1, 1))]
MORE["unscale"] = [case((1,), (2, 3), (4,), span=(0.5, 2.0))]
