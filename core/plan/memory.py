"""The memory of a plan: roots, and the arrays that are views of them.

A root is a piece of memory; it holds no address, but says how its address is found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from core.ops.common.types import as_dtype

__all__ = ["Place", "Root", "Stack", "View", "bytes_of", "contiguous", "is_matrix"]

Place = Literal["arena", "given", "carried", "element", "constant", "none"]


def bytes_of(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * as_dtype(dtype).itemsize


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """A piece of memory of `nbytes` bytes.

    place: "arena"   the arena map has its offset.
           "given"   an array that the caller passes.
           "carried" a state of a loop, whose address changes from trip to trip.
           "element" memory of one trip: an element of a stack that a loop records or reads, or the part of one trip in
                     memory for several.
           "constant" part of the generated code; nothing writes it.
           "none"    no memory; only the strides of its views count.
    name:  of the variable, for debugging.
    data:  the bytes of a constant.
    """

    nbytes: int
    place: Place = "arena"
    name: str = ""
    data: bytes = b""

    def __repr__(self) -> str:
        return f"<{self.place} {self.name or hex(id(self))[-5:]} {self.nbytes}>"


@dataclass(frozen=True, slots=True)
class View:
    """An array in memory. strides and offset count elements."""

    root: Root
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a row-major array."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


def is_matrix(view: View) -> bool:
    """Whether the last two axes are matrices by rows or by columns that have no gaps inside and do not overlap."""
    (rows, columns), (down, along) = view.shape[-2:], view.strides[-2:]
    return _has_lines(rows, columns, down, along) or _has_lines(columns, rows, along, down)


def _has_lines(count: int, length: int, step: int, along: int) -> bool:
    """Whether lines of adjacent elements, as far apart as their length or more, follow each other."""
    return (length == 1 or along == 1) and (count == 1 or step >= length)


@dataclass(slots=True, eq=False)
class Stack:
    """Memory in which a loop records one value: slots of equal size, whose number only the run determines.

    kept: whether the slots of one run of the loop outlive the next run, because an outer loop records the stack.
    """

    slot_bytes: int
    kept: bool = False
