"""Scatters on many threads: a thread reduces each element of the result.

That thread must know its rows. If there are few rows, or few results, it looks through the whole index; if there are
more threads than results, several threads look through a part each, and one thread combines their results. Then the
bits depend on the number of threads, but not on their order. Otherwise the threads sort the positions of the index
first: by comparing all of them, or by buckets. The sort keeps the order of equal keys, so a thread adds its rows in the
order of the index in any launch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.codegen.gather_scatter import checked
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.reductions import combine, identity
from core.device.buckets import Buckets, buckets_room, shift_of
from core.device.patch_tiles import digits, total
from core.device.ranks import LAST_KEY, Ranks, is_short, padded
from core.device.row_teams import AT_ONCE
from core.device.threads import Threads, in_bundles, split
from core.plan.data import ScatterAdd

__all__ = ["reduce_kernel", "reducing_units", "scatter_kernel", "scatter_scratch", "sorts"]

FEW = 32
"""Rows, or results of a column, up to which each thread looks through the index."""

SPARSE = 8
"""Results for each row of x from which on those without rows are filled first."""

WORD = "int32"


@dataclass(frozen=True, slots=True)
class _Room:
    """Where the arrays of a sort begin in scratch memory, in words.

    buckets: words of a sort by buckets; 0 if keys are compared with all others.
    The keys come first. sorted: the sorted keys. order: their positions in the index. rest: what the buckets need.
    starts: the first position of each result among the sorted keys, and the end.
    """

    count: int
    size: int
    buckets: int

    @property
    def sorted(self) -> int:
        return padded(self.count)

    @property
    def order(self) -> int:
        return 2 * padded(self.count)

    @property
    def rest(self) -> int:
        return 3 * padded(self.count)

    @property
    def has_starts(self) -> bool:
        """Whether each bucket is a result, so that the sort finds where it starts."""
        return self.buckets > 0 and not shift_of(self.count, self.size)

    @property
    def starts(self) -> int:
        return self.rest if self.has_starts else self.rest + self.buckets

    @property
    def nbytes(self) -> int:
        own = 0 if self.is_sparse or self.has_starts else self.size + 1
        return 4 * (self.rest + self.buckets + own)

    @property
    def is_sparse(self) -> bool:
        """Whether most results have no rows."""
        return _is_sparse(self.count, self.size)


def _is_sparse(count: int, size: int) -> bool:
    return size >= SPARSE * count


def _room(each: ScatterAdd, threads: Threads) -> _Room | None:
    """None if each thread looks through the index."""
    count, size = each.index.shape[0], each.out.shape[1]
    if min(count, size) <= FEW:
        return None
    return _Room(count, size, 0 if is_short(count, threads) else buckets_room(count, size, threads))


def _parts(each: ScatterAdd, threads: Threads) -> int:
    """The parts of an index that is looked through: about the square root of its length, a power of two."""
    parts, count, results = 1, each.index.shape[0], math.prod(each.out.shape)
    while 2 * parts * results <= threads.total and 4 * parts * parts <= count:
        parts *= 2
    return parts


def scatter_scratch(each: ScatterAdd, threads: Threads) -> int:
    """Bytes of scratch memory that the threads share."""
    room = _room(each, threads)
    if room is not None:
        return room.nbytes
    parts = _parts(each, threads)
    return parts * math.prod(each.out.shape) * itemsize(each.x.dtype) if parts > 1 else 0


def sorts(each: ScatterAdd, threads: Threads) -> bool:
    """Whether threads of a launch sort the positions of the index before they reduce rows."""
    return _room(each, threads) is not None


def reducing_units(each: ScatterAdd) -> int:
    """Threads that have something to reduce, once the positions are sorted."""
    (outer, size, inner), count = each.out.shape, each.index.shape[0]
    return outer * (count if _is_sparse(count, size) else size) * inner


def scatter_kernel(name: str, each: ScatterAdd, threads: Threads, apart: bool = False) -> Function:
    """``name(x, index, out, [rows,] scratch, error, check)`` for all threads. scratch: `scatter_scratch` bytes.

    apart: whether `reduce_kernel` reduces the rows, whose positions are sorted here.
    """
    f, room = _function(name, each), _room(each, threads)
    if room is None:
        _look_through(f, each, threads)
        return f
    sort = _Sort(f, each, threads, room)
    sort.write()
    if not apart:
        threads.barrier(f)
        _reduce_sorted(f, each, threads, sort)
    return f


def reduce_kernel(name: str, each: ScatterAdd, threads: Threads, first: Threads) -> Function:
    """``name(x, index, out, [rows,] scratch, error, check)``: reduce rows whose positions the launch `first` sorted."""
    f, room = _function(name, each), _room(each, first)
    assert room is not None, "the launch has sorted"
    _reduce_sorted(f, each, threads, _Sorted(f, room))
    return f


def _function(name: str, each: ScatterAdd) -> Function:
    names = ["x", "index", "out", *(["rows"] if each.rows is not None else []), "scratch", "error"]
    return Function(name, [*((n, "ptr") for n in names), ("check", "int64")], noalias=False)


def _look_through(f: Function, each: ScatterAdd, threads: Threads) -> None:
    outer, size, inner = each.out.shape
    results, parts, dtype = math.prod(each.out.shape), _parts(each, threads), each.x.dtype
    target = f.param("scratch" if parts > 1 else "out")
    with f.loop(threads.number(f), I64(parts * results), threads.total) as number:
        part, flat = split(f, number, (parts, results))
        o, row, j = digits(f, flat, (outer, size, inner))
        result = f.slot(dtype)
        f.write(identity(each.op, dtype), result)
        with f.loop(part, I64(each.index.shape[0]), parts) as i:
            at = checked(f, f.at(f.param("index"), i, each.index.dtype), each.index.dtype, size)
            with f.when(f.compare("icmp eq", at, row)):
                _combine(f, each, result, _element(f, each, o, i, j))
        f.store(f.read(result, dtype), f.at(target, number, dtype))
    if parts == 1:
        return
    threads.barrier(f)
    with f.loop(threads.number(f), I64(results), threads.total) as flat:
        result = f.slot(dtype)
        f.write(identity(each.op, dtype), result)
        with f.loop(I64(0), I64(parts)) as part:
            at = total(f, [part, flat], [results, 1])
            f.write(combine(f, each.op, f.read(result, dtype), f.load(f.at(target, at, dtype), dtype)), result)
        f.store(f.read(result, dtype), f.at(f.param("out"), flat, dtype))


def _row(f: Function, each: ScatterAdd, i: IRValue) -> IRValue:
    """The row of x for position `i` of the index."""
    if each.rows is None:
        return i
    place = f.at(f.param("rows"), i, each.rows.dtype)
    return checked(f, place, each.rows.dtype, each.x.shape[1], I64(each.rows_check))


def _element(f: Function, each: ScatterAdd, o: IRValue, i: IRValue, j: IRValue) -> IRValue:
    """The element of x for position `i` of the index."""
    _, given, inner = each.x.shape
    offset = total(f, [o, _row(f, each, i), j], [given * inner, inner, 1])
    return f.load(f.at(f.param("x"), offset, each.x.dtype), each.x.dtype)


def _combine(f: Function, each: ScatterAdd, result: IRValue, more: IRValue) -> None:
    """Combine an element of x with the result in a slot."""
    f.write(combine(f, each.op, f.read(result, each.x.dtype), more), result)


def _reduce_sorted(f: Function, each: ScatterAdd, threads: Threads, sort: _Sorted) -> None:
    (_reduce_named if sort.room.is_sparse else _reduce)(f, each, threads, sort)


def _reduce(f: Function, each: ScatterAdd, threads: Threads, sort: _Sorted) -> None:
    """Reduce the rows of each result, which follow each other."""
    outer, size, inner = each.out.shape
    with f.loop(threads.number(f), I64(math.prod(each.out.shape)), threads.total) as flat:
        o, row, j = digits(f, flat, (outer, size, inner))
        result = f.slot(each.x.dtype)
        f.write(identity(each.op, each.x.dtype), result)
        first, end = (sort.word(sort.room.starts, total(f, [row], start=more)) for more in (0, 1))

        def write(places: list[IRValue], o: IRValue = o, j: IRValue = j, result: IRValue = result) -> None:
            positions = [sort.word(sort.room.order, k) for k in places]  # all loads first
            for more in [_element(f, each, o, i, j) for i in positions]:
                _combine(f, each, result, more)

        in_bundles(f, first, end, 1, AT_ONCE, write)
        f.store(f.read(result, each.x.dtype), f.at(f.param("out"), flat, each.x.dtype))


def _reduce_named(f: Function, each: ScatterAdd, threads: Threads, sort: _Sorted) -> None:
    """Reduce the rows of each result that has some: the thread of the first of equal keys goes through all of them."""
    outer, size, inner = each.out.shape
    count, room, dtype = sort.room.count, sort.room, each.x.dtype
    with f.loop(threads.number(f), I64(outer * count * inner), threads.total) as number:
        o, first, j = digits(f, number, (outer, count, inner))
        key = sort.word(room.sorted, first)
        before = sort.word(room.sorted, f.intrinsic("smax", f.binary("sub", first, I64(1)), I64(0)))
        leads = f.binary("or", f.compare("icmp eq", first, I64(0)), f.compare("icmp ne", before, key))
        with f.when(leads):
            result, at = f.slot(dtype), f.slot("int64")
            f.write(identity(each.op, dtype), result)
            f.write(first, at)
            head, body, after = f.label("asked"), f.label("row"), f.label("ended")
            f.jump(head)
            f.begin(head)
            k = f.read(at, "int64")
            inside = f.compare("icmp slt", k, I64(count))
            same = f.compare("icmp eq", sort.word(room.sorted, f.select(inside, k, I64(0))), key)
            f.branch(f.binary("and", inside, same), body, after)
            f.begin(body)
            _combine(f, each, result, _element(f, each, o, sort.word(room.order, k), j))
            f.write(f.binary("add", k, I64(1)), at)
            f.jump(head)
            f.begin(after)
            f.store(f.read(result, dtype), f.at(f.param("out"), total(f, [o, key, j], [size * inner, inner, 1]), dtype))


class _Sorted:
    """The words of a sort in scratch memory."""

    def __init__(self, f: Function, room: _Room) -> None:
        self.f, self.room = f, room
        self.scratch = f.param("scratch")

    def place(self, start: int, at: IRValue) -> IRValue:
        """The address of word `at` of the array that begins at `start`."""
        return self.f.at(self.scratch, total(self.f, [I64(start), at]), WORD)

    def word(self, start: int, at: IRValue) -> IRValue:
        return self.f.convert(self.f.load(self.place(start, at), WORD), "int64")

    def put(self, value: IRValue, start: int, at: IRValue) -> None:
        self.f.store(self.f.convert(value, WORD), self.place(start, at))


class _Sort(_Sorted):
    """Sorts the positions of an index."""

    def __init__(self, f: Function, each: ScatterAdd, threads: Threads, room: _Room) -> None:
        super().__init__(f, room)
        self.each, self.threads = each, threads
        rest = f.at(self.scratch, I64(room.rest), WORD)
        self.buckets = Buckets(f, threads, self.scratch, room.count, room.size, rest) if room.buckets else None

    def write(self) -> None:
        """All steps. The caller waits behind them."""
        f, each, threads, room = self.f, self.each, self.threads, self.room
        self.read_keys()
        if room.is_sparse:
            with f.loop(threads.number(f), I64(math.prod(each.out.shape)), threads.total) as flat:
                f.store(identity(each.op, each.x.dtype), f.at(f.param("out"), flat, each.x.dtype))
        self.sort()
        if not room.is_sparse and not room.has_starts:
            threads.barrier(f)
            self.find_starts()

    def read_keys(self) -> None:
        """Copy the index, counted from the front."""
        f, index = self.f, self.each.index
        with f.loop(self.threads.number(f), I64(self.room.count), self.threads.total) as i:
            self.put(checked(f, f.at(f.param("index"), i, index.dtype), index.dtype, self.room.size), 0, i)
        if self.buckets is not None:
            self.buckets.clear()
        else:
            behind = f.binary("add", self.threads.number(f), I64(self.room.count))
            with f.loop(behind, I64(padded(self.room.count)), self.threads.total) as i:
                f.store(literal(LAST_KEY, WORD), self.place(0, i))
        self.threads.barrier(f)

    def sort(self) -> None:
        """Write the keys and their positions in order; equal keys in the order of the index."""
        f, room = self.f, self.room

        def put(i: IRValue, key: IRValue, at: IRValue) -> None:
            self.put(key, room.sorted, at)
            self.put(i, room.order, at)

        if self.buckets is not None:
            self.buckets.sort(put)
        else:
            ranks = Ranks(f, self.threads, room.count)
            with ranks.each() as (i, leads):
                key = f.load(self.place(0, i), WORD)
                at = ranks.before(self.scratch, i, key)
                with f.when(leads):
                    put(i, key, at)

    def find_starts(self) -> None:
        """The number of keys below each result, by halving."""
        f, room = self.f, self.room
        with f.loop(self.threads.number(f), I64(room.size + 1), self.threads.total) as key:
            low, high = f.slot("int64"), f.slot("int64")
            f.write(I64(0), low)
            f.write(I64(room.count), high)
            with f.loop(I64(0), I64(room.count.bit_length())):
                a, b = f.read(low, "int64"), f.read(high, "int64")
                middle = f.op(f"lshr i64 {f.binary('add', a, b).name}, 1", "int64")
                open = f.compare("icmp slt", a, b)
                inside = f.select(open, middle, I64(0))
                less = f.binary("and", open, f.compare("icmp slt", self.word(room.sorted, inside), key))
                f.write(f.select(less, total(f, [middle], start=1), a), low)
                f.write(f.select(f.binary("and", open, f.op(f"xor {less}, true", "bool")), middle, b), high)
            self.put(f.read(low, "int64"), room.starts, key)
