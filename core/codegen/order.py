"""Stable sorting of positions (see `core.plan.geometry.Order`).

Elements become unsigned keys that are ordered as the elements are. A short row counts the smaller keys of each element,
in vectors. A long row is sorted by one byte of the keys after the other, the lowest one first. Keys of up to 32 bits
share a word with their position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.module import Module
from core.codegen.vector_slices import move
from core.plan.geometry import Order

__all__ = ["order", "order_scratch"]

SHORT = 128
"""Fewest elements of a row that is sorted by bytes."""

LANES = 8
BUCKETS = 256


def order_scratch(spec: Order) -> int:
    """Bytes: keys, before and after a pass; positions likewise if a key fills its word; a counter for each byte."""
    return 8 * ((2 if _narrow(spec) else 4) * _room(spec) + BUCKETS)


def order(_: Module, f: Function, spec: Order) -> None:
    """``(x, out)``; a unit is a row."""
    words = [f.at(f.param("scratch"), I64(8 * _room(spec) * i), "uint8") for i in range(2 if _narrow(spec) else 4)]
    counters = f.at(f.param("scratch"), I64(8 * _room(spec) * len(words)), "uint8")
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        if spec.inner == 1:
            offset = f.op(f"mul nsw {unit}, {spec.size}", "int64")
        else:
            slab = f.op(f"udiv {unit}, {spec.inner}", "int64")
            column = f.op(f"urem {unit}, {spec.inner}", "int64")
            offset = f.binary("add", f.op(f"mul nsw {slab}, {spec.size * spec.inner}", "int64"), column)
        row = _Row(f, spec, offset, words, counters)
        row.read()
        if spec.size < SHORT and not spec.last:
            row.count()
        else:
            row.sort()
            row.put()


def _narrow(spec: Order) -> bool:
    """Whether a key and a position share a word."""
    return np.dtype(spec.dtype).itemsize <= 4 and spec.size < 2**32


def _room(spec: Order) -> int:
    """Words of one array of keys, whole vectors."""
    return -(-spec.size // LANES) * LANES


@dataclass(slots=True)
class _Row:
    """One row.

    offset: of its first element.
    words:  keys twice, then positions twice if they have words of their own.
    """

    f: Function
    spec: Order
    offset: IRValue
    words: list[IRValue]
    counters: IRValue

    def read(self) -> None:
        """Fill the keys. Those after the end of the row are the largest."""
        f, spec = self.f, self.spec
        with f.loop(I64(0), I64(spec.size), polls=True) as i:
            key = self._key(f.load(self._element("x", i, spec.dtype), spec.dtype))
            if _narrow(spec):
                key = f.binary("or", f.binary("shl", key, IRValue("32", "uint64")), IRValue(i.name, "uint64"))
            else:
                self._set(2, i, IRValue(i.name, "uint64"))
            self._set(0, i, key)
        for extra in range(spec.size, _room(spec)):
            self._set(0, I64(extra), IRValue("-1", "uint64"))

    def _key(self, x: IRValue) -> IRValue:
        """An unsigned number of at most 64 bits, in the order of x: of its own width, extended by zeros."""
        f = self.f
        bits = 8 * np.dtype(x.dtype).itemsize
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
        key = IRValue(key.name, plain)
        if self.spec.descending:
            key = f.binary("xor", key, IRValue("-1", plain))
        return f.convert(key, "uint64")

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
                f.store(f.binary("add", first, k), self._element("out", place, "int64"))

    def sort(self) -> None:
        """Sort by each byte of the keys; after an even number of passes the keys are where they were."""
        passes = max(np.dtype(self.spec.dtype).itemsize, 2)
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
        with f.loop(I64(0), I64(spec.size), polls=True) as i:
            word = self._word(0, i)
            mask = IRValue(str(2**32 - 1), "uint64")
            at = f.binary("and", word, mask) if _narrow(spec) else self._word(2, i)
            at = IRValue(at.name, "int64")
            if spec.last:
                f.store(self._is_last(word, i), self._element("out", at, "bool"))
            else:
                f.store(at, self._element("out", i, "int64"))

    def _is_last(self, word: IRValue, at: IRValue) -> IRValue:
        """Whether the element at a place of the order differs from the next one."""
        f, end = self.f, self.spec.size - 1
        differs = f.binary("xor", word, self._word(0, f.intrinsic("smin", f.binary("add", at, I64(1)), I64(end))))
        if _narrow(self.spec):
            differs = f.binary("lshr", differs, IRValue("32", "uint64"))
        return f.binary("or", f.compare("icmp ne", differs, IRValue("0", "uint64")), f.compare("icmp eq", at, I64(end)))

    def _element(self, name: str, at: IRValue, dtype: str) -> IRValue:
        return move(self.f, self.f.param(name), dtype, (self.offset, 1), (at, self.spec.inner))

    def _word(self, array: int, at: IRValue) -> IRValue:
        return self.f.load(self.f.at(self.words[array], at, "uint64"), "uint64")

    def _set(self, array: int, at: IRValue, value: IRValue) -> None:
        self.f.store(value, self.f.at(self.words[array], at, "uint64"))
