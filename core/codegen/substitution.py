"""Triangular systems, by substitution: the solution [n, k] of ``t z = y`` for many right-hand sides at a time.

The columns of y are split into strips. A strip is copied to scratch memory, where its rows follow each other, and each
block of its rows is finished at once: a tile of registers takes the sum over all rows that are known already, as in a
product of matrices, and then the rows of the block follow one another. Elements of t are read in place, in any layout.
"""

from __future__ import annotations

from core.codegen.checks import fail
from core.codegen.cpus import cpu
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.tile import tile
from core.codegen.vector_slices import move
from core.plan.systems import Triangle

__all__ = [
    "block_rows",
    "lane_numbers",
    "minus_products",
    "strip_of",
    "substitute",
    "triangle_scratch",
    "triangle_units",
]


def strip_of(dtype: str, k: int) -> tuple[int, int]:
    """The lanes of a vector, and the columns of a strip of a matrix with k columns."""
    width = lanes(dtype)
    while width // 2 >= k:
        width //= 2
    most = 3 if cpu().vector_bytes == 64 else 2
    vectors = -(-k // width)
    strips = -(-vectors // most)
    return width, -(-vectors // strips) * width


def block_rows(n: int) -> int:
    """The rows of a block: nearly the same number in each."""
    most = 8 if cpu().vector_bytes == 64 else 4
    return -(-n // -(-n // most))


def triangle_units(spec: Triangle) -> int:
    """Strips of all matrices."""
    return spec.batch * _strips(spec)


def triangle_scratch(spec: Triangle) -> int:
    """Bytes of one strip."""
    return spec.n * strip_of(spec.dtype, spec.k)[1] * itemsize(spec.dtype)


def _strips(spec: Triangle) -> int:
    return -(-spec.k // strip_of(spec.dtype, spec.k)[1])


def substitute(_: Module, f: Function, spec: Triangle) -> None:
    """``(t[, y][, order], out)``; a unit is a strip of one matrix."""
    width, columns = strip_of(spec.dtype, spec.k)
    strips = _strips(spec)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        matrix = f.op(f"udiv {unit}, {strips}", "int64") if strips > 1 else unit
        strip = f.op(f"urem {unit}, {strips}", "int64") if strips > 1 else I64(0)
        t = move(f, f.param("t"), spec.dtype, (matrix, spec.t[0]))
        if not spec.unit:
            with f.when(f.compare("icmp eq", strip, I64(0))):
                _check_diagonal(f, spec, t)
        start = f.op(f"mul nsw {strip}, {columns}", "int64")
        _read(f, spec, matrix, start, width, columns)
        _solve(f, spec, t, width, columns)
        _write(f, spec, matrix, start, width, columns)


def _check_diagonal(f: Function, spec: Triangle, t: IRValue) -> None:
    with f.loop(I64(0), I64(spec.n)) as i:
        number = f.load(move(f, t, spec.dtype, (i, spec.t[1] + spec.t[2])), spec.dtype)
        with f.when(f.compare("fcmp oeq", number, literal(0, spec.dtype))):
            fail(f, f.param("error"), f.param("check"))


def _read(f: Function, spec: Triangle, matrix: IRValue, start: IRValue, width: int, columns: int) -> None:
    """Copy a strip of the right-hand side to the scratch memory; columns after the last one are 0."""
    dtype = spec.dtype
    with f.loop(I64(0), I64(spec.n)) as i:
        source = _place(f, spec, matrix, i) if spec.ordered == "y" else i
        for j in range(0, columns, width):
            place = move(f, f.param("scratch"), dtype, (i, columns), by=j)
            at = f.binary("add", start, I64(j)) if j else start
            if spec.identity:
                one = f.compare("icmp eq", f.binary("add", lane_numbers(width), at), source)
                f.store(f.select(one, literal(1, dtype), literal(0, dtype)), place)
                continue
            address = move(f, f.param("y"), dtype, (matrix, spec.y[0]), (source, spec.y[1]), (at, spec.y[2]))
            f.store(f.load(address, dtype, width, _inside(f, spec, at, width)), place)


def _write(f: Function, spec: Triangle, matrix: IRValue, start: IRValue, width: int, columns: int) -> None:
    """Copy a strip of the solution to the result."""
    dtype = spec.dtype
    with f.loop(I64(0), I64(spec.n)) as i:
        row = _place(f, spec, matrix, i) if spec.ordered == "z" else i
        for j in range(0, columns, width):
            value = f.load(move(f, f.param("scratch"), dtype, (i, columns), by=j), dtype, width)
            at = f.binary("add", start, I64(j)) if j else start
            address = move(f, f.param("out"), dtype, (matrix, spec.n * spec.k), (row, spec.k), (at, 1))
            f.store(value, address, _inside(f, spec, at, width))


def _place(f: Function, spec: Triangle, matrix: IRValue, row: IRValue) -> IRValue:
    place = f.load(move(f, f.param("order"), "int64", (matrix, spec.order), (row, 1)), "int64")
    return f.intrinsic("umin", place, I64(spec.n - 1))  # a loop that an error ends may leave an order unwritten


def lane_numbers(width: int) -> IRValue:
    """0, 1, 2, ... as int64; a number if the vector has one lane."""
    if width == 1:
        return I64(0)
    return IRValue(f"<{', '.join(f'i64 {i}' for i in range(width))}>", "int64", width)


def _inside(f: Function, spec: Triangle, at: IRValue, width: int) -> IRValue | None:
    """Which lanes of a vector at column `at` are columns of the matrix; None if all are."""
    if spec.k % width == 0 and spec.k % strip_of(spec.dtype, spec.k)[1] == 0:
        return None
    return f.compare("icmp slt", f.binary("add", lane_numbers(width), at), I64(spec.k))


def _solve(f: Function, spec: Triangle, t: IRValue, width: int, columns: int) -> None:
    """Solve the strip in the scratch memory, block after block."""
    rows = block_rows(spec.n)
    whole, rest = divmod(spec.n, rows)
    if spec.upper:
        if rest:
            _block(f, spec, t, I64(whole * rows), rest, width, columns)
        with f.loop(I64(0), I64(whole), polls=True) as number:
            first = f.op(f"mul nsw {f.binary('sub', I64(whole - 1), number)}, {rows}", "int64")
            _block(f, spec, t, first, rows, width, columns)
    else:
        with f.loop(I64(0), I64(whole * rows), rows, polls=True) as first:
            _block(f, spec, t, first, rows, width, columns)
        if rest:
            _block(f, spec, t, I64(whole * rows), rest, width, columns)


def _block(f: Function, spec: Triangle, t: IRValue, first: IRValue, rows: int, width: int, columns: int) -> None:
    dtype = spec.dtype
    after = f.binary("add", first, I64(rows))
    steps = (after, I64(spec.n)) if spec.upper else (I64(0), first)
    own = move(f, t, dtype, (first, spec.t[1]))
    c = move(f, f.param("scratch"), dtype, (first, columns))
    a, b = (own, spec.t[1], spec.t[2]), (f.param("scratch"), columns)
    vectors = columns // width
    numbers = [
        f.binary("fsub", f.load(address, dtype, width), total)
        for total, address, _ in tile(f, dtype, (rows, columns), width, steps, a, b, (c, columns))
    ]
    corner = move(f, own, dtype, (first, spec.t[2]))
    order = range(rows - 1, -1, -1) if spec.upper else range(rows)
    known: list[int] = []
    for i in order:
        row = numbers[i * vectors : (i + 1) * vectors]
        for j in known:
            factor = f.load(f.at(corner, I64(i * spec.t[1] + j * spec.t[2]), dtype), dtype)
            row = minus_products(f, row, factor, numbers[j * vectors : (j + 1) * vectors])
        if not spec.unit:
            pivot = f.load(f.at(corner, I64(i * (spec.t[1] + spec.t[2])), dtype), dtype)
            row = [f.binary("fdiv", x, pivot) for x in row]
        numbers[i * vectors : (i + 1) * vectors] = row
        known.append(i)
        for j, x in enumerate(row):
            f.store(x, f.at(c, I64(i * columns + j * width), dtype))


def minus_products(f: Function, row: list[IRValue], factor: IRValue, others: list[IRValue]) -> list[IRValue]:
    """``x - factor * y`` for the vectors x and y of two rows."""
    minus = f.op(f"fneg {factor}", factor.dtype, factor.lanes)
    return [f.fma(minus, y, x) for x, y in zip(row, others, strict=True)]
