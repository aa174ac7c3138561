"""Some positions of the order of a row (see `core.codegen.order_row`), without the order of all its keys.

Of very few first positions, the smallest word is searched once for each. For more of them, a row keeps the smallest
words so far in order, and compares whole vectors with the largest of them; where most of the words have to be put in
place, it gives up. Else the keys are divided by their highest byte, then by the next one, and so on: those whose bytes
are below or above the bytes of the wanted keys are dropped.
"""

from __future__ import annotations

from core.codegen.llvm import I64, IRValue, itemsize
from core.codegen.order_row import LANES, Row, is_narrow, word
from core.codegen.order_sorting import BUCKETS
from core.plan.geometry import Order

__all__ = ["narrow_down", "put_kept", "room_of_kept", "search", "smallest_kept"]

ENOUGH = 32
"""Keys that are not divided further, or twice as many as are wanted."""

PATIENCE = 8
"""Words of the kept ones that may be read or moved for each element of a row, before it gives up keeping them."""


def room_of_kept(spec: Order) -> int:
    """Words of the kept ones, whole vectors."""
    return -(-spec.wanted // LANES) * LANES


def search(row: Row) -> None:
    """Find the smallest word, then again and again the smallest one above the last."""
    f, spec = row.f, row.spec
    least = f.slot("uint64")
    f.write(word(0), least)
    with f.loop(I64(0), I64(spec.wanted), polls=True) as place:
        above = f.read(least, "uint64")
        found = f.slot("uint64", LANES)
        f.write(f.splat(word(-1), LANES), found)
        with f.loop(I64(0), I64(spec.size), LANES, polls=True) as i:
            over = f.binary("sub", row.vector(i), above)  # of a smaller word: a very large number
            f.write(f.intrinsic("umin", f.read(found, "uint64", LANES), over), found)
        vector = f.read(found, "uint64", LANES)
        f.declarations.add(f"declare i64 @llvm.vector.reduce.umin.v{LANES}i64({vector.type})")
        nearest = f.op(f"call i64 @llvm.vector.reduce.umin.v{LANES}i64({vector})", "uint64")
        own = f.binary("add", above, nearest)
        f.write(f.binary("add", own, word(1)), least)
        row.put(row.low_half(own), place)


def smallest_kept(row: Row) -> IRValue:
    """Keep the smallest words; whether it came to the end of the row."""
    f, spec = row.f, row.spec
    with f.loop(I64(0), I64(room_of_kept(spec))) as i:
        f.store(word(-1), f.at(row.kept, i, "uint64"))
    largest, patience = f.slot("uint64"), f.slot("int64")
    f.write(word(-1), largest)
    f.write(I64(PATIENCE * spec.size), patience)
    with f.loop(I64(0), I64(spec.size), LANES, polls=True) as first:
        smaller = f.compare("icmp ult", row.vector(first), f.read(largest, "uint64"))
        some = f.compare("icmp ne", f.op(f"bitcast {smaller} to i{LANES}", "uint8"), IRValue("0", "uint8"))
        going_on = f.compare("icmp sgt", f.read(patience, "int64"), I64(0))
        with (
            f.when(f.binary("and", some, going_on)),
            f.loop(first, f.binary("add", first, I64(LANES))) as i,
        ):
            own = row.word(0, i)
            with f.when(f.compare("icmp ult", own, f.read(largest, "uint64"))):
                moved = _keep(row, own)
                f.write(f.binary("sub", f.read(patience, "int64"), moved), patience)
                f.write(f.load(f.at(row.kept, I64(spec.wanted - 1), "uint64"), "uint64"), largest)
    return f.compare("icmp sgt", f.read(patience, "int64"), I64(0))


def _keep(row: Row, own: IRValue) -> IRValue:
    """Put a word in its place among those kept, where the last one is dropped; how many words were touched."""
    f, last, room = row.f, I64(row.spec.wanted - 1), room_of_kept(row.spec)
    place = f.slot("int64")
    f.write(I64(0), place)
    with f.loop(I64(0), I64(room), LANES) as i:
        before = f.compare("icmp ult", f.load(f.at(row.kept, i, "uint64"), "uint64", LANES), own)
        bits = f.op(f"bitcast {before} to i{LANES}", "uint8")
        many = f.convert(f.intrinsic("ctpop", bits), "int64")
        f.write(f.binary("add", f.read(place, "int64"), many), place)
    at = f.read(place, "int64")
    moved = f.binary("sub", last, at)
    with f.loop(I64(0), moved) as i:
        to = f.binary("sub", last, i)
        before = f.load(f.at(row.kept, f.binary("sub", to, I64(1)), "uint64"), "uint64")
        f.store(before, f.at(row.kept, to, "uint64"))
    f.store(own, f.at(row.kept, at, "uint64"))
    return f.binary("add", moved, I64(room // LANES))


def put_kept(row: Row) -> None:
    """Write the positions of the kept words."""
    with row.f.loop(I64(0), I64(row.spec.wanted)) as i:
        row.put(row.low_half(row.f.load(row.f.at(row.kept, i, "uint64"), "uint64")), i)


def narrow_down(row: Row) -> tuple[IRValue, IRValue]:
    """Drop keys that cannot be wanted, by one byte after the other, until few others are left or the bytes end.

    Returns how many are left, equal ones in the order of the row, and how many of them come before the wanted ones.
    """
    f, spec = row.f, row.spec
    aside, size, first, shift = (f.slot("int64") for _ in range(4))
    bits = 8 * itemsize(spec.dtype)
    lowest = 32 if is_narrow(spec) else 0
    for slot, start in ((aside, 0), (size, spec.size), (first, spec.first), (shift, lowest + bits - 8)):
        f.write(I64(start), slot)
    with f.loop(I64(0), I64(bits // 8), polls=True):
        enough = I64(max(ENOUGH, 2 * spec.wanted))
        with f.when(f.compare("icmp sgt", f.read(size, "int64"), enough)):
            here = f.read(shift, "int64")
            part = (f.read(aside, "int64"), f.read(size, "int64"))
            smaller = _divide(row, part, f.read(first, "int64"), here, (aside, size))
            f.write(f.binary("sub", f.read(first, "int64"), smaller), first)
            f.write(f.binary("sub", here, I64(8)), shift)
    return f.read(size, "int64"), f.read(first, "int64")


def _divide(
    row: Row, part: tuple[IRValue, IRValue], first: IRValue, shift: IRValue, ends: tuple[IRValue, IRValue]
) -> IRValue:
    """Divide the keys of `part` of the array by their byte at `shift`; returns how many come before all wanted ones.

    Those before `part` are set aside: all of them are left. Keys whose bytes are between those of the first and of the
    last wanted key join them, keys with the byte of the last one follow, others are dropped.
    ends: slots for the ends of these two.
    """
    f = row.f
    aside, size = part
    last = f.binary("sub", f.binary("add", first, I64(row.spec.wanted - 1)), aside)
    begin = f.intrinsic("smax", f.binary("sub", first, aside), I64(0))
    low, high, smaller = _wanted_bytes(row, part, begin, last, shift)
    others = f.slot("int64")
    f.write(aside, ends[0])
    f.write(I64(0), others)
    between = f.binary("sub", high, low)
    with f.loop(aside, size, polls=True) as i:
        byte = IRValue(_byte(row, row.word(0, i), shift).name, "int64")
        joins = f.compare("icmp ult", f.binary("sub", byte, low), between)
        for array, slot, counts in ((0, ends[0], joins), (1, others, f.compare("icmp eq", byte, high))):
            place = f.read(slot, "int64")
            _copy(row, (0, i), (array, place))
            f.write(f.binary("add", place, f.convert(counts, "int64")), slot)
    with f.loop(I64(0), f.read(others, "int64"), polls=True) as i:
        _copy(row, (1, i), (0, f.binary("add", f.read(ends[0], "int64"), i)))
    f.write(f.binary("add", f.read(ends[0], "int64"), f.read(others, "int64")), ends[1])
    return smaller


def _copy(row: Row, source: tuple[int, IRValue], target: tuple[int, IRValue]) -> None:
    """Copy a key, and its position where that has a word of its own, from (array, number)."""
    for first in (0,) if is_narrow(row.spec) else (0, 2):
        row.set(first + target[0], target[1], row.word(first + source[0], source[1]))


def _byte(row: Row, key: IRValue, shift: IRValue) -> IRValue:
    f = row.f
    return f.binary("and", f.binary("lshr", key, IRValue(shift.name, "uint64")), word(BUCKETS - 1))


def _wanted_bytes(
    row: Row, part: tuple[IRValue, IRValue], first: IRValue, last: IRValue, shift: IRValue
) -> tuple[IRValue, IRValue, IRValue]:
    """The bytes of the keys number `first` and `last` in the order of a part, and how many keys have smaller ones."""
    f = row.f
    f.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    f.do(f"call void @llvm.memset.p0.i64({row.counters}, i8 0, i64 {8 * BUCKETS}, i1 false)")
    with f.loop(*part, polls=True) as i:
        at = f.at(row.counters, _byte(row, row.word(0, i), shift), "uint64")
        f.store(f.binary("add", f.load(at, "uint64"), word(1)), at)
    total, smaller, low, high = (f.slot("int64") for _ in range(4))
    for slot in (total, smaller, low, high):
        f.write(I64(0), slot)
    with f.loop(I64(0), I64(BUCKETS)) as bucket:
        after = f.binary("add", f.read(total, "int64"), f.load(f.at(row.counters, bucket, "uint64"), "int64"))
        f.write(after, total)
        for wanted, slot in ((first, low), (last, high)):
            passed = f.compare("icmp sle", after, wanted)
            f.write(f.select(passed, f.binary("add", bucket, I64(1)), f.read(slot, "int64")), slot)
        f.write(f.select(f.compare("icmp sle", after, first), after, f.read(smaller, "int64")), smaller)
    return f.read(low, "int64"), f.read(high, "int64"), f.read(smaller, "int64")
