"""The sizes of ops whose sizes are operands, from the elements of those operands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core.ir import TensorType, Type

__all__ = ["lacks_sizes", "sized"]

Values = Sequence[np.ndarray | None]


def lacks_sizes(op: str, values: Values) -> bool:
    """Whether an operand with sizes is not known. Otherwise `sized` gives a shape, or the operands do not fit."""
    return any(each is None for each in (values if op in ("dynamic_fill", "dynamic_range") else values[1:]))


def sized(op: str, types: Sequence[Type | None], values: Values, attrs: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The shape of the result; None if they are not known or do not fit, or for another op."""
    if op == "dynamic_range":
        start, end, step = (None if each is None else float(each) for each in values)
        if start is None or end is None or not step:
            return None
        return (max(math.ceil((end - start) / step), 0),)
    if op == "dynamic_fill":
        return _ints(values[0])
    x = types[0]
    if not isinstance(x, TensorType) or -1 in x.shape:
        return None
    if op == "dynamic_reshape":
        return _reshaped(x.shape, _ints(values[1]))
    if op == "dynamic_expand":
        return _broadcast(x.shape, _ints(values[1]))
    if op == "dynamic_slice":
        return _sliced(x.shape, [_ints(each) for each in values[1:]], attrs["axes"])
    return None


def _ints(vector: np.ndarray | None) -> tuple[int, ...] | None:
    return None if vector is None else tuple(int(n) for n in vector.reshape(-1))


def _reshaped(shape: tuple[int, ...], sizes: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if sizes is None:
        return None
    if -1 not in sizes:  # a run in which the numbers of elements differ fails
        return sizes if min(sizes, default=0) >= 0 else None
    rest, total = math.prod(n for n in sizes if n != -1), math.prod(shape)
    found = tuple(total // rest if n == -1 and rest else n for n in sizes)
    return found if math.prod(found) == total and min(found, default=0) >= 0 else None


def _broadcast(shape: tuple[int, ...], sizes: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if sizes is None or min(sizes, default=0) < 0:
        return None
    try:
        return np.broadcast_shapes(shape, sizes)
    except ValueError:
        return None


def _sliced(
    shape: tuple[int, ...], places: Sequence[tuple[int, ...] | None], axes: Sequence[int]
) -> tuple[int, ...] | None:
    starts, ends, steps = places
    if starts is None or ends is None or steps is None or 0 in steps:
        return None
    found = list(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        start = max(start + shape[axis], 0) if start < 0 else start  # unlike a slice of Python
        found[axis] = len(range(*slice(start, end, step).indices(shape[axis])))
    return tuple(found)
