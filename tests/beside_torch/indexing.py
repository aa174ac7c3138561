"""Reading and writing by position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.beside_torch.installed import F, torch
from tests.beside_torch.sample import Inputs, case

__all__ = ["AT", "COMBINES", "MORE", "OPS", "coordinates", "segments"]

COMBINES = {"mul": "prod", "max": "amax", "min": "amin"}
"""Words of torch for a reduction."""


def wrapped(index: Any, n: int) -> Any:
    """Positions from the front."""
    return torch.where(index < 0, index + n, index)


def integers(places: Any) -> Any:
    """Distinct positions: of several values for one position, torch keeps any and gives a gradient to all."""
    return torch.tensor([*places], dtype=torch.int64)


def gather(x: Any, index: Any, axis: int) -> Any:
    axis %= x.ndim
    return x[(*[slice(None)] * axis, index)]


def coordinates(index: Any) -> Any:
    return tuple(index.unbind(-1))


def gather_nd(x: Any, index: Any, batch_dims: int) -> Any:
    lead = [torch.arange(n) for n in x.shape[:batch_dims]]
    own = [each.reshape(-1, *[1] * (index.ndim - 2 - i)) for i, each in enumerate(lead)]
    return x[(*own, *coordinates(index))]


def scatter_add_like(x: Any, index: Any, like: Any, axis: int) -> Any:
    axis %= like.ndim
    front = [like.shape[:axis], index.shape, like.shape[axis + 1 :]]
    flat = x.reshape(*front[0], index.numel(), *front[2])
    return torch.zeros_like(like).index_add(axis, wrapped(index.reshape(-1), like.shape[axis]), flat)


def scatter(x: Any, index: Any, updates: Any, overwrite: bool) -> Any:
    index = wrapped(index, x.shape[0])
    if overwrite:
        last = {int(at): i for i, at in enumerate(index)}
        return x.index_copy(0, integers(last), updates[[*last.values()]])
    rest = torch.ones(x.shape[0], dtype=x.dtype).index_fill(0, index, 0).reshape(-1, *[1] * (x.ndim - 1))
    return (x * rest).index_add(0, index, updates)


def put_along_axis(x: Any, index: Any, values: Any, axis: int, reduce: str) -> Any:
    index = wrapped(index, x.shape[axis])
    if reduce == "add":
        return torch.scatter_add(x, axis, index, values)
    place = torch.arange(x.numel()).reshape(x.shape)
    if reduce == "mul":  # torch has no second gradient of it
        hits = torch.gather(place, axis, index).reshape(-1).tolist()
        flat = list(x.reshape(-1))
        for at, value in zip(hits, values.reshape(-1), strict=True):
            flat[at] = flat[at] * value
        return torch.stack(flat).reshape(x.shape)
    if reduce in COMBINES:
        return torch.scatter_reduce(x, axis, index, values, COMBINES[reduce])
    last = {int(at): i for i, at in enumerate(torch.gather(place, axis, index).reshape(-1))}
    return x.reshape(-1).index_copy(0, integers(last), values.reshape(-1)[[*last.values()]]).reshape(x.shape)


def index_put(x: Any, values: Any, *index: Any, accumulate: bool) -> Any:
    if accumulate:
        return x.index_put(index, values, accumulate=True)
    index = torch.broadcast_tensors(*index)
    flat = torch.arange(x.numel()).reshape(x.shape)[index]
    last = {int(at): i for i, at in enumerate(flat.reshape(-1))}
    spread = values.expand(flat.shape).reshape(-1)
    return x.reshape(-1).index_copy(0, integers(last), spread[[*last.values()]]).reshape(x.shape)


def segments(x: Any, ids: Any, like: Any, num_segments: int) -> tuple[int, Any]:
    n = num_segments if like is None else like.shape[0]
    return n, ids.reshape(-1, *[1] * (x.ndim - 1)).expand_as(x)


def reduced(how: str) -> Callable[..., Any]:
    def f(x: Any, ids: Any, like: Any, num_segments: int) -> Any:
        n, index = segments(x, ids, like, num_segments)
        start = torch.zeros(n, *x.shape[1:], dtype=x.dtype)
        return start.scatter_reduce(0, index, x, how, include_self=False)

    return f


def segment_sum(x: Any, ids: Any, like: Any, num_segments: int) -> Any:
    n, index = segments(x, ids, like, num_segments)
    return torch.zeros(n, *x.shape[1:], dtype=x.dtype).scatter_add(0, index, x)


def masked_fill(x: Any, mask: Any, value: Any, fill: float) -> Any:
    return torch.masked_fill(x, mask, fill if value is None else value.reshape(()))


def embedding(weight: Any, ids: Any, padding_idx: int | None) -> Any:
    if not ids.numel():  # F.embedding has no gradient without ids
        return weight[ids]
    ids = wrapped(ids, weight.shape[0])
    padding_idx = None if padding_idx is None else padding_idx % weight.shape[0]
    found = F.embedding(ids, weight, padding_idx)
    return found if padding_idx is None else found * (ids != padding_idx).unsqueeze(-1)  # torch reads that row


def merge_rows(x: Any, ids: Any, like: Any, padding_idx: int | None) -> Any:
    """The rows of the table's gradient that an id reads: torch.unique has no gradient, and needs no gradient here."""
    index = wrapped(ids, like.shape[0]).reshape(-1)
    flat = x.reshape(index.shape[0], *like.shape[1:])
    kept = torch.ones_like(index, dtype=torch.bool) if padding_idx is None else index != padding_idx % like.shape[0]
    rows, place = torch.unique(index[kept], return_inverse=True)
    return rows, torch.zeros(len(rows), *like.shape[1:], dtype=x.dtype).index_add(0, place, flat[kept])


