"""The order of ids by their rows (`core.plan.merge_specs`) on many threads."""

from __future__ import annotations

from collections.abc import Callable

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue, literal
from core.device.buckets import Buckets, PrefixSums, buckets_room, is_local, padded_sums, write_sort
from core.device.merge_sort import MergeSort, MergeWriter, merge_sort
from core.device.ranks import LAST_KEY, is_short, padded
from core.device.rules import Rules
from core.device.threads import Threads
from core.plan.instructions import Kernel
from core.plan.merge_specs import RowOrder

__all__ = ["ROW_ORDERS", "order_bytes", "order_kernel", "order_merge", "order_scratch", "takes_order"]

ROW_ORDERS = {"row_order": ("ids",), "kept_row_order": ("ids", "kept")}
"""Kind of kernel -> its operands."""

WORD = "int32"


def takes_order(each: Kernel) -> bool:
    return each.kind in ROW_ORDERS and each.spec.size < LAST_KEY


def order_scratch(spec: RowOrder, threads: Threads, rules: Rules) -> int:
    """Bytes of scratch memory; 0 if one block sorts in its shared memory."""
    nbytes = order_bytes(spec, threads, rules)
    return 0 if is_local(nbytes, threads, rules.shared_bytes) else nbytes


def order_bytes(spec: RowOrder, threads: Threads, rules: Rules) -> int:
    """Bytes that a sort needs: the keys, the number of ids that have a row, and the rest (`_rest`)."""
    merge = order_merge(spec, threads, rules)
    if merge is not None:
        return _before_arrays(threads) + 2 * merge.array_bytes
    return 4 * (padded(spec.count) + 4 + _rest(spec, threads))


def order_merge(spec: RowOrder, threads: Threads, rules: Rules) -> MergeSort | None:
    """How one block merges the ids; None if it compares each with all others, or has no room."""
    if is_short(spec.count, threads):
        return None
    return merge_sort(spec.count, spec.size, threads, rules.shared_bytes - _before_arrays(threads))


def _before_arrays(threads: Threads) -> int:
    """Bytes before the arrays of a merge sort: the number of ids that have a row, and room for prefix sums."""
    return 4 * (4 + padded_sums(threads.warps))


def _rest(spec: RowOrder, threads: Threads) -> int:
    """Words of the buckets, which include `_Writer.firsts`; without buckets, words of `firsts` and its prefix sums."""
    if is_short(spec.count, threads):
        return padded_sums(threads.warps) + padded_sums(spec.count + 1)
    return buckets_room(spec.count, spec.size, threads)


def order_kernel(name: str, each: Kernel, threads: Threads, rules: Rules) -> Function:
    """``name(ids, [kept,] order, rows, starts, count, scratch, error, check)`` for all threads."""
    names = (*ROW_ORDERS[each.kind], "order", "rows", "starts", "count", "scratch", "error")
    f = Function(name, [*((n, "ptr") for n in names), ("check", "int64")], noalias=False)
    nbytes, merge = order_bytes(each.spec, threads, rules), order_merge(each.spec, threads, rules)
    local = is_local(nbytes, threads, rules.shared_bytes)
    memory = threads.shared(f, nbytes) if local else f.param("scratch")
    if merge is None:
        _Writer(f, each.spec, threads, memory).write()
    else:
        _Merger(f, each.spec, threads, memory, merge).write()
    if local:
        threads.barrier(f)  # the shared memory is used again
    return f


