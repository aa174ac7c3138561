"""The order of ids by their rows (`core.plan.merge_specs`) on many threads, which compare all ids with each other."""

from __future__ import annotations

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue, literal
from core.device.ranks import LAST_KEY, Ranks, padded
from core.device.threads import Threads
from core.plan.data import Kernel
from core.plan.merge_specs import RowOrder

__all__ = ["ROW_ORDERS", "order_kernel", "order_scratch", "takes_order"]

ROW_ORDERS = {"row_order": ("ids",), "kept_row_order": ("ids", "kept")}
"""Kind of kernel -> its operands."""

MOST = 1 << 18
"""Ids up to which comparison is faster than a sort by one thread."""

WORD = "int32"


def takes_order(each: Kernel) -> bool:
    return each.kind in ROW_ORDERS and each.spec.count <= MOST and each.spec.size < LAST_KEY


def order_scratch(spec: RowOrder) -> int:
    """Bytes: keys, sorted keys, and marks of the first of equal ones; the number of ids that have a row."""
    return 4 * (3 * padded(spec.count) + 4)


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
        self.room = padded(spec.count)
        self.keys, self.ordered, self.firsts, self.total = (
            f.at(f.param("scratch"), I64(self.room * i), WORD) for i in range(4)
        )

    def write(self) -> None:
        for part in (self._read, self._sort, self._mark, self._number, self._fill):
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

    def _sort(self) -> None:
        f = self.f
        self.ranks = Ranks(f, self.threads, self.spec.count)
        with self.ranks.each() as (i, leads):
            key = f.load(f.at(self.keys, i, WORD), WORD)
            place = self.ranks.before(self.keys, i, key)
            with f.when(leads):
                f.store(key, f.at(self.ordered, place, WORD))
                with f.when(self._has_row(key)):
                    f.store(f.convert(i, WORD), f.at(f.param("order"), place, WORD))

    def _mark(self) -> None:
        """Mark the first one of equal keys, and find how many have a row."""
        f = self.f
        with f.loop(self.threads.number(f), I64(self.room), self.threads.total) as i:
            before, key, after = (f.load(f.at(self.ordered, self._within(i, step), WORD), WORD) for step in (-1, 0, 1))
            edge = f.compare("icmp eq", i, I64(0))
            first = f.binary("or", edge, f.compare("icmp ne", before, key))
            has_row = self._has_row(key)
            f.store(f.convert(f.binary("and", first, has_row), WORD), f.at(self.firsts, i, WORD))
            edge = f.compare("icmp eq", i, I64(self.room - 1))
            last = f.binary("or", edge, self._not(self._has_row(after)))
            with f.when(f.binary("and", has_row, last)):
                f.store(f.convert(f.binary("add", i, I64(1)), WORD), self.total)

    def _number(self) -> None:
        """Number the rows, and write where each begins. The number behind all keys is that of the rows."""
        f, count = self.f, self.spec.count
        with self.ranks.each(count + 1) as (i, leads):
            number = self.ranks.sum_before(self.firsts, i)
            ends = f.compare("icmp eq", i, I64(count))
            with f.when(f.binary("and", leads, ends)):
                f.store(number, f.param("count"))
            at = f.select(ends, I64(0), i)
            first = f.compare("icmp ne", f.load(f.at(self.firsts, at, WORD), WORD), literal(0, WORD))
            with f.when(f.binary("and", f.binary("and", leads, self._not(ends)), first)):
                row = f.convert(f.load(f.at(self.ordered, at, WORD), WORD), "int64")
                f.store(row, f.at(f.param("rows"), number, "int64"))
                f.store(f.convert(i, WORD), f.at(f.param("starts"), number, WORD))

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

    def _within(self, i: IRValue, step: int) -> IRValue:
        """The number `step` further, or the nearest one there is."""
        at = self.f.intrinsic("smax", self.f.binary("add", i, I64(step)), I64(0))
        return self.f.intrinsic("smin", at, I64(self.room - 1))
