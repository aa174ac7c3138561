"""The order of ids by their rows (`core.plan.merge_specs`) on many threads."""

from __future__ import annotations

from itertools import accumulate

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue, literal
from core.device.buckets import Buckets, PrefixSums, buckets_room, padded_sums, write_sort
from core.device.ranks import LAST_KEY, is_short, padded
from core.device.threads import Threads
from core.plan.data import Kernel
from core.plan.merge_specs import RowOrder

__all__ = ["ROW_ORDERS", "order_kernel", "order_scratch", "takes_order"]

ROW_ORDERS = {"row_order": ("ids",), "kept_row_order": ("ids", "kept")}
"""Kind of kernel -> its operands."""

WORD = "int32"


def takes_order(each: Kernel) -> bool:
    return each.kind in ROW_ORDERS and each.spec.size < LAST_KEY


def order_scratch(spec: RowOrder, threads: Threads) -> int:
    """Bytes: keys, sorted keys, and marks of the first of equal ones; the number of ids that have a row."""
    buckets = 0 if is_short(spec.count, threads) else buckets_room(spec.count, spec.size, threads)
    return 4 * (2 * padded(spec.count) + padded_sums(spec.count + 1) + padded_sums(threads.warps) + 4 + buckets)


def order_kernel(name: str, each: Kernel, threads: Threads) -> Function:
    """``name(ids, [kept,] order, rows, starts, count, scratch, error, check)`` for all threads."""
    names = (*ROW_ORDERS[each.kind], "order", "rows", "starts", "count", "scratch", "error")
    f = Function(name, [*((n, "ptr") for n in names), ("check", "int64")], noalias=False)
    _Writer(f, each.spec, threads).write()
    return f


class _Writer:
    """The key of an id is its row; that of an id without one is the number of rows, or more."""

    def __init__(self, f: Function, spec: RowOrder, threads: Threads) -> None:
        self.f, self.spec, self.threads = f, spec, threads
        self.room, marks, warps = padded(spec.count), padded_sums(spec.count + 1), padded_sums(threads.warps)
        sizes = (self.room, self.room, marks, warps, 4)
        self.keys, self.ordered, self.firsts, sums, self.total, rest = (
            f.at(f.param("scratch"), I64(at), WORD) for at in accumulate(sizes, initial=0)
        )
        self.numbers = PrefixSums(f, threads, self.firsts, spec.count + 1, sums)
        buckets = None if is_short(spec.count, threads) else Buckets(f, threads, self.keys, spec.count, spec.size, rest)
        self.buckets = buckets

    def write(self) -> None:
        for part in (self._read, self._sort, self._mark, self.numbers.write, self._number, self._fill):
            if part != self._read:
                self.threads.barrier(self.f)
            part()

    def _read(self) -> None:
        """Write the keys, and what fills the arrays up."""
        f, spec = self.f, self.spec
        with f.loop(self.threads.number(f), I64(self.room), self.threads.total) as i:
            exists = f.compare("icmp slt", i, I64(spec.count))
            at = f.select(exists, i, I64(0))
            raw = f.convert(f.load(f.at(f.param("ids"), at, spec.dtype), spec.dtype), "int64")
            row = f.select(f.compare("icmp slt", raw, I64(0)), f.binary("add", raw, I64(spec.size)), raw)
            fine = f.compare("icmp ult", row, I64(spec.size))
            keeps = exists
            if spec.kept:
                keeps = f.binary("and", keeps, f.load(f.at(f.param("kept"), at, "bool"), "bool"))
            with f.when(f.binary("and", keeps, self._not(fine))):
                fail(f, f.param("error"), f.param("check"))
            keeps = f.binary("and", keeps, fine)
            if spec.padding >= 0:
                keeps = f.binary("and", keeps, f.compare("icmp ne", row, I64(spec.padding)))
            last = f.select(exists, literal(spec.size, WORD), literal(LAST_KEY, WORD))
            f.store(f.select(keeps, f.convert(row, WORD), last), f.at(self.keys, i, WORD))
            f.store(literal(LAST_KEY, WORD), f.at(self.ordered, i, WORD))
        with self.threads.alone(f):
            f.store(literal(0, WORD), self.total)
        if self.buckets is not None:
            self.buckets.clear()

    def _sort(self) -> None:
        f = self.f

        def put(i: IRValue, key: IRValue, place: IRValue) -> None:
            key = f.convert(key, WORD)
            f.store(key, f.at(self.ordered, place, WORD))
            with f.when(self._has_row(key)):
                f.store(f.convert(i, WORD), f.at(f.param("order"), place, WORD))

        write_sort(f, self.threads, self.keys, self.spec.count, self.buckets, put)

    def _mark(self) -> None:
        """Mark the first one of equal keys, and find how many have a row."""
        f = self.f
        with f.loop(self.threads.number(f), I64(self.numbers.room), self.threads.total) as i:
            key, first = self._first(i)
            f.store(f.convert(first, WORD), f.at(self.firsts, i, WORD))
            after = f.load(f.at(self.ordered, self._within(f.binary("add", i, I64(1))), WORD), WORD)
            edge = f.compare("icmp eq", i, I64(self.room - 1))
            last = f.binary("or", edge, self._not(self._has_row(after)))
            with f.when(f.binary("and", self._has_row(key), last)):
                f.store(f.convert(f.binary("add", i, I64(1)), WORD), self.total)

    def _number(self) -> None:
        """Number the rows, and write where each begins. The number behind all keys is that of the rows."""
        f, count = self.f, self.spec.count
        with f.loop(self.threads.number(f), I64(count + 1), self.threads.total) as i:
            number = f.convert(f.load(f.at(self.firsts, i, WORD), WORD), "int64")
            with f.when(f.compare("icmp eq", i, I64(count))):
                f.store(number, f.param("count"))
            key, first = self._first(i)
            with f.when(first):
                f.store(f.convert(key, "int64"), f.at(f.param("rows"), number, "int64"))
                f.store(f.convert(i, WORD), f.at(f.param("starts"), number, WORD))

    def _first(self, i: IRValue) -> tuple[IRValue, IRValue]:
        """Key number `i` in order, and whether it is the first one of its row. Behind all keys there is none."""
        f = self.f
        before, key = (
            f.load(f.at(self.ordered, self._within(f.binary("add", i, I64(step))), WORD), WORD) for step in (-1, 0)
        )
        differs = f.binary("or", f.compare("icmp eq", i, I64(0)), f.compare("icmp ne", before, key))
        exists = f.binary("and", f.compare("icmp slt", i, I64(self.spec.count)), self._has_row(key))
        return key, f.binary("and", exists, differs)

    def _fill(self) -> None:
        """The rows behind the last one are 0, and have no ids."""
        f = self.f
        found = f.load(f.param("count"), "int64")
        start = f.binary("add", found, self.threads.number(f))
        with f.loop(start, I64(self.spec.room + 1), self.threads.total) as i:
            f.store(f.load(self.total, WORD), f.at(f.param("starts"), i, WORD))
            with f.when(f.compare("icmp slt", i, I64(self.spec.room))):
                f.store(I64(0), f.at(f.param("rows"), i, "int64"))

    def _has_row(self, key: IRValue) -> IRValue:
        return self.f.compare("icmp slt", key, literal(self.spec.size, WORD))

    def _not(self, value: IRValue) -> IRValue:
        return self.f.binary("xor", value, literal(True, "bool"))

    def _within(self, at: IRValue) -> IRValue:
        """The place `at`, or the nearest one there is."""
        return self.f.intrinsic("smin", self.f.intrinsic("smax", at, I64(0)), I64(self.room - 1))
