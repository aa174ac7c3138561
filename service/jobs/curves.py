"""The metrics of steps: stored as rows of float64 columns, and shown as fewer points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

__all__ = ["Row", "joined", "mean", "packed", "thinned", "unpacked"]

Columns = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Row:
    """The values of `count` steps, the first of which has the number `step`."""

    step: int
    count: int
    columns: Columns


def packed(columns: Mapping[str, Sequence[float | None]]) -> bytes:
    """Columns as bytes; None becomes NaN."""
    return msgspec.msgpack.encode({name: np.array(values, "<f8").tobytes() for name, values in columns.items()})


def unpacked(data: bytes) -> Columns:
    return {name: np.frombuffer(raw, "<f8") for name, raw in msgspec.msgpack.decode(data).items()}


def joined(rows: Iterable[Row]) -> tuple[np.ndarray, Columns]:
    """(numbers of the steps, their values); NaN where a row lacks a column."""
    found = list(rows)
    names = dict.fromkeys(name for row in found for name in row.columns)
    steps = [np.arange(row.step, row.step + row.count) for row in found]
    columns = {
        name: np.concatenate([row.columns.get(name, np.full(row.count, np.nan)) for row in found]) for name in names
    }
    return (np.concatenate(steps) if steps else np.zeros(0, "int64")), columns


def thinned(steps: np.ndarray, columns: Columns, points: int) -> tuple[np.ndarray, Columns]:
    """At most `points` points: the mean of each of as many ranges of steps, at the last step of the range.

    Values that are not finite do not count; without any other value the mean is NaN.
    """
    if len(steps) <= points:
        return steps, columns
    ends = np.linspace(0, len(steps), points + 1).round().astype(int)[1:]
    starts = np.concatenate([[0], ends[:-1]])
    found = {}
    for name, values in columns.items():
        finite = np.isfinite(values)
        # in longer floats, so that the mean of equal values is that value, and no sum is infinite
        total = np.add.reduceat(np.where(finite, values, 0.0), starts, dtype=np.longdouble)
        count = np.add.reduceat(finite.astype(int), starts)
        means = np.divide(total, count, out=np.full(points, np.nan, np.longdouble), where=count > 0)
        found[name] = means.astype(np.float64)
    return steps[ends - 1], found


def mean(values: Sequence[float] | np.ndarray) -> float | None:
    """The mean of the finite values, rounded once, so that it does not depend on their grouping; None without any."""
    array = np.asarray(values, np.float64)
    finite = array[np.isfinite(array)].tolist()
    return math.fsum(finite) / len(finite) if finite else None
