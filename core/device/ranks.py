"""Ranks of keys by comparison with all others: the threads of a part of a warp share the comparisons of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from core.codegen.llvm import I64, Function, IRValue, literal
from core.device.threads import WARP, Threads

__all__ = ["LAST_KEY", "Ranks", "padded"]

VECTOR = 4
"""Keys of one load."""

LAST_KEY = 2**31 - 1
"""The key that fills an array up. It is larger than all others."""


def padded(count: int) -> int:
    """Keys with those that fill the last loads of a warp."""
    return -(-count // (VECTOR * WARP)) * VECTOR * WARP


class Ranks:
    """Writes ranks of `count` keys, int32 numbers of less than LAST_KEY, in all threads of a launch.

    The array of keys has `padded(count)` elements at an address that vectors can be read from.
    """

    def __init__(self, f: Function, threads: Threads, count: int) -> None:
        self.f, self.threads, self.count = f, threads, count
        self.lanes = 1
        while self.lanes < WARP and 2 * self.lanes * count <= threads.total:
            self.lanes *= 2
        number = threads.number(f)
        self.lane = f.op(f"and {number}, {self.lanes - 1}", "int64")
        self.group = f.op(f"udiv {number}, {self.lanes}", "int64")

    @contextmanager
    def each(self, end: int | None = None) -> Iterator[tuple[IRValue, IRValue]]:
        """For each number up to `end`, by default of the keys: (number, whether this thread speaks for it).

        All threads of a warp take part in each round, which an exchange among them needs.
        """
        f, end = self.f, self.count if end is None else end
        groups = self.threads.total // self.lanes
        with f.loop(I64(0), I64(-(-end // groups))) as turn:
            at = f.binary("add", f.op(f"mul nsw {turn}, {groups}", "int64"), self.group)
            inside = f.compare("icmp slt", at, I64(end))
            leads = f.binary("and", inside, f.compare("icmp eq", self.lane, I64(0)))
            yield f.select(inside, at, I64(end - 1)), leads

    def before(self, keys: IRValue, i: IRValue, key: IRValue) -> IRValue:
        """How many keys come before key `i`: smaller ones, and equal ones with a smaller number. key: int32."""
        f = self.f

        def one(other: IRValue, number: IRValue) -> IRValue:
            limit = f.binary("add", key, f.convert(f.compare("icmp slt", number, i), "int32"))
            return f.convert(f.compare("icmp slt", other, limit), "int32")

        return self._sum(keys, padded(self.count), one)

    def sum_before(self, numbers: IRValue, i: IRValue) -> IRValue:
        """The sum of the elements before element `i` of an array like the keys."""
        f = self.f
        end = f.op(f"and {f.binary('add', i, I64(VECTOR - 1))}, {-VECTOR}", "int64")
        zero = literal(0, "int32")
        return self._sum(numbers, end, lambda each, number: f.select(f.compare("icmp slt", number, i), each, zero))

    def _sum(self, keys: IRValue, end: IRValue | int, value: Callable[[IRValue, IRValue], IRValue]) -> IRValue:
        f, total = self.f, self.f.slot("int32")
        f.write(literal(0, "int32"), total)
        start = f.op(f"mul nsw {self.lane}, {VECTOR}", "int64")
        with f.loop(start, I64(end) if isinstance(end, int) else end, VECTOR * self.lanes) as first:
            address = f.at(keys, first, "int32")
            several = f.op(f"load <{VECTOR} x i32>, {address}, align {4 * VECTOR}", "int32", VECTOR)
            found = f.read(total, "int32")
            for k in range(VECTOR):
                one = f.op(f"extractelement {several}, i64 {k}", "int32")
                number = f.binary("add", first, I64(k))
                found = f.binary("add", found, value(one, number))
            f.write(found, total)
        return f.convert(self.threads.reduce_lanes(f, "sum", f.read(total, "int32"), self.lanes), "int64")
