"""``x[...]`` as a list of ops: one `slice`, then `gather` for positions, then one `unsqueeze`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import index as as_int
from typing import Any, Protocol, cast

import numpy as np

__all__ = ["index_ops"]

LAST = 2**31 - 1

OpCall = tuple[str, tuple[Any, ...], dict[str, Any]]
"""(type, inputs after the first one, attributes)."""


class Positions(Protocol):
    """An array of integers, or an expression or symbol of them."""

    @property
    def ndim(self) -> int: ...


def index_ops(
    index: Any,
    ndim: Callable[[], int],
    size: Callable[[int], Any],
    fixed: bool = False,
    *,
    rank: int | None = None,
    operand: type = np.ndarray,
) -> list[OpCall]:
    """The ops that index an array, in order; each takes the output of the one before as its first input.

    index:      integers, slices, `...` and None as in numpy, and one list, array or `operand` of integers. The axes of
                an array of positions come first if anything separates it from an integer, as in numpy.
    ndim, size: the rank of the array, and its size on an axis (no integer if it is open). They are functions because
                the answer may cost a request; only negative positions need the size.
    fixed:      whether sizes cost nothing and integer positions become attributes of a slice. By default positions are
                passed as values, so that tapes that differ in a position share one compiled structure.
    rank:       the rank where it is known without a request.
    operand:    the class of values that may hold positions.
    Raises IndexError for a position or axis that the array does not have, ValueError for a slice of step 0, and
    TypeError for any other index.
    """
    parts = _read(index, ndim, rank, operand)
    single = [(axis, _checked(np.array(n), axis, size, fixed or n < 0).item()) for axis, n in parts.single]
    sliced = list(parts.sliced)
    if fixed:
        sliced += [(axis, slice(n, None if n == -1 else n + 1)) for axis, n in single]
    ops: list[OpCall] = []
    if sliced:
        ops.append(("slice", (), _bounds(sliced)))
    if fixed and single:
        ops.append(("squeeze", (), {"axes": [axis for axis, _ in single]}))
    elif single:  # the last axis first: gather removes its axis
        ops += [("gather", (np.array(n, np.int64),), {"axis": axis}) for axis, n in reversed(single)]
    if parts.positions is not None:
        axis, positions = parts.positions
        if isinstance(positions, np.ndarray):
            positions = _checked(positions, axis, size, fixed or bool((positions < 0).any()))
        at = axis - sum(each < axis for each, _ in single)
        ops.append(("gather", (positions,), {"axis": at} if at else {}))
        if parts.comes_first and at and positions.ndim:
            front = range(at, at + positions.ndim)
            count = (ndim() if parts.rank is None else parts.rank) - len(single) - 1 + positions.ndim
            ops.append(("transpose", (), {"axes": [*front, *(i for i in range(count) if i not in front)]}))
    if parts.before or parts.after:
        more = parts.positions[1].ndim if parts.positions is not None and parts.after else 0
        ops.append(("unsqueeze", (), {"axes": [*parts.before, *(at + more for at in parts.after)]}))
    return ops


@dataclass(slots=True)
class _Parts:
    """An index by kind, each item with its axis of the array. rank: of the array, if known.

    positions:   the array of positions, or the value that holds them.
    comes_first: whether the axes of the positions come first in the result.
    before:      places of new axes in front of the positions.
    after:       places of new axes behind the positions, not counting the axes of the positions.
    """

    rank: int | None
    comes_first: bool
    sliced: list[tuple[int, slice]] = field(default_factory=list)
    single: list[tuple[int, int]] = field(default_factory=list)
    positions: tuple[int, Positions] | None = None
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)


def _read(index: Any, ndim: Callable[[], int], rank: int | None, operand: type) -> _Parts:
    """The parts of `index`. Raises TypeError and IndexError."""
    items = list(index) if isinstance(index, tuple) else [index]
    kinds = (int, np.integer, slice, np.ndarray, list, operand)
    for each in items:
        if isinstance(each, bool) or not (each is None or each is Ellipsis or isinstance(each, kinds)):
            raise TypeError(f"cannot index with {each!r} of type {type(each).__name__}")
    many = [i for i, each in enumerate(items) if isinstance(each, np.ndarray | list | operand)]
    if len(many) > 1:
        raise TypeError("cannot index with two arrays at once: index with one after the other, or use gather_nd")
    comes_first = bool(many) and _is_apart(items, many[0])
    items, rank = _without_ellipsis(items, ndim, rank)
    parts = _Parts(rank, comes_first)
    last = sum(each is not None for each in items) - 1
    axis, kept = 0, 0  # of the array; of the result, without the axes of positions
    for each in items:
        if each is None:
            (parts.after if parts.positions is not None or comes_first else parts.before).append(kept)
            kept += 1
            continue
        if isinstance(each, slice):
            if each != slice(None) or (rank is None and axis == last):  # the op checks that the last axis exists
                parts.sliced.append((axis, each))
            kept += 1
        elif isinstance(each, int | np.integer):
            parts.single.append((axis, int(each)))
        else:
            parts.positions = axis, _positions(each) if isinstance(each, np.ndarray | list) else cast(Positions, each)
        axis += 1
    return parts


def _without_ellipsis(items: list[Any], ndim: Callable[[], int], rank: int | None) -> tuple[list[Any], int | None]:
    """(`items` with slices in place of `...`, the rank if it is known). Raises IndexError for more axes than the rank.

    A `...` at the end needs no rank.
    """
    dots = [i for i, each in enumerate(items) if each is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can have only one `...`")
    used = sum(each is not None and each is not Ellipsis for each in items)
    if dots and dots[0] == len(items) - 1:
        items = items[:-1]
    elif dots:
        rank = ndim() if rank is None else rank
        items = [*items[: dots[0]], *[slice(None)] * (rank - used), *items[dots[0] + 1 :]]
    if rank is not None and used > rank:
        raise IndexError(f"too many indices: {used} for an array of rank {rank}")
    return items, rank


def _is_apart(items: list[Any], array: int) -> bool:
    """Whether a slice, `...` or None separates the array `items[array]` from an integer."""
    chosen = [i for i, each in enumerate(items) if i == array or isinstance(each, int | np.integer)]
    return chosen[-1] - chosen[0] >= len(chosen)


def _positions(given: Any) -> np.ndarray:
    """The array of a list of positions. Raises TypeError unless they are integers."""
    positions = np.asarray(given)
    if isinstance(given, list) and not positions.size:
        return positions.astype(np.int64)
    if positions.dtype.kind not in "iu":
        raise TypeError(
            f"cannot index with an array of {positions.dtype}, only with integers; "
            "for a mask use masked_select or where"
        )
    return positions


def _checked(positions: np.ndarray, axis: int, size: Callable[[int], Any], ask: bool) -> np.ndarray:
    """`positions` counted from the front of `axis`; as they are if the size is open or `ask` is False.

    Raises IndexError for a position that the axis does not have.
    """
    n = size(axis) if ask else None
    if not isinstance(n, int):
        return positions
    wrong = positions[(positions < -n) | (positions >= n)]
    if wrong.size:
        raise IndexError(f"position {wrong.flat[0]} is out of range for axis {axis} of size {n}")
    return np.where(positions < 0, positions + n, positions)


def _bounds(sliced: list[tuple[int, slice]]) -> dict[str, list[int]]:
    """The attributes of the op `slice`. Raises ValueError for a step of 0."""
    steps = [1 if s.step is None else as_int(s.step) for _, s in sliced]
    if 0 in steps:
        raise ValueError("the step of a slice must not be 0")
    return {
        "axes": [axis for axis, _ in sliced],
        "starts": [
            (LAST if step < 0 else 0) if s.start is None else as_int(s.start)
            for (_, s), step in zip(sliced, steps, strict=True)
        ],
        "ends": [
            (-LAST - 1 if step < 0 else LAST) if s.stop is None else as_int(s.stop)
            for (_, s), step in zip(sliced, steps, strict=True)
        ],
        "steps": steps,
    }
