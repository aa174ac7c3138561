"""Open sizes as numbers, and slices whose bounds only the run knows, such as ``table[: x.shape[1]]``."""

from __future__ import annotations

from operator import index as as_int
from typing import TYPE_CHECKING, Any

from backpass_client.builder.blocks import Ref
from backpass_client.builder.types import InvalidOp
from backpass_client.indexing import LAST

if TYPE_CHECKING:
    from backpass_client.builder.build import Builder
    from backpass_client.builder.symbol import Symbol

__all__ = ["open_size", "with_open_slices"]


def with_open_slices(x: Symbol, index: Any) -> tuple[Symbol, Any]:
    """(`x` without what the open slices of `index` leave out, the rest of the index).

    A slice is open if a bound is a symbol, which holds one integer, or the name of an open size. Raises InvalidOp for
    other symbols, and for a name that no feed has.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    if not any(map(_is_open, items)):
        return x, index
    used = sum(each is not None and each is not Ellipsis for each in items)
    axis, part = 0, x
    for i, each in enumerate(items):
        if _is_open(each):
            items[i] = slice(None)
            part = _sliced(part, axis, each)
        axis += 0 if each is None else x.ndim - used if each is Ellipsis else 1
    return part, tuple(items)


def open_size(b: Builder, name: str) -> Symbol:
    """The size `name` as an integer, int64 [1]. Raises InvalidOp if no feed has it."""
    for leaf in b.leaves.values():
        found: Any = leaf.ref
        sizes = found.type.shape or ()
        if name in sizes:
            at = sizes.index(name)
            size: Symbol = found._op("shape")._op("slice", axes=[0], starts=[at], ends=[at + 1])
            return size
    raise InvalidOp(f"no feed has a size {str(name)!r}; a text among operands is the name of one")


def _is_open(item: Any) -> bool:
    return isinstance(item, slice) and any(isinstance(bound, str | Ref) for bound in (item.start, item.stop))


def _sliced(x: Symbol, axis: int, part: slice) -> Symbol:
    step = 1 if part.step is None else as_int(part.step)
    start = _position(x, LAST if step < 0 else 0) if part.start is None else _position(x, part.start)
    end = _position(x, -LAST - 1 if step < 0 else LAST) if part.stop is None else _position(x, part.stop)
    shape = [size if isinstance(size, int) and i != axis else -1 for i, size in enumerate(x.shape)]
    found: Symbol = x._op("dynamic_slice", start, end, [step], axes=[axis], shape=shape)
    return found


def _position(x: Symbol, bound: Any) -> Any:
    """A bound as an operand of dynamic_slice, int64 [1]."""
    if isinstance(bound, str):
        return open_size(x.builder, bound)
    if not isinstance(bound, Ref):
        return [as_int(bound)]
    symbol: Any = bound
    if not str(bound.type.dtype or "int").startswith(("int", "uint")) or bound.type.shape not in (None, (), (1,)):
        raise InvalidOp(f"a bound of a slice is one integer, not {bound.name.text}={bound.type}")
    return symbol._op("cast", dtype="int64")._op("reshape", shape=[1])
