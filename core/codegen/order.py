"""Stable sorting of positions (see `core.plan.geometry.Order`).

Elements become unsigned keys that are ordered as the elements are. A short row counts the smaller keys of each element,
in vectors. A long row is sorted by one byte of the keys after the other, the lowest one first. Keys of up to 32 bits
share a word with their position.

Where few positions are wanted, the smallest word is searched once for each. For more of them, a row keeps the smallest
words so far in order, and compares whole vectors with the largest of them; a row in which most elements have to be put
in place is sorted after all.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.module import Module
from core.codegen.vector_slices import move
from core.plan.geometry import Order

__all__ = ["order", "order_scratch"]

SHORT = 128
"""Fewest elements of a row that is sorted by bytes."""

FEW, QUICK = 4, 2**14
"""A row is searched for each of its positions if there are so few of them, or so few words to read in all."""

PATIENCE = 8
"""Words of the kept ones that may be read or moved for each element of a row, before it is sorted after all."""

LANES = 8
BUCKETS = 256


def order_scratch(spec: Order) -> int:
    """Bytes: keys, before and after a pass; positions likewise if a key fills its word; a counter for each byte; the
    kept words."""
    return 8 * ((2 if _narrow(spec) else 4) * _room(spec.size) + BUCKETS + (_room(spec.wanted) if _keeps(spec) else 0))


def order(_: Module, f: Function, spec: Order) -> None:
    """``(x, out)``; a unit is a row."""
    room = _room(spec.size)
    words = [f.at(f.param("scratch"), I64(8 * room * i), "uint8") for i in range(2 if _narrow(spec) else 4)]
    counters = f.at(f.param("scratch"), I64(8 * room * len(words)), "uint8")
    kept = f.at(counters, I64(8 * BUCKETS), "uint8")
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        x, out = (_offset(f, spec, unit, n) for n in (spec.size, spec.wanted))
        row = _Row(f, spec, x, out, words, counters, kept)
        row.read()
        if _searches(spec):
            row.search()
        elif _keeps(spec):
            f.either(row.keep(), row.put_kept, row.order)
        else:
            row.order()


def _offset(f: Function, spec: Order, unit: IRValue, size: int) -> IRValue:
    """The first element of a row in an array with so many elements in each row."""
    if spec.inner == 1:
        return f.op(f"mul nsw {unit}, {size}", "int64")
    slab = f.op(f"udiv {unit}, {spec.inner}", "int64")
    column = f.op(f"urem {unit}, {spec.inner}", "int64")
    return f.binary("add", f.op(f"mul nsw {slab}, {size * spec.inner}", "int64"), column)


def _narrow(spec: Order) -> bool:
    """Whether a key and a position share a word."""
    return itemsize(spec.dtype) <= 4 and spec.size < 2**32


def _searches(spec: Order) -> bool:
    """Whether a row is searched for each position."""
    return _is_part(spec) and (spec.wanted <= FEW or spec.wanted * spec.size <= QUICK)


def _keeps(spec: Order) -> bool:
    """Whether a row keeps the smallest words so far."""
    return _is_part(spec) and not _searches(spec)


def _is_part(spec: Order) -> bool:
    """Whether few of the positions are wanted, of keys that share a word with them."""
    return _narrow(spec) and not spec.last and 4 * spec.wanted <= spec.size


def _room(size: int) -> int:
    """Words of one array of keys, whole vectors."""
    return -(-size // LANES) * LANES


@dataclass(slots=True)
class _Row:
    """One row.

    x, out: the first element of the row, in the array and in the result.
    words:  keys twice, then positions twice if they have words of their own.
    kept:   the smallest words so far, in order.
    """

    f: Function
    spec: Order
    x: IRValue
    out: IRValue
    words: list[IRValue]
    counters: IRValue
    kept: IRValue

    def read(self) -> None:
        """Fill the keys. Those after the end of the row are the largest."""
        f, spec = self.f, self.spec
        whole = spec.size // LANES * LANES if spec.inner == 1 else 0
        with f.loop(I64(0), I64(whole), LANES, polls=True) as i:
            self._read(i, LANES)
        with f.loop(I64(whole), I64(spec.size), polls=True) as i:
            self._read(i, 1)
        for extra in range(spec.size, _room(spec.size)):
            self._set(0, I64(extra), IRValue("-1", "uint64"))

    def _read(self, i: IRValue, lanes: int) -> None:
        """Fill `lanes` keys from number `i` on."""
        f = self.f
        key = self._key(f.load(self._element("x", i, self.spec.dtype), self.spec.dtype, lanes))
        at = IRValue(i.name, "uint64")
        if lanes > 1:
            at = f.binary("add", IRValue(f"<{', '.join(f'i64 {i}' for i in range(lanes))}>", "uint64", lanes), at)
        if _narrow(self.spec):
            key = f.binary("or", f.binary("shl", key, f.constant(32, key)), at)
        else:
            self._set(2, i, at)
        self._set(0, i, key)

    def _key(self, x: IRValue) -> IRValue:
        """An unsigned number of at most 64 bits, in the order of x: of its own width, extended by zeros."""
        f = self.f
        bits = 8 * itemsize(x.dtype)
        plain, signed = f"uint{bits}", f"int{bits}"
        if x.dtype == "bool":
            key = f.convert(x, "uint8")
        elif x.is_float:
            positive = f.binary("fadd", x, f.constant(0.0, x))  # -0 equals 0
            raw = f.bitcast(positive, signed)
            sign = f.binary("ashr", raw, f.constant(bits - 1, raw))
            flipped = f.binary("xor", raw, f.binary("or", sign, IRValue(str(-(2 ** (bits - 1))), signed)))
            key = f.select(f.compare("fcmp uno", x, x), IRValue("-1", signed), flipped)
        elif x.is_signed:
            key = f.binary("xor", x, IRValue(str(-(2 ** (bits - 1))), signed))
        else:
            key = x
        key = IRValue(key.name, plain, key.lanes)
        if self.spec.descending:
            key = f.binary("xor", key, IRValue("-1", plain))
        return f.convert(key, "uint64")

    def search(self) -> None:
        """Find the smallest word, then again and again the smallest one above the last."""
        f, spec = self.f, self.spec
        least = f.slot("uint64")
        f.write(IRValue("0", "uint64"), least)
        with f.loop(I64(0), I64(spec.wanted), polls=True) as place:
            above = f.read(least, "uint64")
            found = f.slot("uint64", LANES)
            f.write(f.splat(IRValue("-1", "uint64"), LANES), found)
            with f.loop(I64(0), I64(_room(spec.size)), LANES, polls=True) as i:
                words = f.load(f.at(self.words[0], i, "uint64"), "uint64", LANES)
                over = f.binary("sub", words, above)  # of a smaller word: a very large number
                f.write(f.intrinsic("umin", f.read(found, "uint64", LANES), over), found)
            vector = f.read(found, "uint64", LANES)
            f.declarations.add(f"declare i64 @llvm.vector.reduce.umin.v{LANES}i64({vector.type})")
            nearest = f.op(f"call i64 @llvm.vector.reduce.umin.v{LANES}i64({vector})", "uint64")
            word = f.binary("add", above, nearest)
            f.write(f.binary("add", word, IRValue("1", "uint64")), least)
            self._put(f.binary("and", word, IRValue(str(2**32 - 1), "uint64")), place)

    def keep(self) -> IRValue:
        """Keep the smallest words; whether that was quicker than sorting them."""
        f, spec = self.f, self.spec
        most = IRValue("-1", "uint64")
        with f.loop(I64(0), I64(_room(spec.wanted))) as i:
            f.store(most, f.at(self.kept, i, "uint64"))
        largest, patience = f.slot("uint64"), f.slot("int64")
        f.write(most, largest)
        f.write(I64(PATIENCE * spec.size), patience)
        with f.loop(I64(0), I64(spec.size), LANES, polls=True) as first:
            own = f.load(f.at(self.words[0], first, "uint64"), "uint64", LANES)
            smaller = f.compare("icmp ult", own, f.read(largest, "uint64"))
            some = f.compare("icmp ne", f.op(f"bitcast {smaller} to i{LANES}", "uint8"), IRValue("0", "uint8"))
            going_on = f.compare("icmp sgt", f.read(patience, "int64"), I64(0))
            with (
                f.when(f.binary("and", some, going_on)),
                f.loop(first, f.binary("add", first, I64(LANES))) as i,
            ):
                word = self._word(0, i)
                with f.when(f.compare("icmp ult", word, f.read(largest, "uint64"))):
                    moved = self._keep(word)
                    f.write(f.binary("sub", f.read(patience, "int64"), moved), patience)
                    f.write(f.load(f.at(self.kept, I64(spec.wanted - 1), "uint64"), "uint64"), largest)
        return f.compare("icmp sgt", f.read(patience, "int64"), I64(0))

    def _keep(self, word: IRValue) -> IRValue:
        """Put `word` in its place among those kept, where the last one is dropped; how many words were touched."""
        f, last = self.f, I64(self.spec.wanted - 1)
        place = f.slot("int64")
        f.write(I64(0), place)
        with f.loop(I64(0), I64(_room(self.spec.wanted)), LANES) as i:
            before = f.compare("icmp ult", f.load(f.at(self.kept, i, "uint64"), "uint64", LANES), word)
            bits = f.op(f"bitcast {before} to i{LANES}", "uint8")
            many = f.convert(f.intrinsic("ctpop", bits), "int64")
            f.write(f.binary("add", f.read(place, "int64"), many), place)
        own = f.read(place, "int64")
        moved = f.binary("sub", last, own)
        with f.loop(I64(0), moved) as i:
            at = f.binary("sub", last, i)
            before = f.load(f.at(self.kept, f.binary("sub", at, I64(1)), "uint64"), "uint64")
            f.store(before, f.at(self.kept, at, "uint64"))
        f.store(word, f.at(self.kept, own, "uint64"))
        return f.binary("add", moved, I64(_room(self.spec.wanted) // LANES))

    def put_kept(self) -> None:
        """Write the positions of the kept words."""
        f = self.f
        with f.loop(I64(0), I64(self.spec.wanted)) as i:
            word = f.load(f.at(self.kept, i, "uint64"), "uint64")
            self._put(f.binary("and", word, IRValue(str(2**32 - 1), "uint64")), i)

    def order(self) -> None:
        """Put all words in order, and write the result."""
        if self.spec.size < SHORT and not self.spec.last:
            self.count()
        else:
            self.sort()
            self.put()

    def count(self) -> None:
        """The place of an element is the number of those before it."""
        f, spec = self.f, self.spec
        lane = IRValue(f"<{', '.join(f'i64 {i}' for i in range(LANES))}>", "uint64", LANES)
        with f.loop(I64(0), I64(spec.size), LANES) as first:
            own = f.load(f.at(self.words[0], first, "uint64"), "uint64", LANES)
            at = f.binary("add", lane, IRValue(first.name, "uint64"))
            total = f.slot("uint64", LANES)
            f.write(f.splat(IRValue("0", "uint64"), LANES), total)
            with f.loop(I64(0), I64(spec.size)) as j:
                other = self._word(0, j)
                before = f.compare("icmp ugt", own, other)
                if not _narrow(spec):
                    earlier = f.compare("icmp ugt", at, IRValue(j.name, "uint64"))
                    before = f.binary("or", before, f.binary("and", f.compare("icmp eq", own, other), earlier))
                one = f.op(f"zext {before} to <{LANES} x i64>", "uint64", LANES)
                f.write(f.binary("add", f.read(total, "uint64", LANES), one), total)
            places = f.slot("uint64", LANES)
            f.write(f.read(total, "uint64", LANES), places)
            left = f.binary("sub", I64(spec.size), first)
            with f.loop(I64(0), f.intrinsic("smin", left, I64(LANES))) as k:
                place = f.load(f.at(places, k, "uint64"), "int64")
                with f.when(f.compare("icmp slt", place, I64(spec.wanted))):
                    self._put(f.binary("add", first, k), place)

    def sort(self) -> None:
        """Sort by each byte of the keys; after an even number of passes the keys are where they were."""
        passes = max(itemsize(self.spec.dtype), 2)
        start = 32 if _narrow(self.spec) else 0
        for i in range(passes):
            self._pass(i % 2, 1 - i % 2, start + 8 * i)

    def _pass(self, source: int, target: int, shift: int) -> None:
        f, spec = self.f, self.spec

        def counter(word: IRValue) -> IRValue:
            byte = f.binary("and", f.binary("lshr", word, IRValue(str(shift), "uint64")), IRValue("255", "uint64"))
            return f.at(self.counters, byte, "uint64")

        f.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        f.do(f"call void @llvm.memset.p0.i64({self.counters}, i8 0, i64 {8 * BUCKETS}, i1 false)")
        with f.loop(I64(0), I64(spec.size), polls=True) as i:
            at = counter(self._word(source, i))
            f.store(f.binary("add", f.load(at, "uint64"), IRValue("1", "uint64")), at)
        total = f.slot("uint64")
        f.write(IRValue("0", "uint64"), total)
        with f.loop(I64(0), I64(BUCKETS)) as bucket:
            at = f.at(self.counters, bucket, "uint64")
            many, before = f.load(at, "uint64"), f.read(total, "uint64")
            f.store(before, at)
            f.write(f.binary("add", before, many), total)
        with f.loop(I64(0), I64(spec.size), polls=True) as i:
            word = self._word(source, i)
            at = counter(word)
            place = f.load(at, "uint64")
            f.store(f.binary("add", place, IRValue("1", "uint64")), at)
            place = IRValue(place.name, "int64")
            self._set(target, place, word)
            if not _narrow(spec):
                self._set(2 + target, place, self._word(2 + source, i))

    def put(self) -> None:
        """Write the sorted positions, or for each whether it is the last of its equals."""
        f, spec = self.f, self.spec
        with f.loop(I64(0), I64(spec.wanted), polls=True) as i:
            word = self._word(0, i)
            mask = IRValue(str(2**32 - 1), "uint64")
            at = f.binary("and", word, mask) if _narrow(spec) else self._word(2, i)
            at = IRValue(at.name, "int64")
            if spec.last:
                f.store(self._is_last(word, i), self._element("out", at, "bool"))
            else:
                self._put(at, i)

    def _is_last(self, word: IRValue, at: IRValue) -> IRValue:
        """Whether the element at a place of the order differs from the next one."""
        f, end = self.f, self.spec.size - 1
        differs = f.binary("xor", word, self._word(0, f.intrinsic("smin", f.binary("add", at, I64(1)), I64(end))))
        if _narrow(self.spec):
            differs = f.binary("lshr", differs, IRValue("32", "uint64"))
        return f.binary("or", f.compare("icmp ne", differs, IRValue("0", "uint64")), f.compare("icmp eq", at, I64(end)))

    def _put(self, position: IRValue, place: IRValue) -> None:
        """Write one position of the result."""
        self.f.store(IRValue(position.name, "int64"), self._element("out", place, "int64"))

    def _element(self, name: str, at: IRValue, dtype: str) -> IRValue:
        offset = self.x if name == "x" else self.out
        return move(self.f, self.f.param(name), dtype, (offset, 1), (at, self.spec.inner))

    def _word(self, array: int, at: IRValue) -> IRValue:
        return self.f.load(self.f.at(self.words[array], at, "uint64"), "uint64")

    def _set(self, array: int, at: IRValue, value: IRValue) -> None:
        self.f.store(value, self.f.at(self.words[array], at, "uint64"))