def read_rows(values: Any, rows: Any, ids: Any, like: Any) -> Any:
    return torch.zeros_like(like).index_copy(0, wrapped(rows, like.shape[0]), values)[ids]


def merge_by_mask(mask: Any, true: Any, false: Any) -> Any:
    out = torch.zeros(mask.shape[0], *true.shape[1:], dtype=true.dtype)
    return out.index_put((mask,), true).index_put((~mask,), false)


def select_output(index: Any, x: Any, *like: Any) -> Any:
    return tuple(x.clone() if i == int(index) else torch.zeros_like(y) for i, y in enumerate(like))


OPS: dict[str, Callable[..., Any]] = {
    "embedding": embedding,
    "gather": gather,
    "gather_nd": gather_nd,
    "index_add": lambda x, index, updates, axis: torch.index_add(x, axis, index, updates),
    "index_put": index_put,
    "index_sample": lambda x, index: torch.gather(x, 1, wrapped(index, x.shape[1])),
    "index_select": lambda x, index, axis: torch.index_select(x, axis, wrapped(index, x.shape[axis])),
    "lookup_table": lambda w, ids, padding_idx: embedding(w, ids.squeeze(-1), padding_idx),
    "masked_fill": masked_fill,
    "masked_select": lambda x, mask: torch.masked_select(x, mask),
    "merge_by_mask": merge_by_mask,
    "merge_rows": merge_rows,
    "pick": lambda x, index: torch.gather(x.flatten(2), 2, wrapped(index, x[0, 0].numel() if x.numel() else 1)),
    "put_along_axis": put_along_axis,
    "read_rows": read_rows,
    "scatter": scatter,
    "scatter_add_like": scatter_add_like,
    "scatter_nd": lambda index, updates, shape: torch.zeros(shape, dtype=updates.dtype).index_put(
        coordinates(index), updates, accumulate=True
    ),
    "scatter_nd_add": lambda x, index, updates: x.index_put(coordinates(index), updates, accumulate=True),
    "segment_max": reduced("amax"),
    "segment_mean": reduced("mean"),
    "segment_min": reduced("amin"),
    "segment_sum": segment_sum,
    "select_input": lambda index, *x: x[int(index)].clone(),
    "select_output": select_output,
    "split_by_mask": lambda x, mask: (x[mask], x[~mask]),
    "take_along_axis": lambda x, index, axis: torch.gather(x, axis, wrapped(index, x.shape[axis])),
}

AT = np.array([[2, 0], [-1, 1], [2, 2]])

MORE: dict[str, list[Inputs]] = {
    "embedding": [case((5, 3), np.array([[4, 0, 4], [1, 1, 2]])), case((5, 3), np.array([1, 1, 4, 0]), padding_idx=1)],
    "gather": [case((3, 4, 5), AT, axis=axis) for axis in (0, 1, 2, -2)],
    "gather_nd": [case((3, 4, 5), AT), case((3, 4, 5), AT[:, :1]), case((3, 4, 5), AT, batch_dims=1)],
    "index_add": [
        case((3, 4, 5), np.array([2, 2, 0]), s, axis=a) for s, a in (((3, 4, 5), 0), ((3, 3, 5), 1), ((3, 4, 3), 2))
    ],
    "index_put": [
        case((3, 4, 5), (2, 3), np.array([[1], [2]]), np.array([0, 3, 1]), np.array([2, 2, -1]), accumulate=a)
        for a in (False, True)
    ],
    "index_sample": [case((3, 4), AT)],
    "index_select": [case((3, 4, 5), np.array([2, -1, 0, 2]), axis=a) for a in (0, 1, 2)],
    "lookup_table": [case((5, 3), np.array([[[4], [0]], [[1], [4]]]), padding_idx=p) for p in (None, 0)],
    "masked_fill": [case((2, 3, 4), np.array([[True], [False], [True]]), (), fill=2.0)],
    "masked_select": [case((2, 3, 4), np.array([[True], [False], [True]]))],
    "merge_rows": [case((2, 3, 4), np.array([[4, 0, 4], [1, 1, -1]]), (5, 4), padding_idx=p) for p in (None, 0, -4)],
    "pick": [case((2, 3, 2, 2), np.arange(24).reshape(2, 3, 4) % 3 - 1)],
    "put_along_axis": [
        case((3, 4, 5), np.array([[[2], [0], [1], [2]]]), (1, 4, 1), axis=0, reduce=r)
        for r in ("assign", "add", "mul", "max", "min")
    ],
    "read_rows": [case((3, 4), np.array([0, 2, 4]), np.array([[4, 0, 4], [1, 2, -1]]), (5, 4))],
    "scatter": [case((5, 2, 3), np.array([4, 0, -1]), (3, 2, 3), overwrite=o) for o in (True, False)],
    "scatter_add_like": [case((4, 3, 2, 5), AT, (4, 3, 5), axis=1)],
    "scatter_nd": [case(AT, (3, 2), shape=(3, 4, 2))],
    "scatter_nd_add": [case((3, 4, 2), AT, (3, 2))],
    "take_along_axis": [case((3, 4, 5), np.array([[[2], [0], [1], [-2]]]), axis=0)],
    **{
        f"segment_{how}": [
            case((7, 2, 3), np.array([0, 2, 2, 0, 3, 2, 0]), num_segments=5),
            case((4,), np.array([1, 1, 0, 1]), num_segments=2),
        ]
        for how in ("max", "mean", "min", "sum")
    },
}
