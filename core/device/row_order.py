"""The order of ids by their rows (`core.plan.merge_specs`) on many threads."""

from __future__ import annotations

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue, literal
from core.device.buckets import Buckets, PrefixSums, buckets_room, is_local, padded_sums, write_sort
from core.device.ranks import LAST_KEY, is_short, padded
from core.device.rules import Rules
from core.device.threads import Threads
from core.plan.data import Kernel
from core.plan.merge_specs import RowOrder

__all__ = ["ROW_ORDERS", "order_bytes", "order_kernel", "order_scratch", "takes_order"]

ROW_ORDERS = {"row_order": ("ids",), "kept_row_order": ("ids", "kept")}
"""Kind of kernel -> its operands."""

WORD = "int32"


def takes_order(each: Kernel) -> bool:
    return each.kind in ROW_ORDERS and each.spec.size < LAST_KEY


def order_scratch(spec: RowOrder, threads: Threads, rules: Rules) -> int:
    """Bytes of scratch memory; 0 if one block sorts in its shared memory."""
    nbytes = order_bytes(spec, threads)
    return 0 if is_local(nbytes, threads, rules.shared_bytes) else nbytes


def order_bytes(spec: RowOrder, threads: Threads) -> int:
    """Bytes that a sort needs: the keys, the number of ids that have a row, and the rest (`_rest`)."""
    return 4 * (padded(spec.count) + 4 + _rest(spec, threads))


def _rest(spec: RowOrder, threads: Threads) -> int:
    """Words of the buckets, which include `_Writer.firsts`; without buckets, words of `firsts` and its prefix sums."""
    if is_short(spec.count, threads):
        return padded_sums(threads.warps) + padded_sums(spec.count + 1)
    return buckets_room(spec.count, spec.size, threads)


def order_kernel(name: str, each: Kernel, threads: Threads, rules: Rules) -> Function:
    """``name(ids, [kept,] order, rows, starts, count, scratch, error, check)`` for all threads."""
    names = (*ROW_ORDERS[each.kind], "order", "rows", "starts", "count", "scratch", "error")
    f = Function(name, [*((n, "ptr") for n in names), ("check", "int64")], noalias=False)
    nbytes = order_bytes(each.spec, threads)
    local = is_local(nbytes, threads, rules.shared_bytes)
    _Writer(f, each.spec, threads, threads.shared(f, nbytes) if local else f.param("scratch")).write()
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
        parts = [self._read, self._sort, self.numbers.write, self._number]
        if self.buckets is not None:
            parts.insert(0, self.buckets.clear)
        for part in parts:
            if part != parts[0]:
                self.threads.barrier(self.f)
            part()

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
            key = f.select(keeps, f.convert(row, WORD), literal(spec.size, WORD))
            f.store(key, f.at(self.keys, i, WORD))
            if self.buckets is not None:
                self.buckets.arrive(i, key)
        behind = f.binary("add", self.threads.number(f), I64(spec.count))
        with f.loop(behind, I64(padded(spec.count)), self.threads.total) as i:
            f.store(literal(LAST_KEY, WORD), f.at(self.keys, i, WORD))
        with f.loop(behind, I64(self.numbers.room), self.threads.total) as i:
            f.store(literal(0, WORD), f.at(self.firsts, i, WORD))
        with self.threads.alone(f):
            f.store(literal(spec.count, WORD), self.total)

    def _sort(self) -> None:
        """Write the order of the ids, mark the first one of each row, and find how many ids have a row."""
        f = self.f

        def put(i: IRValue, key: IRValue, place: IRValue, earlier: IRValue | None) -> None:
            assert earlier is not None
            first = f.compare("icmp eq", earlier, literal(0, WORD))
            has_row = f.compare("icmp slt", f.convert(key, WORD), literal(self.spec.size, WORD))
            f.store(f.convert(i, WORD), f.at(f.param("order"), place, WORD))
            f.store(f.convert(f.binary("and", first, has_row), WORD), f.at(self.firsts, place, WORD))
            with f.when(f.binary("and", first, self._not(has_row))):
                f.store(f.convert(place, WORD), self.total)

        write_sort(f, self.threads, self.keys, self.spec.count, self.buckets, put, equal=True)

    def _number(self) -> None:
        """Write each row and where it begins. The rows behind the last one are 0, and have no ids."""
        f, spec = self.f, self.spec
        number = lambda i: f.convert(f.load(f.at(self.firsts, i, WORD), WORD), "int64")
        with f.loop(self.threads.number(f), I64(spec.count), self.threads.total) as i:
            own = number(i)
            with f.when(f.compare("icmp ne", own, number(f.binary("add", i, I64(1))))):
                id = f.convert(f.load(f.at(f.param("order"), i, WORD), WORD), "int64")
                key = f.convert(f.load(f.at(self.keys, id, WORD), WORD), "int64")
                f.store(key, f.at(f.param("rows"), own, "int64"))
                f.store(f.convert(i, WORD), f.at(f.param("starts"), own, WORD))
        found = number(I64(spec.count))
        with self.threads.alone(f):
            f.store(found, f.param("count"))
        with f.loop(f.binary("add", found, self.threads.number(f)), I64(spec.room + 1), self.threads.total) as i:
            f.store(f.load(self.total, WORD), f.at(f.param("starts"), i, WORD))
            with f.when(f.compare("icmp slt", i, I64(spec.room))):
                f.store(I64(0), f.at(f.param("rows"), i, "int64"))

    def _not(self, value: IRValue) -> IRValue:
        return self.f.binary("xor", value, literal(True, "bool"))
