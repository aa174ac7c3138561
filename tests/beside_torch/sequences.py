"""Sequences of different lengths, and tensor arrays, which are Python lists here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.beside_torch.installed import F, torch
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def pieces(x: Any, lengths: Any) -> list[Any]:
    """The rows of each sequence."""
    return list(torch.split(x, lengths.tolist()))


def joined(parts: list[Any], like: Any) -> Any:
    return torch.cat(parts) if parts else like[:0]


def each(f: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda x, lengths: joined([f(part) for part in pieces(x, lengths)], x)


def pool(x: Any, lengths: Any, pool_type: str, pad_value: float) -> Any:
    how: dict[str, Callable[[Any], Any]] = {
        "sum": lambda part: part.sum(0),
        "mean": lambda part: part.mean(0),
        "sqrt": lambda part: part.sum(0) / math.sqrt(part.shape[0]),
        "max": lambda part: part.max(0).values,
        "first": lambda part: part[0],
        "last": lambda part: part[-1],
    }
    blank = torch.full(x.shape[1:], pad_value, dtype=x.dtype)
    return torch.stack([how[pool_type](part) if len(part) else blank for part in pieces(x, lengths)])


def sequence_pad(x: Any, lengths: Any, value: Any, pad_value: float, padded_length: int) -> Any:
    width = max(lengths.tolist()) if padded_length == -1 else padded_length
    blank = torch.full((), pad_value, dtype=x.dtype) if value is None else value.reshape(())
    fill = [blank.expand(width - len(part), *x.shape[1:]) for part in pieces(x, lengths)]
    return torch.stack([torch.cat(both) for both in zip(pieces(x, lengths), fill, strict=True)])


def expand(x: Any, lengths: Any, x_lengths: Any) -> Any:
    parts = list(x.unbind(0)) if x_lengths is None else pieces(x, x_lengths)
    parts = [part.unsqueeze(0) for part in parts] if x_lengths is None else parts
    times = [torch.cat([part] * n) for part, n in zip(parts, lengths.tolist(), strict=True) if n]
    return joined(times, x)


def context(x: Any, lengths: Any, filter: Any, context_length: int, context_start: int | None) -> Any:
    start = -((context_length - 1) // 2) if context_start is None else context_start
    out = []
    for part in pieces(x, lengths):
        n = len(part)
        wide = F.pad(part, (0, 0, context_length + abs(start), context_length + abs(start)))
        first = context_length + abs(start) + start
        out.append(torch.cat([wide[first + k : first + k + n] for k in range(context_length)], 1) @ filter)
    return joined(out, x @ filter[: x.shape[1]])


def concat(x: Any, lengths: Any, y: Any, more: Any) -> Any:
    both = zip(pieces(x, lengths), pieces(y, more), strict=True)
    return torch.cat([part for pair in both for part in pair]), lengths + more


def cut(x: Any, lengths: Any, offsets: Any, counts: Any) -> Any:
    places = zip(pieces(x, lengths), offsets.tolist(), counts.tolist(), strict=True)
    return joined([part[start : start + n] for part, start, n in places], x), counts


def rank_order(lengths: Any) -> Any:
    """Longest first; equal lengths keep their order."""
    return torch.sort(lengths, descending=True, stable=True).indices


def to_array(x: Any, lengths: Any) -> Any:
    parts = pieces(x, lengths)
    order = rank_order(lengths).tolist()
    longest = max(lengths.tolist())
    return ([torch.stack([parts[i][t] for i in order if len(parts[i]) > t]) for t in range(longest)],)


def from_array(array: Any, lengths: Any, like: Any) -> Any:
    place = {i: rank for rank, i in enumerate(rank_order(lengths).tolist())}
    return torch.stack([array[t][place[i]] for i, n in enumerate(lengths.tolist()) for t in range(n)])


def listed(f: Callable[..., list[Any]]) -> Callable[..., Any]:
    """An op with a single result, a tensor array."""
    return lambda *inputs: (f(*inputs),)


OPS: dict[str, Callable[..., Any]] = {
    "array_concat": lambda array, like: torch.cat(array),
    "array_cut": listed(lambda x, counts, like=None: list(torch.split(x, counts.tolist()))),
    "array_join": lambda array, like: torch.stack(array),
    "array_paste": lambda array, like: torch.cat(array).reshape(like.shape),
    "array_read": lambda array, index: array[int(index)].clone(),
    "array_split_as": listed(lambda x, array: list(torch.split(x, [len(part) for part in array]))),
    "array_stack": lambda array: torch.stack(array),
    "array_to_sequence": from_array,
    "array_unstack": listed(lambda x: list(torch.unbind(x))),
    "array_write": listed(lambda x, index, array: [*array[: int(index)], x, *array[int(index) + 1 :]]),
    "reorder_by_rank": lambda x, lengths: x[rank_order(lengths)],
    "sequence_concat": concat,
    "sequence_conv": context,
    "sequence_expand": expand,
    "sequence_pad": sequence_pad,
    "sequence_pool": pool,
    "sequence_reset_lengths": lambda x, lengths: (x.clone(), lengths),
    "sequence_reverse": each(lambda part: part.flip(0)),
    "sequence_slice": cut,
    "sequence_softmax": each(lambda part: torch.softmax(part, 0)),
    "sequence_to_array": to_array,
    "sequence_unpad": lambda x, lengths: joined([row[:n] for row, n in zip(x, lengths.tolist(), strict=True)], x[:, 0]),
    "shrink_rnn_memory": lambda x, lengths, step: x[: int((lengths > step).sum())],
}

LENGTHS = np.array([2, 4, 0, 3])
ROWS = (9, 2, 3)
KINDS = ("sum", "mean", "sqrt", "max", "first", "last")

MORE: dict[str, list[Inputs]] = {
    "array_unstack": [case((4, 2, 3))],
    "array_cut": [case(ROWS, LENGTHS)],
    "reorder_by_rank": [case((4, 2, 3), LENGTHS)],
    "sequence_concat": [case(ROWS, LENGTHS, (5, 2, 3), np.array([1, 0, 3, 1]))],
    "sequence_conv": [
        case((9, 3), LENGTHS, (3 * k, 4), context_length=k, context_start=s) for k in (1, 2, 4) for s in (None, -3, 1)
    ],
    "sequence_expand": [case((4, 2, 3), LENGTHS), case(ROWS, np.array([2, 1, 5, 0]), LENGTHS)],
    "sequence_pad": [case(ROWS, LENGTHS), case(ROWS, LENGTHS, (), padded_length=6)],
    "sequence_pool": [case(ROWS, LENGTHS, pool_type=k) for k in KINDS],
    "sequence_reverse": [case(ROWS, LENGTHS)],
    "sequence_slice": [case(ROWS, LENGTHS, np.array([1, 0, 0, 2]), np.array([1, 3, 0, 1]))],
    "sequence_softmax": [case(ROWS, LENGTHS)],
    "sequence_to_array": [case(ROWS, LENGTHS)],
    "sequence_unpad": [case((4, 5, 2), LENGTHS)],
    "shrink_rnn_memory": [case((4, 2, 3), LENGTHS, np.array(k)) for k in (0, 2, 3)],
}
