"""Scatters into 16-bit results: the rows of each position are added up in registers, in float32, and rounded once.

A list of the rows of each position, in their order, comes first (a counting sort). Each row of the result is then
written once, and no array holds its float32 sums. Threads share the rows of the result. Many rows of one position are
added in blocks.
"""

from __future__ import annotations

from core.codegen.block_sums import in_blocks
from core.codegen.gather_scatter import PARAMS, adds_in_blocks, block_rows, checked, gather_work, row_of, slab
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.machine import lanes
from core.codegen.polling import polls_by_control
from core.codegen.prefetch import ahead, fetch
from core.codegen.vector_slices import fill_zeros, mask, unravel
from core.plan.instructions import ScatterAdd

__all__ = ["is_sparse", "list_bytes", "list_function", "list_work", "sum_function"]

ENTRY = "int32"
"""The dtype of the lists: for each position the place of its first row in the order, and the end; then the order."""

VECTORS = 8
"""Vectors of a row that are added up together."""


def list_bytes(each: ScatterAdd) -> int:
    """The memory for the lists: whole cache lines."""
    return -(-(_bounds(each) + each.index.shape[0]) * itemsize(ENTRY) // 64) * 64


def is_sparse(each: ScatterAdd) -> bool:
    """Whether most rows of the result are zeros. The caller writes these, all at once: the processor then need not read
    the memory before.
    """
    return each.out.shape[1] > 2 * each.index.shape[0]


def _bounds(each: ScatterAdd) -> int:
    return each.out.shape[1] + 2


def list_work(each: ScatterAdd) -> int:
    """The work of writing the lists, in operations."""
    return each.index.shape[0] + each.out.shape[1]


def list_function(name: str, each: ScatterAdd) -> Function:
    """``name(index, error, lists, check)``: write the lists."""
    f = Function(name, [*((p, "ptr") for p in ("index", "error", "lists")), ("check", "int64")], noalias=False)
    size, count, dtype = each.out.shape[1], each.index.shape[0], each.index.dtype
    polls_by_control(f, list_work(each))
    lists, order = f.param("lists"), _order(f, each)
    fill_zeros(f, lists, _bounds(each), ENTRY)

    def position(i: IRValue) -> IRValue:
        return checked(f, f.at(f.param("index"), i, dtype), dtype, size)

    def advance(at: IRValue, by: IRValue) -> IRValue:
        """The entry at `at`, which becomes larger."""
        place = f.at(lists, at, ENTRY)
        before = f.load(place, ENTRY)
        f.store(f.binary("add", before, by), place)
        return before

    with f.loop(I64(0), I64(count), polls=True) as i:
        advance(f.binary("add", position(i), I64(2)), literal(1, ENTRY))
    with f.loop(I64(0), I64(size), polls=True) as at:  # entry n + 1 becomes the number of rows before position n
        advance(f.binary("add", at, I64(1)), f.load(f.at(lists, at, ENTRY), ENTRY))
    with f.loop(I64(0), I64(count), polls=True) as i:  # and then the number of those before position n + 1
        place = advance(f.binary("add", position(i), I64(1)), literal(1, ENTRY))
        f.store(f.convert(i, ENTRY), f.at(order, f.convert(place, "int64"), ENTRY))
    return f


def sum_function(name: str, each: ScatterAdd) -> Function:
    """``name(x, index, out, error, [rows,] lists, check, first, end)`` for rows `first` to `end` of the result."""
    pointers, numbers = PARAMS[:4], PARAMS[4:]
    more = [*([("rows", "ptr")] if each.rows else []), ("lists", "ptr")]
    f = Function(name, [*pointers, *more, *numbers], noalias=False)
    outer, size, inner = each.out.shape
    polls_by_control(f, gather_work(each))
    lists, dtype = f.param("lists"), each.out.dtype
    width = lanes("float32")
    while width > inner:
        width //= 2
    block = VECTORS * width
    with f.loop(f.param("first"), f.param("end"), polls=True) as row:
        o, at = (I64(0), row) if outer == 1 else unravel(f, row, (outer, size))
        ends = [f.convert(f.load(f.at(lists, i, ENTRY), ENTRY), "int64") for i in (at, f.binary("add", at, I64(1)))]
        target = f.at(f.param("out"), f.op(f"mul nsw {row}, {inner}", "int64"), dtype)

        def add(column: IRValue, columns: int, fetches: bool) -> None:
            _add(f, each, o, (ends[0], ends[1]), target, (column, columns), width, fetches)

        def all_of() -> None:
            whole = inner // block * block
            if whole == block:
                add(I64(0), block, True)
            elif whole:
                with f.loop(I64(0), I64(whole), block) as column:
                    add(column, block, False)
            if whole < inner:
                add(I64(whole), inner - whole, whole == 0)

        some = f.compare("icmp slt", *ends)
        if is_sparse(each):
            with f.when(some):
                all_of()
        else:
            f.either(some, all_of, lambda: fill_zeros(f, target, inner, dtype))
    return f


def _add(
    f: Function, each: ScatterAdd, o: IRValue, places: tuple[IRValue, IRValue], target: IRValue,
    columns: tuple[IRValue, int], width: int, fetches: bool,
) -> None:  # fmt: skip
    """Write some columns of a row of the result. places: of its rows in the order. columns: the first, and how many.

    fetches: whether to begin to fetch the rows that are added after these.
    """
    start, count = columns
    inner, given, order = each.out.shape[2], each.x.dtype, _order(f, each)
    parts = range(0, count, width)
    masks = [mask(count - j, width) if width > 1 else None for j in parts]
    zero = f.splat(literal(0, "float32"), width)
    sums = [f.slot("float32", width) for _ in parts]
    for total in sums:
        f.write(zero, total)

    def add(place: IRValue) -> None:
        i = f.convert(f.load(f.at(order, place, ENTRY), ENTRY), "int64")
        source = slab(f, f.param("x"), o, each.x.shape[1], row_of(f, each, i), inner, given)
        distance = ahead(inner * itemsize(given)) if fetches and each.rows is None else 0
        if distance:
            later = f.intrinsic("smin", f.binary("add", place, I64(distance)), I64(each.index.shape[0] - 1))
            i = f.convert(f.load(f.at(order, later, ENTRY), ENTRY), "int64")
            fetch(f, f.param("x"), f.op(f"mul {i}, {inner}", "int64"), given, inner * itemsize(given))
        for total, j, which in zip(sums, parts, masks, strict=True):
            address = f.at(f.at(source, start, given), I64(j), given)
            more = f.convert(f.load(address, given, width, which), "float32")
            f.write(f.binary("fadd", f.read(total, "float32", width), more), total)

    def add_all(some: tuple[IRValue, IRValue]) -> None:
        with f.loop(*some) as place:
            add(place)

    in_blocks(f, places, block_rows(each) if adds_in_blocks(each) else None, sums, width, add_all)
    for total, j, which in zip(sums, parts, masks, strict=True):
        made = f.convert(f.read(total, "float32", width), each.out.dtype)
        f.store(made, f.at(f.at(target, start, each.out.dtype), I64(j), each.out.dtype), which)


def _order(f: Function, each: ScatterAdd) -> IRValue:
    return f.at(f.param("lists"), I64(_bounds(each)), ENTRY)
