"""A sort of keys by many threads: keys fall into buckets by their highest bits, and are compared within a bucket.

The keys of a bucket arrive in any order. So each looks for its place among them: behind smaller keys, and behind equal
ones with a smaller number. Then the order does not depend on that of the threads. Keys that are spread evenly have few
others in their bucket; if all are equal, each is compared with each.

All threads of the launch wait for each other between the steps. Integers are added atomically, so that their sums do
not depend on the order of threads either. One block keeps the keys in its shared memory, if they fit (`is_local`).
"""

from __future__ import annotations

from collections.abc import Callable

from core.codegen.llvm import I64, Function, IRValue, literal
from core.device.ranks import Ranks
from core.device.threads import WARP, Threads, in_bundles

__all__ = ["Buckets", "PrefixSums", "Put", "buckets_room", "is_local", "padded_sums", "shift_of", "write_sort"]

WORD = "int32"

VECTOR = 4
"""Words of one load."""

TOGETHER = VECTOR * WARP
"""Words that a warp adds up at once."""

LANES = 2
"""Threads of several blocks that compare a key with those of its bucket, if there are not more threads than keys. A
thread that has several keys waits for memory for each of them, so more threads for each key help only where buckets
have many keys. On one block, whose memory is near, a key has one thread.
"""

AT_ONCE = 4
"""Keys of a bucket that a thread loads together."""


Put = Callable[[IRValue, IRValue, IRValue, IRValue | None], None]
"""``(number, key, place, earlier)``: writes what a key leaves in the sorted order.

earlier: how many equal keys are before it, int32, if the caller wants that; else None.
"""


def is_local(nbytes: int, threads: Threads, shared_bytes: int) -> bool:
    """Whether a sort that needs so many bytes has them in shared memory, of which a block may have `shared_bytes`."""
    return threads.blocks == 1 and nbytes <= shared_bytes


