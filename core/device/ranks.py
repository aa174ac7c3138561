"""Ranks of keys by comparison with all others: the threads of a part of a warp share the comparisons of a key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.codegen.llvm import I64, Function, IRValue, literal
from core.device.threads import WARP, Threads

__all__ = ["LAST_KEY", "Ranks", "is_short", "padded"]

VECTOR = 4
"""Keys of one load."""

MOST_COMPARED, MOST_ON_ONE_BLOCK = 512, 64
"""Comparisons of a thread, above which keys are not compared with all others: where all blocks would wait for each
other between the steps of another sort, and on one block, whose barriers take a hundredth of that time.
"""

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
    most = MOST_COMPARED if threads.blocks > 1 else MOST_ON_ONE_BLOCK
    return -(-count * lanes // threads.total) * count <= most * lanes


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

    def before(self, keys: IRValue, i: IRValue, key: IRValue, equal: bool = False) -> tuple[IRValue, IRValue | None]:
        """How many keys come before key `i`: smaller ones, and equal ones with a smaller number. key: int32.

        equal: whether the second result is how many of them are equal.
        """
        f, total, same = self.f, self.f.slot("int32"), self.f.slot("int32")
        f.write(literal(0, "int32"), total)
        f.write(literal(0, "int32"), same)
        start = f.op(f"mul nsw {self.lane}, {VECTOR}", "int64")
        with f.loop(start, I64(padded(self.count)), VECTOR * self.lanes) as first:
            address = f.at(keys, first, "int32")
            several = f.op(f"load <{VECTOR} x i32>, {address}, align {4 * VECTOR}", "int32", VECTOR)
            found, alike = f.read(total, "int32"), f.read(same, "int32")
            for k in range(VECTOR):
                one = f.op(f"extractelement {several}, i64 {k}", "int32")
                earlier = f.compare("icmp slt", f.binary("add", first, I64(k)), i)
                limit = f.binary("add", key, f.convert(earlier, "int32"))
                found = f.binary("add", found, f.convert(f.compare("icmp slt", one, limit), "int32"))
                if equal:
                    both = f.binary("and", earlier, f.compare("icmp eq", one, key))
                    alike = f.binary("add", alike, f.convert(both, "int32"))
            f.write(found, total)
            f.write(alike, same)
        found = f.convert(self.threads.reduce_lanes(f, "sum", f.read(total, "int32"), self.lanes), "int64")
        return found, self.threads.reduce_lanes(f, "sum", f.read(same, "int32"), self.lanes) if equal else None
