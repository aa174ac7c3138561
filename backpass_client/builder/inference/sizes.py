"""Arithmetic with sizes, some of which are names or unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from backpass_client.builder.types import FLOATS, INTEGERS, DtypesDiffer, InvalidOp, Size, Type, same_sizes

__all__ = [
    "as_axes",
    "as_axis",
    "broadcast",
    "broadcast_sizes",
    "changed",
    "floats",
    "integers",
    "product",
    "same_dtype",
    "same_size",
    "total",
    "without",
]


def broadcast_sizes(*shapes: Sequence[Size]) -> tuple[Size, ...]:
    """The shape that NumPy's broadcasting gives. A named size fits itself and 1. Raises InvalidOp."""
    rank = max(map(len, shapes), default=0)
    out: list[Size] = [1] * rank
    for shape in shapes:
        for i, n in enumerate(shape, start=rank - len(shape)):
            if out[i] == 1 or out[i] is None:
                out[i] = out[i] if out[i] is None and n == 1 else n
            elif n not in (1, None, out[i]):
                raise InvalidOp(f"sizes {out[i]} and {n} do not broadcast")
    return tuple(out)


def same_dtype(*types: Type) -> str:
    """The dtype of all `types`. Raises InvalidOp if they differ, NotKnown if one is unknown."""
    known = {each.dtype for each in types} - {None}
    if len(known) > 1:
        raise DtypesDiffer(f"dtypes differ: {' and '.join(sorted(map(str, known)))}; bp.cast(x, dtype=...) converts")
    return next((each.kind for each in types if each.dtype is not None), None) or types[0].kind


def broadcast(*types: Type, axis: int | None = None) -> Type:
    """The type of an elementwise op that keeps its dtype.

    axis: of the first operand, at which the second one begins; that one is then no larger.
    """
    if axis is not None:
        return Type(same_dtype(*types), types[0].dims)
    return Type(same_dtype(*types), broadcast_sizes(*(each.dims for each in types)))


def floats(*types: Type) -> None:
    """Raises InvalidOp unless all are floating-point."""
    for each in types:
        if each.dtype is not None and each.dtype not in FLOATS:
            raise InvalidOp(f"needs floating-point operands, not {each}; bp.cast(x, dtype=...) converts")


def integers(*types: Type) -> None:
    """Raises InvalidOp unless all are integers."""
    for each in types:
        if each.dtype is not None and each.dtype not in INTEGERS:
            raise InvalidOp(f"needs integers, not {each}; bp.cast(x, dtype='int64') converts")


def as_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front. Raises InvalidOp if it is out of range."""
    if not -rank <= axis < rank:
        raise InvalidOp(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def as_axes(axes: Iterable[int] | None, rank: int) -> tuple[int, ...]:
    """`axes` counted from the front, sorted; None means all. Raises InvalidOp for duplicates."""
    if axes is None:
        return tuple(range(rank))
    given = list(axes)
    found = sorted(as_axis(axis, rank) for axis in given)
    if len(set(found)) < len(found):
        raise InvalidOp(f"axes must differ, not {given}")
    return tuple(found)


def same_size(a: Size, b: Size, what: str) -> Size:
    """The size that a and b must both be. Raises InvalidOp if they differ."""
    if not same_sizes(a, b):
        raise InvalidOp(f"{what}: {a} and {b}")
    return b if a is None else a


def total(sizes: Iterable[Size]) -> Size:
    """The sum: None if more than one open size contributes, or one and a number."""
    parts = [n for n in sizes if n != 0]
    if all(isinstance(n, int) for n in parts):
        return sum(n for n in parts if isinstance(n, int))
    return parts[0] if len(parts) == 1 else None


def product(sizes: Iterable[Size]) -> Size:
    """The product: a name if all other sizes are 1, None if it is not known."""
    factors = [n for n in sizes if n != 1]
    if 0 in factors:
        return 0
    if all(isinstance(n, int) for n in factors):
        found = 1
        for n in factors:
            found *= n if isinstance(n, int) else 1
        return found
    return factors[0] if len(factors) == 1 else None


def changed(size: Size, by: Callable[..., int], *numbers: float) -> Size:
    """``by(size, *numbers)`` for a size that is a number, else None. Raises InvalidOp for a result below 0."""
    if not isinstance(size, int):
        return None
    found = by(size, *numbers)
    if found < 0:
        raise InvalidOp(f"the result would have a size of {found}")
    return found


def without(shape: Sequence[Size], axes: Iterable[int], keepdims: bool = False) -> tuple[Size, ...]:
    """`shape` with `axes`, counted from the front, removed or, with `keepdims`, of size 1."""
    gone = set(axes)
    return tuple(1 if i in gone else n for i, n in enumerate(shape) if keepdims or i not in gone)
