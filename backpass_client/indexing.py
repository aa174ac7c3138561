"""``x[...]`` as a list of ops: one `slice`, then one `gather` for each position, then one `unsqueeze`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["index_ops"]

LAST = 2**31 - 1

OpCall = tuple[str, tuple[Any, ...], dict[str, Any]]
"""(type, inputs after the first one, attributes)."""


def index_ops(index: Any, ndim: Callable[[], int], size: Callable[[int], Any], fixed: bool = False) -> list[OpCall]:
    """The ops that index an array, in order; each takes the output of the one before as its first input.

    index:      integers, slices, `...` and None as in numpy, and one list or array of integers. Integers must stand
                beside the array: numpy moves the axes of an array that a slice separates from an integer.
    ndim, size: the rank of the array, and its size on an axis. They are functions because the answer may cost a
                request; only `...` needs the first, and only negative positions need the second.
    fixed:      whether integer positions become attributes of a slice. By default they are passed as values, so that
                tapes that differ in a position share one compiled structure.
    Raises TypeError for any other index.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    used = sum(each is not None and each is not Ellipsis for each in items)
    at = next((i for i, each in enumerate(items) if each is Ellipsis), None)
    if at is not None:
        items[at : at + 1] = [slice(None)] * (ndim() - used)
    _check_order(items)
    many: list[tuple[int, np.ndarray]] = []
    sliced: list[tuple[int, slice]] = []
    single: list[tuple[int, int]] = []
    new: list[int] = []
    axis, out = 0, 0
    for each in items:
        if each is None:
            new.append(out)
            out += 1
            continue
        if isinstance(each, slice):
            if each != slice(None):
                sliced.append((axis, each))
            out += 1
        elif isinstance(each, int | np.integer) and not isinstance(each, bool):
            single.append((axis, int(each)))
        elif isinstance(each, np.ndarray | list):
            positions = _positions(each)
            many.append((axis, positions))
            out += positions.ndim
        else:
            raise TypeError(f"cannot index with {each!r} of type {type(each).__name__}")
        axis += 1
    ops: list[OpCall] = []
    squeezed = [axis for axis, _ in single] if fixed else []
    if fixed:
        for at, position in single:
            n = size(at)
            if isinstance(n, int) and not -n <= position < n:
                raise IndexError(f"position {position} is out of range for axis {at} of size {n}")
        sliced += [(axis, slice(at, None if at == -1 else at + 1)) for axis, at in single]
        single = []
    if sliced:
        attrs = {
            "axes": [axis for axis, _ in sliced],
            "starts": [_start(s) for _, s in sliced],
            "ends": [_end(s) for _, s in sliced],
            "steps": [1 if s.step is None else int(s.step) for _, s in sliced],
        }
        ops.append(("slice", (), attrs))
    for axis, position in reversed(single):  # the last axis first: gather removes its axis
        if position < 0:
            position += size(axis)
        ops.append(("gather", (np.array(position, np.int64),), {"axis": axis}))
    for axis, positions in many:
        if (positions < 0).any() and isinstance(n := size(axis), int):
            positions = np.where(positions < 0, positions + n, positions)
        gone = sum(at < axis for at, _ in single)
        ops.append(("gather", (positions,), {"axis": axis - gone} if axis > gone else {}))
        squeezed = [at + (positions.ndim - 1) * (at > axis) for at in squeezed]
    if squeezed:
        ops.append(("squeeze", (), {"axes": squeezed}))
    if new:
        ops.append(("unsqueeze", (), {"axes": new}))
    return ops


def _positions(given: Any) -> np.ndarray:
    """The array of a list of positions. Raises TypeError unless they are integers."""
    positions = np.asarray(given)
    if positions.dtype.kind not in "iu":
        raise TypeError(
            f"cannot index with an array of {positions.dtype}, only with integers; "
            "for a mask use masked_select or where"
        )
    return positions


def _check_order(items: list[Any]) -> None:
    """Raises TypeError for two arrays, and for an array apart from an integer, whose axes numpy would move."""
    arrays = [i for i, each in enumerate(items) if isinstance(each, np.ndarray | list)]
    if len(arrays) > 1:
        raise TypeError("cannot index with two arrays at once: index with one after the other, or use gather_nd")
    chosen = [i for i, each in enumerate(items) if i in arrays or isinstance(each, int | np.integer)]
    if arrays and chosen[-1] - chosen[0] >= len(chosen):
        raise TypeError("cannot index with an array and an integer apart from it: write x[...][...]")


def _start(s: slice) -> int:
    backwards = s.step is not None and s.step < 0
    return (LAST if backwards else 0) if s.start is None else int(s.start)


def _end(s: slice) -> int:
    backwards = s.step is not None and s.step < 0
    return (-LAST - 1 if backwards else LAST) if s.stop is None else int(s.stop)
