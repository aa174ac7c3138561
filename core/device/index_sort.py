"""The order of an index by the rows that it names (`core.device.index_orders`) on many threads.

Few positions are sorted by comparing all of them, others by buckets. Both keep the order of equal ones.
"""

from __future__ import annotations

from core.codegen.gather_scatter import checked
from core.codegen.llvm import I64, Function, IRValue, literal
from core.device.buckets import Buckets, buckets_room, is_local, shift_of, write_sort
from core.device.index_orders import IndexOrder, is_sparse
from core.device.merge_sort import MergeSort, MergeWriter, merge_sort
from core.device.patch_tiles import total
from core.device.ranks import LAST_KEY, is_short, padded
from core.device.rules import Rules
from core.device.threads import Threads
from core.plan.instructions import Kernel

__all__ = ["index_merge", "index_order_bytes", "index_order_kernel", "index_order_scratch"]

WORD = "int32"


def index_order_scratch(spec: IndexOrder, threads: Threads, rules: Rules) -> int:
    """Bytes of scratch memory; 0 if one block sorts in its shared memory."""
    nbytes = index_order_bytes(spec, threads, rules)
    return 0 if is_local(nbytes, threads, rules.shared_bytes) else nbytes


def index_order_bytes(spec: IndexOrder, threads: Threads, rules: Rules) -> int:
    """Bytes: the keys as they come and, if they are searched, as they are sorted; what buckets need."""
    merge = index_merge(spec, threads, rules)
    if merge is not None:
        return 2 * merge.array_bytes
    return 4 * (padded(spec.count) * (2 if _searches(spec, threads) else 1) + _buckets_room(spec, threads))


def index_merge(spec: IndexOrder, threads: Threads, rules: Rules) -> MergeSort | None:
    """How one block merges the positions; None if it compares each with all others, or has no room."""
    if is_short(spec.count, threads):
        return None
    return merge_sort(spec.count, spec.size, threads, rules.shared_bytes)


def _buckets_room(spec: IndexOrder, threads: Threads) -> int:
    """Words of a sort by buckets; 0 if keys are compared with all others."""
    return 0 if is_short(spec.count, threads) else buckets_room(spec.count, spec.size, threads)


def _searches(spec: IndexOrder, threads: Threads) -> bool:
    """Whether the starts of rows are searched among the sorted keys. If each bucket is a row, the sort has them."""
    by_rows = not is_short(spec.count, threads) and not shift_of(spec.count, spec.size)
    return not is_sparse(spec.count, spec.size) and not by_rows


def index_order_kernel(name: str, each: Kernel, threads: Threads, rules: Rules) -> Function:
    """``name(index, order, bounds, scratch, error, check)`` for all threads."""
    names = ("index", "order", "bounds", "scratch", "error")
    f = Function(name, [*((n, "ptr") for n in names), ("check", "int64")], noalias=False)
    nbytes, merge = index_order_bytes(each.spec, threads, rules), index_merge(each.spec, threads, rules)
    local = is_local(nbytes, threads, rules.shared_bytes)
    memory = threads.shared(f, nbytes) if local else f.param("scratch")
    if merge is None:
        _Sort(f, each.spec, threads, memory, local).write()
    else:
        _Merger(f, each.spec, threads, memory, merge).write()
    if local:
        threads.barrier(f)  # the shared memory is used again
    return f


