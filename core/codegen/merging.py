"""Rows merged by their numbers (see `core.plan.merge_specs`).

The numbers are sorted digit by digit from the lowest, in words that also hold the place of the id. The sums are then
independent of each other: each adds its rows in the order of their ids, in registers.
"""

from __future__ import annotations

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.module import Module
from core.codegen.vector_slices import fill_zeros, for_each_block, lanes_for, mask, slices_of
from core.ir.precision import HALVES
from core.plan.merge_specs import MergedRows, RowOrder

__all__ = ["add_up", "merge_rows", "order_scratch", "places_of", "row_order"]

DIGIT = 10
"""Most bits of a digit. The counters of two digits must stay in the nearest cache."""

PLACE = 32
"""Bits of a word that hold the place; the number of the row is above them."""

VECTORS = 8
"""Most vectors of a row that are added up together."""


def order_scratch(spec: RowOrder) -> int:
    """Bytes: words, before and after a pass; a counter for each value of each digit."""
    return 16 * spec.count + 8 * len(_digits(spec)) * (1 << _bits(spec))


def _bits(spec: RowOrder) -> int:
    """Bits of a digit."""
    total = max((spec.size - 1).bit_length(), 1)
    return -(-total // -(-total // DIGIT))


def _digits(spec: RowOrder) -> range:
    """The lowest bit of each digit."""
    return range(0, max((spec.size - 1).bit_length(), 1), _bits(spec))


def row_order(_: Module, f: Function, spec: RowOrder) -> None:
    """``(ids, [kept,] order, rows, starts, count)``; one unit."""
    scratch = f.param("scratch")
    words = [f.at(scratch, I64(8 * spec.count * i), "uint8") for i in range(2)]
    buckets = 1 << _bits(spec)
    counters = [f.at(scratch, I64(16 * spec.count + 8 * buckets * i), "uint8") for i in range(len(_digits(spec)))]
    f.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    f.do(f"call void @llvm.memset.p0.i64({counters[0]}, i8 0, i64 {8 * buckets * len(counters)}, i1 false)")
    total = _read(f, spec, words[0], counters)
    for each in counters:
        _accumulate(f, each, buckets)
    for i, (shift, each) in enumerate(zip(_digits(spec), counters, strict=True)):
        with f.loop(I64(0), total, polls=True) as at:
            word = f.load(f.at(words[i % 2], at, "int64"), "int64")
            counter = f.at(each, _digit(f, word, PLACE + shift, buckets), "int64")
            place = f.load(counter, "int64")
            f.store(f.binary("add", place, I64(1)), counter)
            f.store(word, f.at(words[1 - i % 2], place, "int64"))
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
        one = f.convert(keeps, "int64")
        at = f.read(total, "int64")
        f.store(f.binary("or", f.binary("shl", row, I64(PLACE)), i), f.at(words, at, "int64"))
        f.write(f.binary("add", at, one), total)
        for shift, each in zip(_digits(spec), counters, strict=True):
            counter = f.at(each, _digit(f, row, shift, 1 << _bits(spec)), "int64")
            f.store(f.binary("add", f.load(counter, "int64"), one), counter)
    with f.when(f.read(wrong, "bool")):
        fail(f, f.param("error"), f.param("check"))
    return f.read(total, "int64")


def _digit(f: Function, word: IRValue, shift: int, buckets: int) -> IRValue:
    return f.binary("and", f.binary("lshr", word, I64(shift)), I64(buckets - 1))


def _accumulate(f: Function, counters: IRValue, buckets: int) -> None:
    """Replace each counter by the sum of those before it."""
    total = f.slot("int64")
    f.write(I64(0), total)
    with f.loop(I64(0), I64(buckets)) as i:
        at = f.at(counters, i, "int64")
        many, before = f.load(at, "int64"), f.read(total, "int64")
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
        word = f.load(f.at(words, i, "int64"), "int64")
        row = f.binary("lshr", word, I64(PLACE))
        f.store(f.convert(word, "int32"), f.at(f.param("order"), i, "int32"))
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
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        places = places_of(f, f.param("starts"), unit)
        target = f.at(f.param("out"), f.op(f"mul nsw {unit}, {spec.inner}", "int64"), spec.dtype)
        add_up(f, spec.dtype, spec.inner, f.param("x"), f.param("order"), places, target)


def places_of(f: Function, starts: IRValue, unit: IRValue) -> tuple[IRValue, IRValue]:
    """The first place of a row in the order, and the place after its last one."""
    first, last = (f.load(f.at(starts, f.binary("add", unit, I64(i)), "int32"), "int32") for i in (0, 1))
    return f.convert(first, "int64"), f.convert(last, "int64")


def add_up(
    f: Function, dtype: str, inner: int, x: IRValue, order: IRValue, places: tuple[IRValue, IRValue], target: IRValue
) -> None:
    """Write the sum of rows of `inner` elements to `target`: those of `x` at the `places` of `order`, first to last."""
    width = lanes_for(dtype, inner)
    wide = "float32" if dtype in HALVES else dtype

    def block(start: IRValue, size: int) -> None:
        """Elements `start` to `start + size`, in registers."""
        parts = slices_of(size, width)
        masks = [mask(part.count, width) if width > 1 else None for part in parts]
        sums = [f.slot(wide, width) for _ in parts]
        for each in sums:
            f.write(f.splat(literal(0, wide), width), each)
        with f.loop(*places, polls=True) as i:
            place = f.convert(f.load(f.at(order, i, "int32"), "int32"), "int64")
            source = f.at(f.at(x, f.op(f"mul nsw {place}, {inner}", "int64"), dtype), start, dtype)
            for part, held, each in zip(parts, masks, sums, strict=True):
                found = f.convert(f.load(f.at(source, I64(part.start), dtype), dtype, width, held), wide)
                added = f.read(each, wide, width)
                f.write(f.binary("fadd" if found.is_float else "add", added, found), each)
        for part, held, each in zip(parts, masks, sums, strict=True):
            at = f.at(f.at(target, start, dtype), I64(part.start), dtype)
            f.store(f.convert(f.read(each, wide, width), dtype), at, held)

    for_each_block(f, inner, VECTORS * width, block)
