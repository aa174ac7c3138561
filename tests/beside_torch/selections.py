"""Writes that combine, selection by masks, bags of rows, and quantiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.beside_torch.indexing import AT, COMBINES, coordinates, segments
from tests.beside_torch.installed import torch
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def scatter_nd_update(x: Any, index: Any, updates: Any, reduce: str) -> Any:
    at = coordinates(index)
    if reduce == "add":
        return x.index_put(at, updates, accumulate=True)
    place = torch.arange(x.numel()).reshape(x.shape)[at].reshape(-1)
    if reduce == "assign":
        last = {int(p): i for i, p in enumerate(place)}
        every = torch.tensor([*last.values()], dtype=torch.int64)
        return x.reshape(-1).index_copy(0, place[every], updates.reshape(-1)[every]).reshape(x.shape)
    return x.reshape(-1).scatter_reduce(0, place, updates.reshape(-1), COMBINES[reduce]).reshape(x.shape)


def segment_prod(x: Any, ids: Any, like: Any, num_segments: int) -> Any:
    """torch.scatter_reduce has no second gradient of a product."""
    n, _ = segments(x, ids, like, num_segments)
    one = torch.ones(x.shape[1:], dtype=x.dtype)
    rows = [[x[i] for i in range(len(ids)) if int(ids[i]) == k] for k in range(n)]
    return torch.stack([torch.stack([one, *each]).prod(0) for each in rows]) if n else torch.zeros(0, *x.shape[1:])


def unique(x: Any, axis: int | None, sorted: bool) -> Any:
    """torch.unique has no gradient: the values are read at their first positions in x."""
    values, inverse, counts = torch.unique(x.detach(), return_inverse=True, return_counts=True, dim=axis)
    flat = inverse.reshape(-1).tolist()
    first = [flat.index(k) for k in range(values.shape[axis or 0])]
    order = list(range(len(first))) if sorted else [int(k) for k in np.argsort(first)]
    first = [first[k] for k in order]
    inverse = torch.tensor([order.index(k) for k in flat], dtype=torch.int64).reshape(inverse.shape)
    source = x.reshape(-1) if axis is None else x
    at = torch.tensor(first, dtype=torch.int64)
    return source.index_select(axis or 0, at), inverse, counts[order], at


def reverse_sequence(x: Any, lengths: Any, time_axis: int, batch_axis: int) -> Any:
    moved = x.movedim((batch_axis, time_axis), (0, 1))
    rows = [torch.cat([row[:n].flip(0), row[n:]]) for row, n in zip(moved, lengths.tolist(), strict=True)]
    return (torch.stack(rows) if rows else moved.clone()).movedim((0, 1), (batch_axis, time_axis))


def embedding_bag(weight: Any, ids: Any, offsets: Any, sample_weight: Any, mode: str) -> Any:
    """F.embedding_bag has no second gradient; its sums here are of rows."""
    rows = weight[ids] if sample_weight is None else weight[ids] * sample_weight.unsqueeze(-1)
    ends = [] if offsets is None else [*offsets.tolist()[1:], len(ids)]
    bags = rows if offsets is None else [rows[a:b] for a, b in zip(offsets.tolist(), ends, strict=True)]
    empty = torch.zeros(weight.shape[1], dtype=weight.dtype)
    how = {"sum": lambda r: r.sum(0), "mean": lambda r: r.mean(0), "max": lambda r: r.amax(0)}[mode]
    return torch.stack([how(bag) if len(bag) else empty for bag in bags])


def quantile(skips: bool) -> Callable[..., Any]:
    def f(x: Any, q: Any, axis: int | None, keepdims: bool, interpolation: str) -> Any:
        run = torch.nanquantile if skips else torch.quantile
        share = torch.tensor(q, dtype=x.dtype)
        return run(x, share, axis, keepdim=keepdims and axis is not None, interpolation=interpolation)

    return f


OPS: dict[str, Callable[..., Any]] = {
    "compress": lambda x, condition, axis: (
        x.reshape(-1)[: len(condition)][condition]
        if axis is None
        else x.index_select(axis, condition.nonzero().reshape(-1))
    ),
    "embedding_bag": embedding_bag,
    "masked_scatter": lambda x, mask, source: x.masked_scatter(mask.expand_as(x), source),
    "nanquantile": quantile(True),
    "quantile": quantile(False),
    "reverse_sequence": reverse_sequence,
    "scatter_nd_update": scatter_nd_update,
    "segment_prod": segment_prod,
    "unique": unique,
}

IDS = np.array([[4, 0, 4], [1, 2, 1]])

MORE: dict[str, list[Inputs]] = {
    "compress": [case((3, 4, 5), np.array([True, False, True]), axis=a) for a in (None, 0, 1, -1)],
    "embedding_bag": [case((5, 3), IDS, mode=m) for m in ("sum", "mean", "max")]
    + [case((5, 3), IDS.ravel(), np.array([0, 1, 1, 4]), mode=m) for m in ("sum", "mean")]
    + [case((5, 3), IDS, None, (2, 3), mode="sum")],
    "masked_scatter": [case((2, 3, 4), np.array([[True], [False], [True]]), (20,))],
    "reverse_sequence": [
        case((3, 4, 2), np.array([2, 0, 4])),
        case((4, 2, 3), np.array([2, 4, 1]), time_axis=0, batch_axis=2),
    ],
    "scatter_nd_update": [case((3, 4), AT, (3,), reduce=r) for r in ("assign", "add", "max", "min")],
    "segment_prod": [case((7, 2, 3), np.array([0, 2, 2, 0, 3, 2, 0]), num_segments=5)],
    "unique": [case((9,)), case((2, 3, 2)), case((4, 3), axis=1), case((4, 3), axis=0, sorted=False)],
    **{
        name: [
            case((4, 5), q=(0.0, 0.25, 0.6, 1.0), axis=a, interpolation=i)
            for a in (None, 0, 1)
            for i in ("linear", "lower", "higher", "midpoint", "nearest")
        ]
        for name in ("quantile", "nanquantile")
    },
}
