"""One row whose positions are sorted: its keys in memory, and the access to elements and results.

Elements become unsigned keys that are ordered as the elements are. Keys of up to 32 bits share a word with their
position; wider ones have an array of positions beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.substitution import lane_numbers
from core.codegen.vector_slices import move
from core.plan.geometry import Order

__all__ = ["LANES", "Row", "is_narrow", "numbers_from", "word"]

LANES = 8
_LOW_HALF = 2**32 - 1


def word(value: int) -> IRValue:
    return IRValue(str(value), "uint64")


def numbers_from(f: Function, first: IRValue) -> IRValue:
    """`first` and the numbers after it, one in each lane."""
    lane = lane_numbers(LANES)
    return f.binary("add", IRValue(lane.name, "uint64", LANES), IRValue(first.name, "uint64"))


def is_narrow(spec: Order) -> bool:
    """Whether a key and a position share a word."""
    return itemsize(spec.dtype) <= 4 and spec.size < 2**32


@dataclass(slots=True)
class Row:
    """One row.

    x, out:   the number of its first element, in the array and in the result.
    words:    memory of keys twice, then of positions twice if they have words of their own.
    counters: memory of a number for each byte.
    kept:     memory of the smallest words so far, in order.
    """

    f: Function
    spec: Order
    x: IRValue
    out: IRValue
    words: list[IRValue]
    counters: IRValue
    kept: IRValue

    def read(self) -> None:
        """Fill the first array of keys. Those after the end of the row are the largest."""
        f, spec = self.f, self.spec
        whole = spec.size // LANES * LANES if spec.inner == 1 else 0
        with f.loop(I64(0), I64(whole), LANES, polls=True) as i:
            self._read(i, LANES)
        with f.loop(I64(whole), I64(spec.size), polls=True) as i:
            self._read(i, 1)
        for extra in range(spec.size, -(-spec.size // LANES) * LANES):
            self.set(0, I64(extra), word(-1))

    def _read(self, i: IRValue, lanes: int) -> None:
        """Fill `lanes` keys from number `i` on."""
        f = self.f
        key = self._key(f.load(self._element("x", i, self.spec.dtype), self.spec.dtype, lanes))
        at = numbers_from(f, i) if lanes > 1 else IRValue(i.name, "uint64")
        if is_narrow(self.spec):
            key = f.binary("or", f.binary("shl", key, f.constant(32, key)), at)
        else:
            self.set(2, i, at)
        self.set(0, i, key)

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

    def word(self, array: int, at: IRValue) -> IRValue:
        return self.f.load(self.f.at(self.words[array], at, "uint64"), "uint64")

    def vector(self, at: IRValue) -> IRValue:
        """The keys from number `at` on."""
        return self.f.load(self.f.at(self.words[0], at, "uint64"), "uint64", LANES)

    def set(self, array: int, at: IRValue, value: IRValue) -> None:
        self.f.store(value, self.f.at(self.words[array], at, "uint64"))

    def position(self, own: IRValue, at: IRValue) -> IRValue:
        """The position in the row of the key `own`, which is number `at` of the first array."""
        return self.low_half(own) if is_narrow(self.spec) else self.word(2, at)

    def low_half(self, own: IRValue) -> IRValue:
        """The position in a word that a key shares with it."""
        return self.f.binary("and", own, word(_LOW_HALF))

    def put(self, position: IRValue, place: IRValue) -> None:
        """Write number `place` of the positions of the result."""
        self.f.store(IRValue(position.name, "int64"), self._element("out", place, "int64"))

    def put_flag(self, flag: IRValue, place: IRValue) -> None:
        """Write number `place` of a result of bools."""
        self.f.store(flag, self._element("out", place, "bool"))

    def _element(self, name: str, at: IRValue, dtype: str) -> IRValue:
        offset = self.x if name == "x" else self.out
        return move(self.f, self.f.param(name), dtype, (offset, 1), (at, self.spec.inner))