class _Sort:
    """Sorts the positions of an index. Keys are the rows that they name. local: whether `memory` is shared memory."""

    def __init__(self, f: Function, spec: IndexOrder, threads: Threads, memory: IRValue, local: bool) -> None:
        self.f, self.spec, self.threads = f, spec, threads
        self.keys, self.searches = memory, _searches(spec, threads)
        own = padded(spec.count)
        self.sorted = f.at(self.keys, I64(own), WORD) if self.searches else f.param("bounds")
        rest = f.at(self.keys, I64(2 * own if self.searches else own), WORD)
        self.starts_known = not self.searches and not is_sparse(spec.count, spec.size)
        self.copies = self.starts_known and local
        starts = f.param("bounds") if self.starts_known and not local else None  # their counters are near, if they can
        by_buckets = _buckets_room(spec, threads) > 0
        self.buckets = Buckets(f, threads, self.keys, spec.count, spec.size, rest, starts) if by_buckets else None

    def write(self) -> None:
        if self.buckets is not None:
            self.buckets.clear()
            self.threads.barrier(self.f)
        self._read_keys()
        self.threads.barrier(self.f)
        self._sort()
        if self.searches:
            self.threads.barrier(self.f)
            self._find_starts()
        if self.copies:
            self._copy_starts()

    def _copy_starts(self) -> None:
        f = self.f
        assert self.buckets is not None, "each bucket is a row"
        with f.loop(self.threads.number(f), I64(self.spec.size + 1), self.threads.total) as row:
            self._put(self.buckets.start(row), f.param("bounds"), row)

    def _read_keys(self) -> None:
        """Copy the index, counted from the front."""
        f, spec = self.f, self.spec
        with f.loop(self.threads.number(f), I64(spec.count), self.threads.total) as i:
            self._put_key(i, checked(f, f.at(f.param("index"), i, spec.dtype), spec.dtype, spec.size))
        self._fill()

    def _put_key(self, i: IRValue, key: IRValue) -> None:
        self._put(key, self.keys, i)
        if self.buckets is not None:
            self.buckets.arrive(i, key)

    def _fill(self) -> None:
        f, spec = self.f, self.spec
        if self.buckets is None:
            behind = f.binary("add", self.threads.number(f), I64(spec.count))
            with f.loop(behind, I64(padded(spec.count)), self.threads.total) as i:
                f.store(literal(LAST_KEY, WORD), f.at(self.keys, i, WORD))

    def _sort(self) -> None:
        """Write the positions, and the keys that are needed, in order; equal keys in the order of the index."""
        f = self.f

        def put(i: IRValue, key: IRValue, at: IRValue, _: IRValue | None) -> None:
            if not self.starts_known:
                self._put(key, self.sorted, at)
            self._put(i, f.param("order"), at)

        write_sort(f, self.threads, self.keys, self.spec.count, self.buckets, put)

    def _find_starts(self) -> None:
        """The number of keys below each row, by halving."""
        f, spec = self.f, self.spec
        with f.loop(self.threads.number(f), I64(spec.size + 1), self.threads.total) as key:
            low, high = f.slot("int64"), f.slot("int64")
            f.write(I64(0), low)
            f.write(I64(spec.count), high)
            with f.loop(I64(0), I64(spec.count.bit_length())):
                a, b = f.read(low, "int64"), f.read(high, "int64")
                middle = f.op(f"lshr i64 {f.binary('add', a, b).name}, 1", "int64")
                open = f.compare("icmp slt", a, b)
                inside = f.select(open, middle, I64(0))
                less = f.binary("and", open, f.compare("icmp slt", self._key_at(inside), key))
                f.write(f.select(less, total(f, [middle], start=1), a), low)
                f.write(f.select(f.binary("and", open, f.op(f"xor {less}, true", "bool")), middle, b), high)
            self._put(f.read(low, "int64"), f.param("bounds"), key)

    def _key_at(self, place: IRValue) -> IRValue:
        return self.f.convert(self.f.load(self.f.at(self.sorted, place, WORD), WORD), "int64")

    def _put(self, value: IRValue, array: IRValue, at: IRValue) -> None:
        self.f.store(self.f.convert(value, WORD), self.f.at(array, at, WORD))


class _Merger(_Sort):
    """Sorts the positions with a merge sort of one block."""

    def __init__(self, f: Function, spec: IndexOrder, threads: Threads, memory: IRValue, merge: MergeSort) -> None:
        self.f, self.spec, self.threads = f, spec, threads
        self.merge = MergeWriter(f, threads, merge, memory)

    def write(self) -> None:
        self._read_keys()
        self.threads.barrier(self.f)
        self.merge.sort()
        self.threads.barrier(self.f)
        self._write_order()
        if not is_sparse(self.spec.count, self.spec.size):
            self._find_starts()

    def _put_key(self, i: IRValue, key: IRValue) -> None:
        self.merge.put(i, key)

    def _fill(self) -> None:
        self.merge.fill()

    def _write_order(self) -> None:
        f = self.f
        with f.loop(self.threads.number(f), I64(self.spec.count), self.threads.total) as place:
            self._put(self.merge.number(place), f.param("order"), place)
            if is_sparse(self.spec.count, self.spec.size):
                self._put(self.merge.key(place), f.param("bounds"), place)

    def _key_at(self, place: IRValue) -> IRValue:
        return self.merge.key(place)
