"""Rows merged by their numbers (see `core.plan.merge_specs`).

The numbers are sorted digit by digit from the lowest, in words that also hold the place of the id. The sums are then
independent of each other: each adds its rows in the order of their ids, in registers, and many rows in blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from core.codegen.block_sums import in_blocks
from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.module import Module
from core.codegen.operands import RowSlice
from core.codegen.vector_slices import fill_zeros, for_each_block, lanes_for, slices_of
from core.ir.precision import HALVES
from core.ops.common.scatter_rows import rows_in_block
from core.plan.merge_specs import MergedRows, RowOrder

__all__ = ["RowParts", "add_up", "merge_rows", "order_scratch", "places_of", "row_order", "rows_at_once", "stored_rows"]

DIGIT = 10
"""Most bits of a digit. The counters of two digits must stay in the nearest cache."""

COUNTER = "int32"
"""The type of a counter of a digit: less memory, so that more of the words stay in the nearest cache."""

VECTORS = 8
"""Most vectors of a row that are added up together."""


def order_scratch(spec: RowOrder) -> int:
    """Bytes: words, before and after a pass; a counter for each value of each digit."""
    return 2 * _words_bytes(spec) + itemsize(COUNTER) * len(_digits(spec)) * (1 << _bits(spec))


def _words_bytes(spec: RowOrder) -> int:
    """Bytes of all words, a multiple of those of a counter."""
    return itemsize(_word(spec)) * spec.count


def _word(spec: RowOrder) -> str:
    """The type of a word: the number of a row above the place of an id."""
    return "uint32" if _place_bits(spec) + _row_bits(spec) <= 32 else "uint64"


def _place_bits(spec: RowOrder) -> int:
    return (spec.count - 1).bit_length()


def _row_bits(spec: RowOrder) -> int:
    return max((spec.size - 1).bit_length(), 1)


def _bits(spec: RowOrder) -> int:
    """Bits of a digit."""
    total = _row_bits(spec)
    return -(-total // -(-total // DIGIT))


def _digits(spec: RowOrder) -> range:
    """The lowest bit of each digit."""
    return range(0, _row_bits(spec), _bits(spec))


def row_order(_: Module, f: Function, spec: RowOrder) -> None:
    """``(ids, [kept,] order, rows, starts, count)``; one unit."""
    scratch, dtype, room = f.param("scratch"), _word(spec), _words_bytes(spec)
    words = [f.at(scratch, I64(room * i), "uint8") for i in range(2)]
    buckets = 1 << _bits(spec)
    every = f.at(scratch, I64(2 * room), "uint8")
    counters = [f.at(every, I64(buckets * i), COUNTER) for i in range(len(_digits(spec)))]
    fill_zeros(f, every, buckets * len(counters), COUNTER)
    total = _read(f, spec, words[0], counters)
    for each in counters:
        _accumulate(f, each, buckets)
    for i, (shift, each) in enumerate(zip(_digits(spec), counters, strict=True)):
        with f.loop(I64(0), total, polls=True) as at:
            word = f.load(f.at(words[i % 2], at, dtype), dtype)
            counter = f.at(each, _digit(f, f.convert(word, "int64"), _place_bits(spec) + shift, buckets), COUNTER)
            place = f.load(counter, COUNTER)
            f.store(f.binary("add", place, literal(1, COUNTER)), counter)
            f.store(word, f.at(words[1 - i % 2], f.convert(place, "int64"), dtype))
    _put(f, spec, words[len(counters) % 2], total)


def _read(f: Function, spec: RowOrder, words: IRValue, counters: list[IRValue]) -> IRValue:
    """Write the words of the ids that are kept, and count their digits; the number of words."""
    total, wrong = f.slot("int64"), f.slot("bool")
    f.write(I64(0), total)
    f.write(literal(False, "bool"), wrong)
    with f.loop(I64(0), I64(spec.count), polls=True) as i:
        raw = f.convert(f.load(f.at(f.param("ids"), i, spec.dtype), spec.dtype), "int64")
        counted = f.select(f.compare("icmp slt", raw, I64(0)), f.binary("add", raw, I64(spec.size)), raw)
        fine = f.compare("icmp ult", counted, I64(spec.size))
        keeps = literal(True, "bool")
        if spec.kept:
            keeps = f.load(f.at(f.param("kept"), i, "bool"), "bool")
        out = f.binary("and", keeps, f.binary("xor", fine, literal(True, "bool")))
        f.write(f.binary("or", f.read(wrong, "bool"), out), wrong)
        row = f.select(fine, counted, I64(0))
        if spec.padding >= 0:
            keeps = f.binary("and", keeps, f.compare("icmp ne", row, I64(spec.padding)))
        at = f.read(total, "int64")
        word = f.binary("or", f.binary("shl", row, I64(_place_bits(spec))), i)
        f.store(f.convert(word, _word(spec)), f.at(words, at, _word(spec)))
        f.write(f.binary("add", at, f.convert(keeps, "int64")), total)
        for shift, each in zip(_digits(spec), counters, strict=True):
            counter = f.at(each, _digit(f, row, shift, 1 << _bits(spec)), COUNTER)
            f.store(f.binary("add", f.load(counter, COUNTER), f.convert(keeps, COUNTER)), counter)
    with f.when(f.read(wrong, "bool")):
        fail(f, f.param("error"), f.param("check"))
    return f.read(total, "int64")


def _digit(f: Function, word: IRValue, shift: int, buckets: int) -> IRValue:
    return f.binary("and", f.binary("lshr", word, I64(shift)), I64(buckets - 1))


def _accumulate(f: Function, counters: IRValue, buckets: int) -> None:
    """Replace each counter by the sum of those before it."""
    total = f.slot(COUNTER)
    f.write(literal(0, COUNTER), total)
    with f.loop(I64(0), I64(buckets)) as i:
        at = f.at(counters, i, COUNTER)
        many, before = f.load(at, COUNTER), f.read(total, COUNTER)
        f.store(before, at)
        f.write(f.binary("add", before, many), total)


def _put(f: Function, spec: RowOrder, words: IRValue, total: IRValue) -> None:
    """Write the results from the sorted words. The last id of a row writes the end of its places."""
    count, before = f.slot("int64"), f.slot("int64")
    f.write(I64(0), count)
    f.write(I64(-1), before)
    starts = f.param("starts")
    f.store(literal(0, "int32"), starts)
    with f.loop(I64(0), total, polls=True) as i:
        word = f.convert(f.load(f.at(words, i, _word(spec)), _word(spec)), "int64")
        row = f.binary("lshr", word, I64(_place_bits(spec)))
        place = f.binary("and", word, I64((1 << _place_bits(spec)) - 1))
        f.store(f.convert(place, "int32"), f.at(f.param("order"), i, "int32"))
        differs = f.compare("icmp ne", row, f.read(before, "int64"))
        f.write(row, before)
        number = f.binary("add", f.read(count, "int64"), f.convert(differs, "int64"))
        f.write(number, count)
        f.store(row, f.at(f.param("rows"), f.binary("sub", number, I64(1)), "int64"))
        f.store(f.convert(f.binary("add", i, I64(1)), "int32"), f.at(starts, number, "int32"))
    found = f.read(count, "int64")
    f.store(found, f.param("count"))
    with f.loop(found, I64(spec.room), polls=True) as i:
        f.store(I64(0), f.at(f.param("rows"), i, "int64"))
        f.store(f.convert(total, "int32"), f.at(starts, f.binary("add", i, I64(1)), "int32"))
    if f.stop is not None:  # a sort that was cut short leaves no places that later kernels could use
        with f.when(f.binary("xor", f.goes_on(), literal(True, "bool"))):
            f.store(I64(0), f.param("count"))
            fill_zeros(f, f.param("rows"), spec.room, "int64")
            fill_zeros(f, starts, spec.room + 1, "int32")


def merge_rows(_: Module, f: Function, spec: MergedRows) -> None:
    """``(x, order, starts, out)``; a unit is a sum."""
    rows = stored_rows(f, f.param("x"), spec.dtype, spec.inner)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        places = places_of(f, f.param("starts"), unit)
        target = f.at(f.param("out"), f.op(f"mul nsw {unit}, {spec.inner}", "int64"), spec.dtype)
        add_up(f, spec.dtype, spec.inner, rows, f.param("order"), places, target, rows_at_once(spec))


def rows_at_once(spec: MergedRows) -> int | None:
    """The rows of a sum that are added one after another, before they are added to those before; None for all."""
    wide = "float32" if spec.dtype in HALVES else spec.dtype
    block = rows_in_block(wide, spec.count, spec.room)
    return block if block < spec.count else None


def places_of(f: Function, starts: IRValue, unit: IRValue) -> tuple[IRValue, IRValue]:
    """The first place of a row in the order, and the place after its last one."""
    first, last = (f.load(f.at(starts, f.binary("add", unit, I64(i)), "int32"), "int32") for i in (0, 1))
    return f.convert(first, "int64"), f.convert(last, "int64")


RowParts = Callable[[IRValue, list[RowSlice]], list[IRValue]]
"""``rows(number, slices)``: these slices of the row with this number."""


def stored_rows(f: Function, x: IRValue, dtype: str, inner: int) -> RowParts:
    """The rows of the array x [count, inner]."""

    def rows(number: IRValue, slices: list[RowSlice]) -> list[IRValue]:
        row = f.at(x, f.op(f"mul nsw {number}, {inner}", "int64"), dtype)
        return [f.load(f.at(row, each.start, dtype), dtype, each.lanes, each.mask) for each in slices]

    return rows


def add_up(
    f: Function,
    dtype: str,
    inner: int,
    rows: RowParts,
    order: IRValue,
    places: tuple[IRValue, IRValue],
    target: IRValue,
    at_once: int | None,
) -> None:
    """Write the sum of rows of `inner` elements to `target`: those at the `places` of `order`, first to last.

    at_once: see `rows_at_once`.
    """
    width = lanes_for(dtype, inner)
    wide = "float32" if dtype in HALVES else dtype

    def block(start: IRValue, size: int) -> None:
        """Elements `start` to `start + size`, in registers."""
        slices = [
            RowSlice(f.binary("add", start, I64(part.start)), width, part.count) for part in slices_of(size, width)
        ]
        sums = [f.slot(wide, width) for _ in slices]
        for each in sums:
            f.write(f.splat(literal(0, wide), width), each)

        def add(some: tuple[IRValue, IRValue]) -> None:
            with f.loop(*some, polls=True) as i:
                number = f.convert(f.load(f.at(order, i, "int32"), "int32"), "int64")
                for found, each in zip(rows(number, slices), sums, strict=True):
                    added = f.read(each, wide, width)
                    f.write(f.binary("fadd" if added.is_float else "add", added, f.convert(found, wide)), each)

        in_blocks(f, places, at_once, sums, width, add)
        for part, each in zip(slices, sums, strict=True):
            f.store(f.convert(f.read(each, wide, width), dtype), f.at(target, part.start, dtype), part.mask)

    for_each_block(f, inner, VECTORS * width, block)
