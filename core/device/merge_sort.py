"""A merge sort of keys by one block, in its shared memory. Its time does not depend on the keys.

A word holds a key and, below it, the number of the key: no two words are equal, and equal keys are in the order of
their numbers. Each thread sorts a few words. Then runs of words are merged in pairs, in rounds between two arrays: each
thread finds where its part of a result begins in both runs (the merge path of Odeh et al. 2012), and writes that part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from core.codegen.llvm import I64, Function, IRValue, literal
from core.device.buckets import padded_sums
from core.device.threads import Threads
from core.ops.common.types import as_dtype

__all__ = ["MergeSort", "MergeWriter", "merge_sort"]

MOST_EACH = 17
"""Words that a thread sorts in its registers."""

SEARCH, MERGE = 12, 14
"""Instructions of one step of a search, and of the merge of one word (counted in PTX)."""


@dataclass(frozen=True, slots=True)
class MergeSort:
    """How `count` keys are sorted.

    dtype:   of the words. bits: those below the key.
    each:    words of a thread, an odd number: threads side by side then read from different banks of shared memory.
    threads: that take part, a power of two.
    """

    count: int
    dtype: str
    bits: int
    each: int
    threads: int

    @property
    def words(self) -> int:
        """Words of each of the two arrays."""
        return self.each * self.threads

    @property
    def rounds(self) -> int:
        return self.threads.bit_length() - 1

    @property
    def array_bytes(self) -> int:
        """Bytes of each array. The array that is free behind the sort has room for prefix sums of all places."""
        return max(-(-self.words * as_dtype(self.dtype).itemsize // 16) * 16, 4 * padded_sums(self.count + 1))

    @property
    def instructions(self) -> int:
        """Estimated instructions of a thread."""
        return self.rounds * (SEARCH * self.words.bit_length() + MERGE * self.each)


def merge_sort(count: int, size: int, threads: Threads, room: int) -> MergeSort | None:
    """How the threads of one block sort keys from 0 to `size`; None if they are too many, or there are more blocks.

    room: bytes for the two arrays.
    """
    if threads.blocks > 1:
        return None
    most = 1 << (threads.total.bit_length() - 1)
    each = -(-count // most) | 1
    taking = 1 << (-(-count // each) - 1).bit_length()
    bits = max(1, (count - 1).bit_length())
    dtype = "int32" if (size + 1) << bits < 2**32 else "int64"
    found = MergeSort(count, dtype, bits, each, taking)
    fits = each <= MOST_EACH and (size + 1) << bits < 2**63 and 2 * found.array_bytes <= room
    return found if fits else None


class MergeWriter:
    """Writes a sort. memory: shared memory for its two arrays.

    The caller puts the keys, waits, sorts, waits, and reads them in order. Behind that `spare` is free for other use.
    """

    def __init__(self, f: Function, threads: Threads, sort: MergeSort, memory: IRValue) -> None:
        self.f, self.threads, self.how = f, threads, sort
        arrays = memory, f.at(memory, I64(sort.array_bytes), "int8")
        self._first, self._second = arrays
        self.sorted, self.spare = arrays if sort.rounds % 2 == 0 else arrays[::-1]
        self._last = literal(-1, sort.dtype)  # larger than all words, which have no sign

    def put(self, i: IRValue, key: IRValue) -> None:
        """Write key `i`, int64."""
        f = self.f
        word = f.binary("or", f.binary("shl", key, I64(self.how.bits)), i)
        self._store(f.convert(word, self.how.dtype), self._first, i)

    def fill(self) -> None:
        """Write the words behind the keys."""
        f, how = self.f, self.how
        behind = f.binary("add", self.threads.number(f), I64(how.count))
        with f.loop(behind, I64(how.words), self.threads.total) as i:
            self._store(self._last, self._first, i)

    def key(self, place: IRValue) -> IRValue:
        """The key at a place in order, int64."""
        word = self._load(self.sorted, place)
        return self.f.convert(self.f.binary("lshr", word, literal(self.how.bits, self.how.dtype)), "int64")

    def number(self, place: IRValue) -> IRValue:
        """The number of the key at a place in order, int64."""
        word, mask = self._load(self.sorted, place), (1 << self.how.bits) - 1
        return self.f.convert(self.f.op(f"and {word}, {mask}", self.how.dtype), "int64")

    def sort(self) -> None:
        f, how = self.f, self.how
        number = self.threads.number(f)
        works = f.compare("icmp slt", number, I64(how.threads))
        own = f.op(f"mul nsw {number}, {how.each}", "int64")
        with f.when(works):
            self._sort_own(own)
        with f.loop(I64(0), I64(how.rounds)) as round:
            self.threads.barrier(f)
            with f.when(works):
                self._merge(round, number, own)

    def _sort_own(self, own: IRValue) -> None:
        f, each = self.f, self.how.each
        places = [f.binary("add", own, I64(k)) for k in range(each)]
        words = [self._load(self._first, place) for place in places]
        for i, j in _network(each):
            less = f.compare("icmp ult", words[i], words[j])
            words[i], words[j] = f.select(less, words[i], words[j]), f.select(less, words[j], words[i])
        for word, place in zip(words, places, strict=True):
            self._store(word, self._first, place)

    def _merge(self, round: IRValue, number: IRValue, own: IRValue) -> None:
        """Write the words of this thread in the result of two runs."""
        f, how = self.f, self.how
        length = f.binary("shl", I64(how.each), round)
        pair = f.binary("lshr", number, f.binary("add", round, I64(1)))
        begin = f.binary("mul", f.binary("shl", pair, I64(1)), length)
        skipped = f.binary("sub", own, begin)  # words of the result that are before those of this thread
        turned = f.op(f"trunc {round} to i1", "bool")
        source = f.select(turned, self._second, self._first)
        target = f.select(turned, self._first, self._second)
        a = f.at(source, begin, how.dtype)
        b = f.at(a, length, how.dtype)

        low, high = f.slot("int64"), f.slot("int64")
        f.write(f.intrinsic("smax", f.binary("sub", skipped, length), I64(0)), low)
        f.write(f.intrinsic("smin", skipped, length), high)
        with f.loop(I64(0), f.binary("add", round, I64(how.each.bit_length()))):
            least, most = f.read(low, "int64"), f.read(high, "int64")
            open = f.compare("icmp slt", least, most)
            middle = f.binary("lshr", f.binary("add", least, most), I64(1))
            other = f.binary("sub", f.binary("sub", skipped, middle), I64(1))
            its = self._load(a, f.select(open, middle, I64(0)))
            less = f.compare("icmp ult", its, self._load(b, f.select(open, other, I64(0))))
            f.write(f.select(f.binary("and", open, less), f.binary("add", middle, I64(1)), least), low)
            f.write(f.select(f.binary("and", open, f.binary("xor", less, literal(True, "bool"))), middle, most), high)
        i = f.read(low, "int64")
        j = f.binary("sub", skipped, i)
        first, second = self._inside(a, i, length), self._inside(b, j, length)
        for k in range(how.each):
            takes = f.compare("icmp ult", first, second)
            self._store(f.select(takes, first, second), target, f.binary("add", own, I64(k)))
            if k < how.each - 1:
                i = f.select(takes, f.binary("add", i, I64(1)), i)
                j = f.select(takes, j, f.binary("add", j, I64(1)))
                following = self._inside(f.select(takes, a, b), f.select(takes, i, j), length)
                first, second = f.select(takes, following, first), f.select(takes, second, following)

    def _inside(self, run: IRValue, i: IRValue, length: IRValue) -> IRValue:
        """Word `i` of a run. Behind the end of the run it is the largest word."""
        f = self.f
        inside = f.compare("icmp slt", i, length)
        return f.select(inside, self._load(run, f.select(inside, i, I64(0))), self._last)

    def _load(self, array: IRValue, i: IRValue) -> IRValue:
        return self.f.load(self.f.at(array, i, self.how.dtype), self.how.dtype)

    def _store(self, word: IRValue, array: IRValue, i: IRValue) -> None:
        self.f.store(word, self.f.at(array, i, self.how.dtype))


def _network(count: int) -> Iterator[tuple[int, int]]:
    """The comparisons of Batcher's merge exchange sort (Knuth, volume 3, 5.2.2, algorithm M)."""
    top = 1 << max(0, (count - 1).bit_length() - 1)
    p = top if count > 1 else 0
    while p:
        q, r, d = top, 0, p
        while d:
            yield from ((i, i + d) for i in range(count - d) if i & p == r)
            d, q, r = q - p, q >> 1, p
        p >>= 1
