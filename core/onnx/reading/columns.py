"""Samples taken apart into columns, one for each size or element, and put together again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from core.ir import TensorType
from core.onnx.reading.worlds import Column, Sample

__all__ = ["Samples", "axes_of", "axis_of", "columns", "equal", "filled", "values_of", "with_size", "with_values"]

Samples = Sequence[Sample | None]
"""The samples of a tensor, one for each world; None for a world where its type does not fit."""


def axis_of(samples: Samples, axis: int) -> Column:
    """A size of the tensor in each world."""
    return tuple(None if s is None else s.type.shape[axis] for s in samples)


def axes_of(samples: Samples | None) -> list[Column]:
    """All sizes of the tensor; none if it is not known in any world."""
    known = next((s for s in samples or () if s is not None), None)
    return [] if known is None or samples is None else [axis_of(samples, i) for i in range(len(known.type.shape))]


def values_of(samples: Samples | None) -> list[np.ndarray | None]:
    """The elements of the tensor in each world."""
    return [None if s is None else s.value for s in samples or ()]


def columns(values: Sequence[np.ndarray | None], shape: tuple[int, ...] | None = None) -> Iterator[Column]:
    """Each element in each world. shape: to which the arrays are broadcast; by default they have one shape."""
    wide = [v if v is None or shape is None else np.broadcast_to(v, shape) for v in values]
    flat = [None if v is None else v.reshape(-1).tolist() for v in wide]
    for i in range(next(len(v) for v in flat if v is not None)):
        yield tuple(None if v is None else v[i] for v in flat)


def filled(found: Sequence[Column], like: np.ndarray, known: Sequence[bool]) -> list[np.ndarray | None]:
    """Arrays of the shape and dtype of `like` with these elements, for each world that is known."""
    return [
        np.array([column[w] for column in found]).astype(like.dtype).reshape(like.shape) if each else None
        for w, each in enumerate(known)
    ]


def with_size(samples: Samples, axis: int, column: Column) -> Samples:
    """The samples with another size of an axis. Elements that have another shape are dropped."""
    found: list[Sample | None] = []
    for s, n in zip(samples, column, strict=True):
        if s is None or n is None:
            found.append(None)
            continue
        shape = (*s.type.shape[:axis], int(n), *s.type.shape[axis + 1 :])
        kept = s.value if s.value is not None and s.value.shape == shape else None
        found.append(Sample(TensorType(shape, s.type.dtype), kept))
    return found


def with_values(samples: Samples, values: Sequence[np.ndarray | None]) -> Samples:
    """The samples with other elements."""
    return [None if s is None else Sample(s.type, v) for s, v in zip(samples, values, strict=True)]


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are the same, bit by bit."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
