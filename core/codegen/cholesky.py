"""Cholesky factors, some rows of the transposed factor at a time.

The matrix lies in scratch memory as its upper triangle, so that the elements of a row of the transposed factor U, ``x =
U.T U``, follow each other. A block of rows takes the sum over all rows above it in registers,
as in a product of matrices, and is finished at once: first the columns that contain the diagonal, then the others.
The scratch matrix has whole blocks of rows: those below x are rows of the identity.
"""

from __future__ import annotations

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.substitution import block_rows, lane_numbers, minus_products, strip_of
from core.codegen.tile import tile
from core.codegen.transpose import transposed_square
from core.codegen.vector_slices import fill_zeros, move
from core.plan.systems import Cholesky

__all__ = ["cholesky", "cholesky_scratch"]


def _sizes(spec: Cholesky) -> tuple[int, int]:
    """Rows of the scratch matrix, and elements from one row to the next: a strip may begin at each column."""
    rows = block_rows(spec.n)
    height = -(-spec.n // rows) * rows
    wide = lanes(spec.dtype)
    return height, -(-(height + strip_of(spec.dtype, spec.n)[1]) // wide) * wide


def cholesky_scratch(spec: Cholesky) -> int:
    """Bytes of the scratch matrix, and of the rows that a square at its end reads as well."""
    height, step = _sizes(spec)
    return (height + lanes(spec.dtype)) * step * itemsize(spec.dtype)


def cholesky(_: Module, f: Function, spec: Cholesky) -> None:
    """``(x, out)``; a unit is a matrix."""
    rows = block_rows(spec.n)
    height, _step = _sizes(spec)
    with f.loop(f.param("first"), f.param("end"), polls=True) as matrix:
        x = move(f, f.param("x"), spec.dtype, (matrix, spec.x[0]))
        out = move(f, f.param("out"), spec.dtype, (matrix, spec.n * spec.n))
        _read(f, spec, x)
        with f.loop(I64(0), I64(height), rows, polls=True) as first:
            _rows(f, spec, first, rows)
        _write(f, spec, out)


def _at(f: Function, spec: Cholesky, row: IRValue, column: IRValue) -> IRValue:
    return move(f, f.param("scratch"), spec.dtype, (row, _sizes(spec)[1]), (column, 1))


def _read(f: Function, spec: Cholesky, x: IRValue) -> None:
    """Copy the lower triangle of x to the scratch matrix, transposed, in squares."""
    width, (height, step) = lanes(spec.dtype), _sizes(spec)
    fill_zeros(f, f.param("scratch"), (height + width) * step, spec.dtype)
    for i in range(spec.n, height):
        f.store(literal(1, spec.dtype), _at(f, spec, I64(i), I64(i)))
    n = I64(spec.n)
    last = lambda row: f.intrinsic("smin", f.binary("add", row, I64(1)), n)
    with f.loop(I64(0), n, width) as row, f.loop(I64(0), last(row), width) as column:
        inside = f.compare("icmp slt", f.binary("add", lane_numbers(width), column), n)
        square = []
        for i in range(width):
            at = f.intrinsic("smin", f.binary("add", row, I64(i)), I64(spec.n - 1))
            address = move(f, x, spec.dtype, (at, spec.x[1]), (column, 1))
            square.append(f.load(address, spec.dtype, width, inside))
        rows_here = f.compare("icmp slt", f.binary("add", lane_numbers(width), row), n)
        for i, vector in enumerate(transposed_square(f, square)):
            at = f.binary("add", column, I64(i))
            real = f.binary("and", rows_here, f.compare("icmp slt", at, n))
            f.store(vector, _at(f, spec, at, row), real)


def _rows(f: Function, spec: Cholesky, first: IRValue, rows: int) -> None:
    """Finish the rows from `first`: the strip that contains the diagonal, then the strips after it."""
    width, columns = strip_of(spec.dtype, spec.n)
    vectors = columns // width
    numbers = _sums(f, spec, first, first, rows)
    fine = IRValue("true", "bool")
    for i in range(rows):
        row = numbers[i * vectors : (i + 1) * vectors]
        for j in range(i):
            row = minus_products(f, row, _lane(f, numbers[j * vectors :], i, width), numbers[j * vectors :][:vectors])
        pivot = _lane(f, row, i, width)
        fine = f.binary("and", fine, f.compare("fcmp ugt", pivot, literal(0, spec.dtype)))
        root = f.intrinsic("sqrt", pivot)
        row = [f.binary("fdiv", x, root) for x in row]
        row[i // width] = _with_lane(f, row[i // width], i % width, root)
        numbers[i * vectors : (i + 1) * vectors] = row
    _store(f, spec, first, first, numbers)
    with f.when(f.compare("icmp eq", fine, IRValue("false", "bool"))):
        fail(f, f.param("error"), f.param("check"))

    with f.loop(f.binary("add", first, I64(columns)), I64(spec.n), columns) as start:
        others = _sums(f, spec, first, start, rows)
        corner = _at(f, spec, first, first)
        for i in range(rows):
            row = others[i * vectors : (i + 1) * vectors]
            for j in range(i):
                factor = f.load(f.at(corner, I64(j * _sizes(spec)[1] + i), spec.dtype), spec.dtype)
                row = minus_products(f, row, factor, others[j * vectors :][:vectors])
            root = f.load(f.at(corner, I64(i * (_sizes(spec)[1] + 1)), spec.dtype), spec.dtype)
            others[i * vectors : (i + 1) * vectors] = [f.binary("fdiv", x, root) for x in row]
        _store(f, spec, first, start, others)


def _sums(f: Function, spec: Cholesky, first: IRValue, start: IRValue, rows: int) -> list[IRValue]:
    """The tile at (first, start) of the matrix minus the products of the rows above it."""
    width, columns = strip_of(spec.dtype, spec.n)
    step = _sizes(spec)[1]
    a = (_at(f, spec, I64(0), first), 1, step)
    b, c = (_at(f, spec, I64(0), start), step), (_at(f, spec, first, start), step)
    found = tile(f, spec.dtype, (rows, columns), width, (I64(0), first), a, b, c)
    return [f.binary("fsub", f.load(address, spec.dtype, width), total) for total, address, _ in found]


def _store(f: Function, spec: Cholesky, first: IRValue, start: IRValue, numbers: list[IRValue]) -> None:
    width, columns = strip_of(spec.dtype, spec.n)
    vectors = columns // width
    corner = _at(f, spec, first, start)
    for number, value in enumerate(numbers):
        i, j = divmod(number, vectors)
        f.store(value, f.at(corner, I64(i * _sizes(spec)[1] + j * width), spec.dtype))


def _lane(f: Function, row: list[IRValue], lane: int, width: int) -> IRValue:
    """Element `lane` of a row of vectors."""
    vector = row[lane // width]
    if width == 1:
        return vector
    return f.op(f"extractelement {vector}, i64 {lane % width}", vector.dtype)


def _with_lane(f: Function, vector: IRValue, lane: int, value: IRValue) -> IRValue:
    if vector.lanes == 1:
        return value
    return f.op(f"insertelement {vector}, {value}, i64 {lane}", vector.dtype, vector.lanes)


def _write(f: Function, spec: Cholesky, out: IRValue) -> None:
    """Write the transposed scratch matrix to `out`, in squares, and zeros above its diagonal."""
    width, n = lanes(spec.dtype), I64(spec.n)
    with f.loop(I64(0), n, width) as row, f.loop(I64(0), n, width) as column:
        inside = f.compare("icmp slt", f.binary("add", lane_numbers(width), column), n)

        def put(vectors: list[IRValue], row: IRValue = row, column: IRValue = column, inside: IRValue = inside) -> None:
            lane = f.binary("add", lane_numbers(width), column)
            for i, vector in enumerate(vectors):
                at = f.binary("add", row, I64(i))
                real = f.binary("and", inside, f.compare("icmp slt", at, n))
                lower = f.compare("icmp sle", lane, at)
                value = f.select(lower, vector, f.constant(0, vector))
                f.store(value, move(f, out, spec.dtype, (at, spec.n), (column, 1)), real)

        def lower_square(row: IRValue = row, column: IRValue = column) -> None:
            square = [
                f.load(_at(f, spec, f.binary("add", column, I64(i)), row), spec.dtype, width) for i in range(width)
            ]
            put(transposed_square(f, square))

        def upper_square() -> None:
            put([f.splat(literal(0, spec.dtype), width)] * width)

        f.either(f.compare("icmp sle", column, row), lower_square, upper_square)
