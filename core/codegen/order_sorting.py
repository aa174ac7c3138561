"""The order of some keys of a row (see `core.codegen.order_row`), in their first array.

Few keys count the smaller ones of each, in vectors. Many are sorted by one byte after the other, the lowest one first.
"""

from __future__ import annotations

from core.codegen.llvm import I64, IRValue, itemsize
from core.codegen.order_row import LANES, Row, is_narrow, numbers_from, word

__all__ = ["BUCKETS", "SHORT", "put_in_order"]

SHORT = 128
"""Fewest keys that are sorted by bytes."""

BUCKETS = 256


def put_in_order(row: Row, size: IRValue, first: IRValue) -> None:
    """Write the wanted positions of the order of the first `size` keys; `first` is the number of smaller keys."""
    if row.spec.last:
        _sort(row, size)
        _put_last(row)
        return

    def sort() -> None:
        _sort(row, size)
        with row.f.loop(I64(0), I64(row.spec.wanted), polls=True) as i:
            at = row.f.binary("add", first, i)
            row.put(row.position(row.word(0, at), at), i)

    row.f.either(row.f.compare("icmp slt", size, I64(SHORT)), lambda: _count(row, size, first), sort)


def _count(row: Row, size: IRValue, first: IRValue) -> None:
    """The place of a key is the number of those before it."""
    f, spec = row.f, row.spec
    with f.loop(I64(0), size, LANES) as block:
        own, at = row.vector(block), numbers_from(f, block)
        total = f.slot("uint64", LANES)
        f.write(f.splat(word(0), LANES), total)
        with f.loop(I64(0), size) as j:
            other = row.word(0, j)
            before = f.compare("icmp ugt", own, other)
            if not is_narrow(spec):
                earlier = f.compare("icmp ugt", at, IRValue(j.name, "uint64"))
                before = f.binary("or", before, f.binary("and", f.compare("icmp eq", own, other), earlier))
            one = f.op(f"zext {before} to <{LANES} x i64>", "uint64", LANES)
            f.write(f.binary("add", f.read(total, "uint64", LANES), one), total)
        places = f.slot("uint64", LANES)
        f.write(f.read(total, "uint64", LANES), places)
        with f.loop(I64(0), f.intrinsic("smin", f.binary("sub", size, block), I64(LANES))) as k:
            place = f.binary("sub", f.load(f.at(places, k, "uint64"), "int64"), first)
            with f.when(f.compare("icmp ult", place, I64(spec.wanted))):
                at = f.binary("add", block, k)
                row.put(row.position(row.word(0, at), at), place)


def _sort(row: Row, size: IRValue) -> None:
    """Sort by each byte of the keys; after an even number of passes the keys are where they were."""
    passes = max(itemsize(row.spec.dtype), 2)
    start = 32 if is_narrow(row.spec) else 0
    for i in range(passes):
        _pass(row, size, i % 2, 1 - i % 2, start + 8 * i)


def _pass(row: Row, size: IRValue, source: int, target: int, shift: int) -> None:
    f = row.f

    def counter(key: IRValue) -> IRValue:
        byte = f.binary("and", f.binary("lshr", key, word(shift)), word(BUCKETS - 1))
        return f.at(row.counters, byte, "uint64")

    f.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    f.do(f"call void @llvm.memset.p0.i64({row.counters}, i8 0, i64 {8 * BUCKETS}, i1 false)")
    with f.loop(I64(0), size, polls=True) as i:
        at = counter(row.word(source, i))
        f.store(f.binary("add", f.load(at, "uint64"), word(1)), at)
    total = f.slot("uint64")
    f.write(word(0), total)
    with f.loop(I64(0), I64(BUCKETS)) as bucket:
        at = f.at(row.counters, bucket, "uint64")
        many, before = f.load(at, "uint64"), f.read(total, "uint64")
        f.store(before, at)
        f.write(f.binary("add", before, many), total)
    with f.loop(I64(0), size, polls=True) as i:
        key = row.word(source, i)
        at = counter(key)
        place = f.load(at, "uint64")
        f.store(f.binary("add", place, word(1)), at)
        place = IRValue(place.name, "int64")
        row.set(target, place, key)
        if not is_narrow(row.spec):
            row.set(2 + target, place, row.word(2 + source, i))


def _put_last(row: Row) -> None:
    """Write for each element whether it is the last of its equals, which the sorted keys show."""
    f, end = row.f, row.spec.size - 1
    with f.loop(I64(0), I64(row.spec.size), polls=True) as i:
        key = row.word(0, i)
        differs = f.binary("xor", key, row.word(0, f.intrinsic("smin", f.binary("add", i, I64(1)), I64(end))))
        if is_narrow(row.spec):
            differs = f.binary("lshr", differs, word(32))
        last = f.binary("or", f.compare("icmp ne", differs, word(0)), f.compare("icmp eq", i, I64(end)))
        row.put_flag(last, IRValue(row.position(key, i).name, "int64"))
