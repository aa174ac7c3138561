"""Scatters on many threads: a thread reduces each element of the result.

That thread must know its rows. If there are few rows, or few results, it looks through the whole index; if there are
more threads than results, several threads look through a part each, and one thread combines their results. Then the
bits depend on the number of threads, but not on their order. Otherwise the positions of the index have been sorted
(`core.device.index_orders`). The sort keeps the order of equal ones, so a thread adds its rows in the order of the
index in any launch. An index with a pattern needs no sort: the rows of a result follow from its position.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from core.codegen.block_sums import in_blocks
from core.codegen.gather_scatter import adds_in_blocks, all_checked, block_rows, checked
from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.reductions import combine, identity
from core.device.index_orders import is_sparse
from core.device.patch_tiles import digits, total
from core.device.row_teams import AT_ONCE
from core.device.threads import Threads, in_bundles, split
from core.device.tiles import load_vector, store_vector, vector_of
from core.plan.instructions import IndexPattern, ScatterAdd
from core.plan.memory import View

__all__ = ["lanes_of", "reducing_units", "scatter_kernel", "scatter_scratch", "scatter_views"]

WORD = "int32"

MANY = 1 << 13
"""Threads from which on each may reduce several elements."""


def _parts(each: ScatterAdd, threads: Threads) -> int:
    """The parts of an index that is looked through: about the square root of its length, a power of two."""
    parts, count, results = 1, each.index.shape[0], math.prod(each.out.shape)
    while 2 * parts * results <= threads.total and 4 * parts * parts <= count:
        parts *= 2
    return parts


def scatter_scratch(each: ScatterAdd, threads: Threads) -> int:
    """Bytes of scratch memory that the threads share."""
    parts = _parts(each, threads) if _looks_through(each) else 1
    return parts * math.prod(each.out.shape) * itemsize(each.x.dtype) if parts > 1 else 0


def scatter_views(each: ScatterAdd) -> tuple[View, ...]:
    """The operands of `scatter_kernel` that are arrays."""
    rows = () if each.rows is None else (each.rows,)
    index = () if each.pattern is not None else each.order or (each.index,)
    return each.x, *index, each.out, *rows


def reducing_units(each: ScatterAdd) -> int:
    """Threads that have something to reduce."""
    (outer, size, inner), count = each.out.shape, each.index.shape[0]
    if _looks_through(each):
        return 0
    named = each.pattern is None and is_sparse(count, size)
    return outer * (count if named else size) * inner // lanes_of(each)


def _looks_through(each: ScatterAdd) -> bool:
    """Whether each thread reads the whole index, or a part of it."""
    return each.order is None and each.pattern is None


def lanes_of(each: ScatterAdd) -> int:
    """Elements that a thread reduces at once: several if there are enough threads then."""
    lanes = vector_of(each.x, -1)
    return lanes if vector_of(each.out, -1) == lanes and math.prod(each.out.shape) >= MANY * lanes else 1


def scatter_kernel(name: str, each: ScatterAdd, threads: Threads) -> Function:
    """``name(arrays..., scratch, error, check)`` for all threads. arrays: `scatter_views`."""
    given: tuple[str, ...] = ("index",) if each.order is None else ("order", "bounds")
    if each.pattern is not None:
        given = ()
    names = ["x", *given, "out", *(["rows"] if each.rows is not None else []), "scratch", "error"]
    f = Function(name, [*((n, "ptr") for n in names), ("check", "int64")], noalias=False)
    if _looks_through(each):
        _look_through(f, each, threads)
    elif each.pattern is None and is_sparse(each.index.shape[0], each.out.shape[1]):
        _reduce_named(f, each, threads)
    else:
        _reduce(f, each, threads)
    return f


def _look_through(f: Function, each: ScatterAdd, threads: Threads) -> None:
    outer, size, inner = each.out.shape
    results, parts, dtype = math.prod(each.out.shape), _parts(each, threads), each.x.dtype
    target = f.param("scratch" if parts > 1 else "out")
    with f.loop(threads.number(f), I64(parts * results), threads.total) as number:
        part, flat = split(f, number, (parts, results))
        o, row, j = digits(f, flat, (outer, size, inner))
        result = _begun(f, each, 1)
        with f.loop(part, I64(each.index.shape[0]), parts) as i:
            at = checked(f, f.at(f.param("index"), i, each.index.dtype), each.index.dtype, size)
            with f.when(f.compare("icmp eq", at, row)):
                _combine(f, each, result, [i], o, j)
        f.store(f.read(result, dtype), f.at(target, number, dtype))
    if parts == 1:
        return
    threads.barrier(f)
    with f.loop(threads.number(f), I64(results), threads.total) as flat:
        result = _begun(f, each, 1)
        with f.loop(I64(0), I64(parts)) as part:
            at = total(f, [part, flat], [results, 1])
            f.write(combine(f, each.op, f.read(result, dtype), f.load(f.at(target, at, dtype), dtype)), result)
        f.store(f.read(result, dtype), f.at(f.param("out"), flat, dtype))


def _rows(f: Function, each: ScatterAdd, positions: list[IRValue]) -> list[IRValue]:
    """The rows of x for positions of the index."""
    if each.rows is None:
        return positions
    dtype = each.rows.dtype
    found = [f.load(f.at(f.param("rows"), i, dtype), dtype) for i in positions]  # all loads first
    return all_checked(f, found, each.x.shape[1], I64(each.rows_check))


def _combine(
    f: Function, each: ScatterAdd, result: IRValue, positions: list[IRValue], o: IRValue, j: IRValue, lanes: int = 1
) -> None:
    """Combine the elements of x from column `j` on, for positions of the index, with the result in a slot."""
    _, given, inner = each.x.shape
    dtype = each.x.dtype
    offsets = [total(f, [o, row, j], [given * inner, inner, 1]) for row in _rows(f, each, positions)]
    for more in [load_vector(f, f.at(f.param("x"), at, dtype), dtype, lanes) for at in offsets]:
        f.write(combine(f, each.op, f.read(result, dtype, lanes), more), result)


def _begun(f: Function, each: ScatterAdd, lanes: int) -> IRValue:
    """A slot with the result of no rows."""
    result = f.slot(each.x.dtype, lanes)
    f.write(f.splat(identity(each.op, each.x.dtype), lanes), result)
    return result


def _reduce(f: Function, each: ScatterAdd, threads: Threads) -> None:
    """Reduce the rows of each result, which follow each other."""
    outer, size, inner = each.out.shape
    lanes, dtype = lanes_of(each), each.x.dtype
    with f.loop(threads.number(f), I64(math.prod(each.out.shape) // lanes), threads.total) as number:
        o, row, column = digits(f, number, (outer, size, inner // lanes))
        j = total(f, [column], [lanes])
        result = _begun(f, each, lanes)
        if each.pattern is not None:
            _reduce_pattern(f, each, each.pattern, result, o, row, j, lanes)
        else:
            first, end = (_word(f, "bounds", total(f, [row], start=more)) for more in (0, 1))

            def write(places: list[IRValue], o: IRValue = o, j: IRValue = j, result: IRValue = result) -> None:
                _combine(f, each, result, [_word(f, "order", k) for k in places], o, j, lanes)

            def add(places: tuple[IRValue, IRValue], write: Callable[[list[IRValue]], None] = write) -> None:
                in_bundles(f, *places, 1, AT_ONCE, write)

            in_blocks(f, (first, end), block_rows(each) if adds_in_blocks(each) else None, [result], lanes, add)
        store_vector(f, f.read(result, dtype, lanes), f.at(f.param("out"), total(f, [number], [lanes]), dtype))


def _reduce_pattern(
    f: Function, each: ScatterAdd, index: IndexPattern, result: IRValue, o: IRValue, row: IRValue, j: IRValue,
    lanes: int,
) -> None:  # fmt: skip
    """Reduce the rows of one result: of each line of the index at most one position names it."""
    rest = f.binary("sub", row, I64(index.first))
    reach = index.stride * (index.length - 1)  # of a line
    before = f.intrinsic("smax", f.binary("sub", f.binary("add", rest, I64(index.step - 1)), I64(reach)), I64(0))
    first = f.op(f"udiv {before}, {index.step}", "int64")
    past = f.op(f"sdiv {f.binary('add', rest, I64(index.step))}, {index.step}", "int64")  # 0 for a rest below 0
    end = f.intrinsic("smin", past, I64(index.count))

    def write(lines: list[IRValue]) -> None:
        rests = [f.binary("sub", rest, f.op(f"mul nsw {line}, {index.step}", "int64")) for line in lines]
        if index.stride == 1:
            positions = [total(f, pair, [index.length, 1]) for pair in map(list, zip(lines, rests, strict=True))]
            _combine(f, each, result, positions, o, j, lanes)
            return
        for line, left in zip(lines, rests, strict=True):
            meets = f.compare("icmp eq", f.op(f"urem {left}, {index.stride}", "int64"), I64(0))
            with f.when(meets):
                at = f.op(f"udiv {left}, {index.stride}", "int64")
                _combine(f, each, result, [total(f, [line, at], [index.length, 1])], o, j, lanes)

    in_bundles(f, first, end, 1, AT_ONCE, write)


def _reduce_named(f: Function, each: ScatterAdd, threads: Threads) -> None:
    """Reduce the rows of each result that has some: the thread of the first of equal keys goes through all of them."""
    outer, size, inner = each.out.shape
    count, dtype, lanes = each.index.shape[0], each.x.dtype, lanes_of(each)
    with f.loop(threads.number(f), I64(outer * count * inner // lanes), threads.total) as number:
        o, first, column = digits(f, number, (outer, count, inner // lanes))
        j = total(f, [column], [lanes])
        key = _word(f, "bounds", first)
        before = _word(f, "bounds", f.intrinsic("smax", f.binary("sub", first, I64(1)), I64(0)))
        leads = f.binary("or", f.compare("icmp eq", first, I64(0)), f.compare("icmp ne", before, key))
        with f.when(leads):
            result, at = _begun(f, each, lanes), f.slot("int64")
            f.write(first, at)
            head, body, after = f.label("asked"), f.label("row"), f.label("ended")
            f.jump(head)
            f.begin(head)
            k = f.read(at, "int64")
            inside = f.compare("icmp slt", k, I64(count))
            same = f.compare("icmp eq", _word(f, "bounds", f.select(inside, k, I64(0))), key)
            f.branch(f.binary("and", inside, same), body, after)
            f.begin(body)
            _combine(f, each, result, [_word(f, "order", k)], o, j, lanes)
            f.write(f.binary("add", k, I64(1)), at)
            f.jump(head)
            f.begin(after)
            target = f.at(f.param("out"), total(f, [o, key, j], [size * inner, inner, 1]), dtype)
            store_vector(f, f.read(result, dtype, lanes), target)


def _word(f: Function, array: str, at: IRValue) -> IRValue:
    return f.convert(f.load(f.at(f.param(array), at, WORD), WORD), "int64")
