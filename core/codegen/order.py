"""Stable sorting of positions (see `core.plan.geometry.Order`)."""

from __future__ import annotations

import math

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.module import Module
from core.codegen.order_row import LANES, Row, is_narrow
from core.codegen.order_selecting import narrow_down, put_kept, room_of_kept, search, smallest_kept
from core.codegen.order_sorting import BUCKETS, put_in_order
from core.plan.geometry import Order

__all__ = ["order", "order_scratch"]

FEW, QUICK = 4, 2**14
"""A row is searched for each of its positions if there are so few of them, or so few words to read in all."""

PER_ELEMENT = 2
"""Words that may be expected to move among the kept ones for each element of a row; with more, none are kept."""


def order_scratch(spec: Order) -> int:
    """Bytes: keys, before and after a pass; positions likewise if a key fills its word; a counter for each byte; the
    kept words."""
    return 8 * (_arrays(spec) * _room(spec) + BUCKETS + (room_of_kept(spec) if _keeps(spec) else 0))


def order(_: Module, f: Function, spec: Order) -> None:
    """``(x, out)``; a unit is a row."""
    words = [f.at(f.param("scratch"), I64(8 * _room(spec) * i), "uint8") for i in range(_arrays(spec))]
    counters = f.at(f.param("scratch"), I64(8 * _room(spec) * len(words)), "uint8")
    kept = f.at(counters, I64(8 * BUCKETS), "uint8")
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        x, out = (_offset(f, spec, unit, n) for n in (spec.size, spec.wanted))
        row = Row(f, spec, x, out, words, counters, kept)
        row.read()
        if _searches(spec):
            search(row)
        elif _keeps(spec):
            f.either(smallest_kept(row), lambda: put_kept(row), lambda: _narrowed(row))
        elif _is_part(spec):
            _narrowed(row)
        else:
            put_in_order(row, I64(spec.size), I64(spec.first))


def _narrowed(row: Row) -> None:
    put_in_order(row, *narrow_down(row))


def _offset(f: Function, spec: Order, unit: IRValue, size: int) -> IRValue:
    """The first element of a row in an array with so many elements in each row."""
    if spec.inner == 1:
        return f.op(f"mul nsw {unit}, {size}", "int64")
    slab = f.op(f"udiv {unit}, {spec.inner}", "int64")
    column = f.op(f"urem {unit}, {spec.inner}", "int64")
    return f.binary("add", f.op(f"mul nsw {slab}, {size * spec.inner}", "int64"), column)


def _searches(spec: Order) -> bool:
    """Whether a row is searched for each position."""
    return _is_start(spec) and (spec.wanted <= FEW or spec.wanted * spec.size <= QUICK)


def _keeps(spec: Order) -> bool:
    """Whether a row keeps the smallest words so far. In random order, element i is one of the k smallest so far with
    probability k / i."""
    if not _is_start(spec) or _searches(spec):
        return False
    return spec.wanted**2 * (1 + math.log(spec.size / spec.wanted)) <= PER_ELEMENT * spec.size


def _is_start(spec: Order) -> bool:
    """Whether the first few positions are wanted, of keys that share a word with them."""
    return _is_part(spec) and spec.first == 0 and is_narrow(spec)


def _is_part(spec: Order) -> bool:
    """Whether few of the positions are wanted."""
    return not spec.last and 4 * spec.wanted <= spec.size


def _arrays(spec: Order) -> int:
    return 2 if is_narrow(spec) else 4


def _room(spec: Order) -> int:
    """Words of one array of keys, whole vectors."""
    return -(-spec.size // LANES) * LANES
