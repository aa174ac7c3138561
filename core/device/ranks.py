"""Ranks of keys by comparison with all others: the threads of a part of a warp share the comparisons of a key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.codegen.llvm import I64, Function, IRValue, literal
from core.device.threads import WARP, Threads

__all__ = ["LAST_KEY", "Ranks", "is_short", "padded"]

VECTOR = 4
"""Keys of one load."""

MOST_COMPARED = 512
"""Comparisons of a thread, above which keys are not compared with all others."""

LAST_KEY = 2**31 - 1
"""The key that fills an array up. It is larger than all others."""


def padded(count: int) -> int:
    """Keys with those that fill the last loads of a warp."""
    return -(-count // (VECTOR * WARP)) * VECTOR * WARP


def _lanes(threads: Threads, count: int) -> int:
    """Threads that share the comparisons of a key, if there are enough."""
    lanes = 1
    while lanes < WARP and 2 * lanes * count <= threads.total:
        lanes *= 2
    return lanes


def is_short(count: int, threads: Threads) -> bool:
    """Whether comparing each key with all others is faster than sorting them in several steps."""
    lanes = _lanes(threads, count)
    return -(-count * lanes // threads.total) * count <= MOST_COMPARED * lanes


class Ranks:
    """Writes ranks of `count` keys, int32 numbers of less than LAST_KEY, in all threads of a launch.

    The array of keys has `padded(count)` elements at an address that vectors can be read from.
    """

    def __init__(self, f: Function, threads: Threads, count: int, lanes: int = 1) -> None:
        """lanes: fewest threads that share a key, a power of two."""
        self.f, self.threads, self.count = f, threads, count
        self.lanes = max(lanes, _lanes(threads, count))
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
        f, total = self.f, self.f.slot("int32")
        f.write(literal(0, "int32"), total)
        start = f.op(f"mul nsw {self.lane}, {VECTOR}", "int64")
        with f.loop(start, I64(padded(self.count)), VECTOR * self.lanes) as first:
            address = f.at(keys, first, "int32")
            several = f.op(f"load <{VECTOR} x i32>, {address}, align {4 * VECTOR}", "int32", VECTOR)
            found = f.read(total, "int32")
            for k in range(VECTOR):
                one = f.op(f"extractelement {several}, i64 {k}", "int32")
                earlier = f.compare("icmp slt", f.binary("add", first, I64(k)), i)
                limit = f.binary("add", key, f.convert(earlier, "int32"))
                found = f.binary("add", found, f.convert(f.compare("icmp slt", one, limit), "int32"))
            f.write(found, total)
        return f.convert(self.threads.reduce_lanes(f, "sum", f.read(total, "int32"), self.lanes), "int64")