def padded_sums(count: int) -> int:
    """Words of an array for `PrefixSums`."""
    return -(-count // TOGETHER) * TOGETHER


def shift_of(count: int, size: int) -> int:
    """The low bits of keys from 0 to `size` that do not choose the bucket: there are at most twice as many buckets as
    keys.
    """
    shift = 0
    while (size >> shift) + 1 > 2 * count:
        shift += 1
    return shift


def _buckets(count: int, size: int) -> int:
    return (size >> shift_of(count, size)) + 1


def buckets_room(count: int, size: int, threads: Threads) -> int:
    """Words of scratch memory."""
    return padded_sums(_buckets(count, size) + 1) + padded_sums(threads.warps) + padded_sums(count + 1) + count


class PrefixSums:
    """Replaces each word of an array by the sum of those before it.

    words: the array, of `padded_sums(count)` words, which are 0 behind `count`. sums: room for as many as there are
    warps, padded likewise. Both begin where vectors can be read from.
    """

    def __init__(self, f: Function, threads: Threads, words: IRValue, count: int, sums: IRValue) -> None:
        self.f, self.threads, self.words, self.sums = f, threads, words, sums
        self.room = padded_sums(count)
        self.each = -(-self.room // (threads.warps * TOGETHER)) * TOGETHER
        self.warps = -(-self.room // self.each)

    def write(self) -> None:
        """Two steps, with a wait of all threads between them. The caller waits before and behind."""
        f, threads = self.f, self.threads
        lane, warp = threads.lane(f), f.op(f"udiv {threads.number(f)}, {WARP}", "int64")
        first = f.op(f"mul nsw {warp}, {self.each}", "int64")
        end = f.intrinsic("smin", f.binary("add", first, I64(self.each)), I64(self.room))
        works = f.compare("icmp slt", warp, I64(self.warps))
        total = f.slot(WORD)
        with f.when(works):
            self._add(total, self.words, first, end, lane)
            with f.when(f.compare("icmp eq", lane, I64(0))):
                f.store(f.read(total, WORD), f.at(self.sums, warp, WORD))
        threads.barrier(f)
        with f.when(works):
            self._add(total, self.sums, I64(0), warp, lane, whole=False)
            with f.loop(first, end, TOGETHER) as start:
                address = self._address(self.words, start, lane)
                given = self._four(address)
                found = [literal(0, WORD)]
                for k in range(VECTOR):
                    one = f.op(f"extractelement {given}, i64 {k}", WORD)
                    found.append(f.binary("add", found[-1], one))
                before, whole = self._among_lanes(found[-1], lane)
                before = f.binary("add", f.read(total, WORD), before)
                f.write(f.binary("add", f.read(total, WORD), whole), total)
                for k in range(VECTOR):
                    f.store(f.binary("add", before, found[k]), f.at(address, I64(k), WORD))

    def _add(
        self, total: IRValue, words: IRValue, first: IRValue, end: IRValue, lane: IRValue, whole: bool = True
    ) -> None:
        """Write the sum of the words from `first` to `end` to a slot, in all threads of a warp.

        whole: whether the words are a multiple of those that the threads read together.
        """
        f = self.f
        f.write(literal(0, WORD), total)
        with f.loop(first, end, TOGETHER) as start:
            given = self._four(self._address(words, start, lane))
            for k in range(VECTOR):
                one = f.op(f"extractelement {given}, i64 {k}", WORD)
                if not whole:
                    at = f.binary("add", self._place(start, lane), I64(k))
                    one = f.select(f.compare("icmp slt", at, end), one, literal(0, WORD))
                f.write(f.binary("add", f.read(total, WORD), one), total)
        f.write(self.threads.reduce_warp(f, "sum", f.read(total, WORD)), total)

    def _among_lanes(self, value: IRValue, lane: IRValue) -> tuple[IRValue, IRValue]:
        """The sum of the values of the threads of a warp before this one, and of all of them."""
        f, before, distance = self.f, literal(0, WORD), 1
        while distance < WARP:
            other = self.threads.exchanged(f, value, distance)
            behind = f.compare("icmp ne", f.op(f"and {lane}, {distance}", "int64"), I64(0))
            before = f.binary("add", before, f.select(behind, other, literal(0, WORD)))
            value, distance = f.binary("add", value, other), 2 * distance
        return before, value

    def _place(self, start: IRValue, lane: IRValue) -> IRValue:
        return self.f.binary("add", start, self.f.op(f"mul nsw {lane}, {VECTOR}", "int64"))

    def _address(self, words: IRValue, start: IRValue, lane: IRValue) -> IRValue:
        return self.f.at(words, self._place(start, lane), WORD)

    def _four(self, address: IRValue) -> IRValue:
        return self.f.op(f"load <{VECTOR} x i32>, {address}, align {4 * VECTOR}", WORD, VECTOR)


class Buckets:
    """Writes the sort of `count` keys, from 0 to `size`, in all threads of a launch.

    keys: int32. scratch: `buckets_room` words, where vectors can be read from. starts: an array for the place of the
    first key of each bucket, and for the number of keys; by default a part of scratch.
    arrivals: `padded_sums(count + 1)` words, which `put` of `sort` may use for something else. sums: room for
    `PrefixSums`, behind `sort` too.
    """

    def __init__(
        self,
        f: Function,
        threads: Threads,
        keys: IRValue,
        count: int,
        size: int,
        scratch: IRValue,
        starts: IRValue | None = None,
    ) -> None:
        self.f, self.threads, self.keys, self.count = f, threads, keys, count
        self.shift, self.buckets = shift_of(count, size), _buckets(count, size)
        self.starts, room = starts or scratch, padded_sums(self.buckets + 1)
        self.sums = f.at(scratch, I64(room), WORD)
        self.arrivals = f.at(self.sums, I64(padded_sums(threads.warps)), WORD)
        self.members = f.at(self.arrivals, I64(padded_sums(count + 1)), WORD)
        self._room = room
        self._sums = PrefixSums(f, threads, self.starts, self.buckets + 1, self.sums)

    def clear(self) -> None:
        """The step before the keys are known. The caller waits behind it."""
        f = self.f
        with f.loop(self.threads.number(f), I64(self._room), self.threads.total) as i:
            f.store(literal(0, WORD), f.at(self.starts, i, WORD))

    def arrive(self, i: IRValue, key: IRValue) -> None:
        """Count key `i` in its bucket. The caller has written all of them, and waits, before `sort`."""
        f = self.f
        counter = f.at(self.starts, self.bucket(f.convert(key, "int64")), WORD)
        arrival = f.op(f'atomicrmw add {counter}, i32 1 syncscope("device") monotonic', WORD)
        f.store(arrival, f.at(self.arrivals, i, WORD))

    def sort(self, put: Put, equal: bool = False) -> None:
        """The steps that follow. The caller waits behind it. equal: whether `put` has the number of equal keys."""
        f, threads = self.f, self.threads
        self._sums.write()
        threads.barrier(f)
        with f.loop(threads.number(f), I64(self.count), threads.total) as i:
            arrival = f.convert(f.load(f.at(self.arrivals, i, WORD), WORD), "int64")
            place = f.binary("add", self.start(self.bucket(self._key(i))), arrival)
            f.store(f.convert(i, WORD), f.at(self.members, place, WORD))
        threads.barrier(f)
        ranks = Ranks(f, threads, self.count, LANES if threads.blocks > 1 else 1)
        with ranks.each() as (i, leads):
            key = self._key(i)
            bucket = self.bucket(key)
            first, end = self.start(bucket), self.start(f.binary("add", bucket, I64(1)))
            earlier, same = f.slot(WORD), f.slot(WORD)
            f.write(literal(0, WORD), earlier)
            f.write(literal(0, WORD), same)

            def compare(
                places: list[IRValue], i: IRValue = i, key: IRValue = key, earlier: IRValue = earlier,
                same: IRValue = same,
            ) -> None:  # fmt: skip
                others = [f.convert(f.load(f.at(self.members, at, WORD), WORD), "int64") for at in places]
                keys = [self._key(other) for other in others] if self.shift else [key] * len(others)
                for other, its in zip(others, keys, strict=True):
                    before = f.compare("icmp slt", other, i)
                    if self.shift:
                        alike = f.binary("and", f.compare("icmp eq", its, key), before)
                        before = f.binary("or", f.compare("icmp slt", its, key), alike)
                        if equal:
                            f.write(f.binary("add", f.read(same, WORD), f.convert(alike, WORD)), same)
                    f.write(f.binary("add", f.read(earlier, WORD), f.convert(before, WORD)), earlier)

            in_bundles(f, f.binary("add", first, ranks.lane), end, ranks.lanes, AT_ONCE, compare)
            rank = threads.reduce_lanes(f, "sum", f.read(earlier, WORD), ranks.lanes)
            if equal:
                alike = threads.reduce_lanes(f, "sum", f.read(same, WORD), ranks.lanes) if self.shift else rank
            with f.when(leads):
                put(i, key, f.binary("add", first, f.convert(rank, "int64")), alike if equal else None)

    def start(self, bucket: IRValue) -> IRValue:
        """The place of the first key of a bucket, or the number of keys behind the last one."""
        return self.f.convert(self.f.load(self.f.at(self.starts, bucket, WORD), WORD), "int64")

    def bucket(self, key: IRValue) -> IRValue:
        return self.f.binary("lshr", key, I64(self.shift)) if self.shift else key

    def _key(self, i: IRValue) -> IRValue:
        return self.f.convert(self.f.load(self.f.at(self.keys, i, WORD), WORD), "int64")


def write_sort(
    f: Function, threads: Threads, keys: IRValue, count: int, buckets: Buckets | None, put: Put, equal: bool = False
) -> None:
    """Sort `count` keys, equal ones in the order of their numbers: by buckets, or by comparing each with all others.

    keys: int32, `padded(count)` of them, each of which has arrived. put, equal: see `Buckets.sort`.
    """
    if buckets is not None:
        buckets.sort(put, equal)
        return
    ranks = Ranks(f, threads, count)
    with ranks.each() as (i, leads):
        key = f.load(f.at(keys, i, WORD), WORD)
        place, same = ranks.before(keys, i, key, equal)
        with f.when(leads):
            put(i, key, place, same)