class _Writer:
    """The key of an id is its row; that of an id without one is the number of rows.

    firsts: for each place in order 1 if the key there is the first one of its row, then the number of rows before it.
    """

    def __init__(self, f: Function, spec: RowOrder, threads: Threads, memory: IRValue) -> None:
        self.f, self.spec, self.threads = f, spec, threads
        self.keys = memory
        self.total = f.at(memory, I64(padded(spec.count)), WORD)
        rest = f.at(self.total, I64(4), WORD)
        self.buckets: Buckets | None = None
        if is_short(spec.count, threads):
            sums, self.firsts = rest, f.at(rest, I64(padded_sums(threads.warps)), WORD)
        else:
            self.buckets = Buckets(f, threads, self.keys, spec.count, spec.size, rest)
            sums, self.firsts = self.buckets.sums, self.buckets.arrivals
        self.numbers = PrefixSums(f, threads, self.firsts, spec.count + 1, sums)

    def write(self) -> None:
        parts = self.parts()
        for part in parts:
            if part != parts[0]:
                self.threads.barrier(self.f)
            part()

    def parts(self) -> list[Callable[[], None]]:
        """The steps, between which all threads wait for each other."""
        parts = [self._read, self._sort, self.numbers.write, self._number]
        return parts if self.buckets is None else [self.buckets.clear, *parts]

    def _read(self) -> None:
        """Write the keys, and what fills the arrays up."""
        f, spec = self.f, self.spec
        with f.loop(self.threads.number(f), I64(spec.count), self.threads.total) as i:
            raw = f.convert(f.load(f.at(f.param("ids"), i, spec.dtype), spec.dtype), "int64")
            row = f.select(f.compare("icmp slt", raw, I64(0)), f.binary("add", raw, I64(spec.size)), raw)
            fine = f.compare("icmp ult", row, I64(spec.size))
            keeps = f.load(f.at(f.param("kept"), i, "bool"), "bool") if spec.kept else literal(True, "bool")
            with f.when(f.binary("and", keeps, self._not(fine))):
                fail(f, f.param("error"), f.param("check"))
            keeps = f.binary("and", keeps, fine)
            if spec.padding >= 0:
                keeps = f.binary("and", keeps, f.compare("icmp ne", row, I64(spec.padding)))
            self._put_key(i, f.select(keeps, row, I64(spec.size)))
        self._fill()
        with self.threads.alone(f):
            f.store(literal(spec.count, WORD), self.total)

    def _put_key(self, i: IRValue, key: IRValue) -> None:
        word = self.f.convert(key, WORD)
        self.f.store(word, self.f.at(self.keys, i, WORD))
        if self.buckets is not None:
            self.buckets.arrive(i, word)

    def _fill(self) -> None:
        f = self.f
        behind = f.binary("add", self.threads.number(f), I64(self.spec.count))
        with f.loop(behind, I64(padded(self.spec.count)), self.threads.total) as i:
            f.store(literal(LAST_KEY, WORD), f.at(self.keys, i, WORD))
        self._fill_firsts()

    def _fill_firsts(self) -> None:
        f = self.f
        behind = f.binary("add", self.threads.number(f), I64(self.spec.count))
        with f.loop(behind, I64(self.numbers.room), self.threads.total) as i:
            f.store(literal(0, WORD), f.at(self.firsts, i, WORD))

    def _sort(self) -> None:
        """Write the order of the ids, mark the first one of each row, and find how many ids have a row."""

        def put(i: IRValue, key: IRValue, place: IRValue, earlier: IRValue | None) -> None:
            assert earlier is not None
            self._put(i, key, place, self.f.compare("icmp eq", earlier, literal(0, WORD)))

        write_sort(self.f, self.threads, self.keys, self.spec.count, self.buckets, put, equal=True)

    def _put(self, i: IRValue, key: IRValue, place: IRValue, first: IRValue) -> None:
        """Write what id `i` leaves at its place. first: whether no equal key is before it."""
        f = self.f
        has_row = f.compare("icmp slt", f.convert(key, WORD), literal(self.spec.size, WORD))
        f.store(f.convert(i, WORD), f.at(f.param("order"), place, WORD))
        f.store(f.convert(f.binary("and", first, has_row), WORD), f.at(self.firsts, place, WORD))
        with f.when(f.binary("and", first, self._not(has_row))):
            f.store(f.convert(place, WORD), self.total)

    def _number(self) -> None:
        """Write each row and where it begins. The rows behind the last one are 0, and have no ids."""
        f, spec = self.f, self.spec
        number = lambda i: f.convert(f.load(f.at(self.firsts, i, WORD), WORD), "int64")
        with f.loop(self.threads.number(f), I64(spec.count), self.threads.total) as i:
            own = number(i)
            with f.when(f.compare("icmp ne", own, number(f.binary("add", i, I64(1))))):
                f.store(self._key_at(i), f.at(f.param("rows"), own, "int64"))
                f.store(f.convert(i, WORD), f.at(f.param("starts"), own, WORD))
        found = number(I64(spec.count))
        with self.threads.alone(f):
            f.store(found, f.param("count"))
        with f.loop(f.binary("add", found, self.threads.number(f)), I64(spec.room + 1), self.threads.total) as i:
            f.store(f.load(self.total, WORD), f.at(f.param("starts"), i, WORD))
            with f.when(f.compare("icmp slt", i, I64(spec.room))):
                f.store(I64(0), f.at(f.param("rows"), i, "int64"))

    def _key_at(self, place: IRValue) -> IRValue:
        f = self.f
        id = f.convert(f.load(f.at(f.param("order"), place, WORD), WORD), "int64")
        return f.convert(f.load(f.at(self.keys, id, WORD), WORD), "int64")

    def _not(self, value: IRValue) -> IRValue:
        return self.f.binary("xor", value, literal(True, "bool"))


class _Merger(_Writer):
    """Sorts the ids with a merge sort of one block."""

    def __init__(self, f: Function, spec: RowOrder, threads: Threads, memory: IRValue, merge: MergeSort) -> None:
        self.f, self.spec, self.threads = f, spec, threads
        self.total, sums = memory, f.at(memory, I64(4), WORD)
        self.merge = MergeWriter(f, threads, merge, f.at(memory, I64(_before_arrays(threads)), "int8"))
        self.firsts = self.merge.spare
        self.numbers = PrefixSums(f, threads, self.firsts, spec.count + 1, sums)

    def parts(self) -> list[Callable[[], None]]:
        return [self._read, self.merge.sort, self._mark, self.numbers.write, self._number]

    def _put_key(self, i: IRValue, key: IRValue) -> None:
        self.merge.put(i, key)

    def _fill(self) -> None:
        self.merge.fill()

    def _mark(self) -> None:
        f = self.f
        with f.loop(self.threads.number(f), I64(self.spec.count), self.threads.total) as place:
            key = self.merge.key(place)
            before = f.intrinsic("smax", f.binary("sub", place, I64(1)), I64(0))
            changes = f.compare("icmp ne", self.merge.key(before), key)
            first = f.binary("or", changes, f.compare("icmp eq", place, I64(0)))
            self._put(self.merge.number(place), key, place, first)
        self._fill_firsts()

    def _key_at(self, place: IRValue) -> IRValue:
        return self.merge.key(place)
