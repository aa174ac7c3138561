"""Helpers of the type rules of ops: shapes with unknown sizes, and how they combine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from core.ir import StackType, TensorType, Type
from core.ir.errors import ProgramError, TypeMismatch

__all__ = [
    "as_dtype",
    "axes_of",
    "axis_of",
    "broadcast",
    "broadcast_shapes",
    "byte_size",
    "element_of",
    "fits",
    "floating",
    "holds",
    "joined_type",
    "matches",
    "product",
    "same",
    "same_dtype",
    "same_size",
    "widened",
    "widened_sizes",
    "working_dtype",
]


REMEMBERED = 4096
"""Number of types whose size is cached: a program has few types, and many variables of each."""


def matches(given: Type, wanted: Type) -> bool:
    """Whether a value of type `given` may be used where `wanted` is declared; an unknown size fits any size."""
    if isinstance(given, StackType) and isinstance(wanted, StackType):
        return given.depth == wanted.depth and matches(given.array, wanted.array)
    if isinstance(given, StackType) or isinstance(wanted, StackType):
        return False
    return (
        given.dtype == wanted.dtype
        and len(given.shape) == len(wanted.shape)
        and all(g == w or -1 in (g, w) for g, w in zip(given.shape, wanted.shape, strict=True))
    )


def holds(wide: Type, given: Type) -> bool:
    """Whether every value of type `given` is one of type `wide`: a size that `wide` knows is known in `given` too."""
    if isinstance(wide, StackType) and isinstance(given, StackType):
        return wide.depth == given.depth and holds(wide.array, given.array)
    if isinstance(wide, StackType) or isinstance(given, StackType):
        return False
    return (
        wide.dtype == given.dtype
        and len(wide.shape) == len(given.shape)
        and all(w in (-1, g) for w, g in zip(wide.shape, given.shape, strict=True))
    )


def joined_type(a: Type, b: Type, code: str, message: str) -> Type:
    """The narrowest type that both fit: sizes in which they differ become unknown.

    Raises ProgramError with `code` if dtype, rank or kind differ.
    """
    if isinstance(a, StackType) and isinstance(b, StackType):
        return StackType(joined_type(a.element, b.element, code, message))
    if isinstance(a, StackType) or isinstance(b, StackType) or a.dtype != b.dtype or len(a.shape) != len(b.shape):
        raise ProgramError(f"{message}: {a} and {b}", code)
    if a == b:
        return a
    return TensorType(tuple(m if m == n else -1 for m, n in zip(a.shape, b.shape, strict=True)), a.dtype)


def widened_sizes(narrow: Sequence[Type], wide: Sequence[Type]) -> bool:
    """Whether each of the types `wide` is the one in `narrow`, perhaps with sizes that became unknown."""
    try:
        return all(a == b or joined_type(a, b, "", "") == b for a, b in zip(narrow, wide, strict=True))
    except ProgramError:
        return False


def same_dtype(*types: TensorType) -> str:
    """The one dtype of all `types`. Raises TypeMismatch: nothing is converted silently."""
    first = types[0].dtype
    for each in types:
        if each.dtype != first:
            raise TypeMismatch(f"dtypes differ: {' and '.join(map(str, types))}", "dtype_mismatch")
    return first


def same_size(m: int, n: int, what: str) -> int:
    """The size that m and n must both be, from whichever is known. Raises TypeMismatch if both are known and differ."""
    if m == n or n == -1:
        return m
    if m == -1:
        return n
    raise TypeMismatch(f"{what}: {m} and {n}", "shape_mismatch")


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that NumPy's broadcasting gives. An unknown size meets a known one above 1 as that size, or as 1."""
    rank = max(map(len, shapes))
    out = [1] * rank
    for shape in shapes:
        for i, n in enumerate(shape, start=rank - len(shape)):
            if out[i] == 1:
                out[i] = n
            elif out[i] == -1:
                out[i] = n if n not in (1, -1) else -1
            elif n not in (1, -1, out[i]):
                listed = " and ".join(str(list(s)) for s in shapes)
                raise TypeMismatch(f"shapes do not broadcast: {listed}", "shape_mismatch")
    return tuple(out)


def fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether an array of `shape` can be broadcast to `wanted`. An unknown size fits any size."""
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(m in (1, -1, n) or n == -1 for m, n in pairs)


def broadcast(*types: TensorType) -> TensorType:
    return TensorType(broadcast_shapes(*(t.shape for t in types)), same_dtype(*types))


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    """`axis` counted from the front. Raises ProgramError (bad_attr) if it is out of range."""
    if not -rank <= axis < rank:
        raise ProgramError(f"{what} {axis} is out of range for rank {rank}", "bad_attr")
    return axis % rank


def axes_of(axes: Iterable[int] | None, rank: int) -> tuple[int, ...]:
    """`axes` counted from the front and sorted; None means all. Raises ProgramError (bad_attr) for duplicates."""
    if axes is None:
        return tuple(range(rank))
    out = sorted(axis_of(a, rank) for a in axes)
    if len(set(out)) < len(out):
        raise ProgramError(f"axes must differ, not {list(axes)}", "bad_attr")
    return tuple(out)


def product(sizes: Iterable[int]) -> int:
    """The product of the sizes; -1 if a size is unknown and no size is 0."""
    total, unknown = 1, False
    for n in sizes:
        if n == -1:
            unknown = True
        else:
            total *= n
    return -1 if unknown and total else total


def element_of(type: Type) -> TensorType:
    """`type`, or for a stack, however deep, the type of its arrays."""
    return type.array if isinstance(type, StackType) else type


@lru_cache(REMEMBERED)
def byte_size(type: Type) -> int:
    """The bytes of an array of `type`. An unknown size counts as 1, and a stack as one element."""
    type = element_of(type)
    width = 1 if type.dtype == "bool" else as_dtype(type.dtype).itemsize
    return width * math.prod(max(n, 0 if n == 0 else 1) for n in type.shape)


def same(x: Type, **attrs: object) -> Type:
    """Type rule of an op that keeps shape and dtype."""
    return x


def floating(x: TensorType, **attrs: object) -> TensorType:
    """Type rule of an op on floats that keeps shape and dtype. Raises ProgramError (dtype_mismatch)."""
    if not x.is_float:
        raise ProgramError(f"needs a floating-point input, not {x}", "dtype_mismatch")
    return x


def working_dtype(x: Any) -> np.dtype:
    """The dtype in which kernels compute and add up elements of x: float32 for 16-bit floats, else its own."""
    return np.dtype("float32") if x.dtype.kind in "fV" and x.dtype.itemsize == 2 else x.dtype


def widened(x: Any) -> Any:
    """x in the dtype of `working_dtype`; the array itself if it has that already. Widening is exact and keeps order."""
    return x.astype(working_dtype(x), copy=False)


@lru_cache(64)
def as_dtype(name: str) -> np.dtype:
    """The NumPy dtype called `name`; bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
