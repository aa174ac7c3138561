"""Eigenvalues and singular values by the LAPACK that SciPy ships, called by address, one matrix after another.

LAPACK stores matrices by columns, so it sees the transposed arrays: a symmetric matrix is the same, and for the
singular values of x it decomposes ``x.T``, which exchanges u and v.

A matrix with an element that is not finite fails the check before LAPACK is called, which never ends for some of them
and finds finite values for others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.codegen.blas import address_of
from core.codegen.checks import fail
from core.codegen.functions import FUNCTIONS
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.module import Module
from core.codegen.vector_slices import move
from core.plan.systems import Eigenvalues, SingularValues

__all__ = ["eigenvalues", "eigenvalues_scratch", "singular_values", "singular_values_scratch"]

BLOCK = 64
"""Columns that LAPACK takes at a time, at most: more work memory than this per row does not help it."""


def _letter(dtype: str) -> str:
    return "s" if dtype == "float32" else "d"


class _Call:
    """The arguments of one routine: numbers on the stack, and pieces of the scratch memory, 64 bytes apart at least."""

    def __init__(self, module: Module, f: Function, dtype: str, routine: str) -> None:
        self.module, self.f, self.routine = module, f, f"{_letter(dtype)}{routine}"
        self.used = 0

    def piece(self, count: int, dtype: str) -> IRValue:
        """The next piece of the scratch memory."""
        address = self.f.at(self.f.param("scratch"), I64(self.used), "uint8")
        self.used += _rounded(count * itemsize(dtype))
        return address

    def integer(self, value: int) -> IRValue:
        slot = self.f.slot("int32")
        self.f.write(IRValue(str(value), "int32"), slot)
        return slot

    def letter(self, letter: str) -> IRValue:
        slot = self.f.slot("uint8")
        self.f.write(IRValue(str(ord(letter)), "uint8"), slot)
        return slot

    def run(self, *arguments: IRValue) -> None:
        """Call the routine; its last argument, the report, must become 0."""
        f, report = self.f, self.integer(0)
        self.module.symbols[self.routine] = address_of(self.routine)
        f.declarations.add(f"declare void @{self.routine}({', '.join(['ptr'] * (len(arguments) + 1))})")
        f.do(f"call void @{self.routine}({', '.join(f'ptr {a.name}' for a in (*arguments, report))})")
        with f.when(f.compare("icmp ne", f.read(report, "int32"), IRValue("0", "int32"))):
            fail(f, f.param("error"), f.param("check"))


def _rounded(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def _copy(f: Function, target: IRValue, source: IRValue, count: int, dtype: str) -> None:
    f.declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    f.do(f"call void @llvm.memcpy.p0.p0.i64({target}, {source}, i64 {count * itemsize(dtype)}, i1 false)")


@contextmanager
def _if_finite(f: Function, x: IRValue, rows: int, columns: int, dtype: str, lower: bool = False) -> Iterator[None]:
    """Run the instructions written inside the context if all elements of x are finite, else fail the check.

    lower: whether only the lower triangle counts.
    """
    finite = f.slot("bool")
    f.write(literal(True, "bool"), finite)
    with f.loop(I64(0), I64(rows)) as i:
        end = f.binary("add", i, I64(1)) if lower else I64(columns)
        with f.loop(I64(0), end) as j:
            number = f.load(move(f, x, dtype, (i, columns), (j, 1)), dtype)
            f.write(f.binary("and", f.read(finite, "bool"), FUNCTIONS["isfinite"](f, number)), finite)
    f.either(f.read(finite, "bool"), lambda: None, lambda: fail(f, f.param("error"), f.param("check")))
    with f.when(f.read(finite, "bool")):
        yield


def _sign(f: Function, x: IRValue, step: int, count: int, dtype: str) -> IRValue:
    """The factor that makes the first of the numbers of at least 0.9 times the largest size positive."""
    largest, found = f.slot(dtype), f.slot(dtype)
    f.write(literal(0, dtype), largest)
    f.write(literal(0, dtype), found)
    with f.loop(I64(0), I64(count)) as i:
        size = f.intrinsic("fabs", f.load(move(f, x, dtype, (i, step)), dtype))
        f.write(f.intrinsic("maxnum", size, f.read(largest, dtype)), largest)
    bound = f.binary("fmul", f.read(largest, dtype), literal(0.9, dtype))
    with f.loop(I64(0), I64(count)) as i:
        number = f.load(move(f, x, dtype, (f.binary("sub", I64(count - 1), i), step)), dtype)
        large = f.compare("fcmp oge", f.intrinsic("fabs", number), bound)
        f.write(f.select(large, number, f.read(found, dtype)), found)
    negative = f.compare("fcmp olt", f.read(found, dtype), literal(0, dtype))
    return f.select(negative, literal(-1, dtype), literal(1, dtype))


# --- eigenvalues ---------------------------------------------------------------------------------------------------


def _eigenvalue_work(spec: Eigenvalues) -> tuple[int, int]:
    """Numbers and integers of work memory."""
    n = spec.n
    return (1 + 6 * n + 2 * n * n if spec.vectors else 2 * n + 1) + BLOCK * n, 3 + 5 * n


def eigenvalues_scratch(spec: Eigenvalues) -> int:
    """Bytes of a copy of the matrix, and of the work memory."""
    numbers, integers = _eigenvalue_work(spec)
    size = itemsize(spec.dtype)
    return _rounded(spec.n**2 * size) + _rounded(numbers * size) + _rounded(integers * 4)


def eigenvalues(module: Module, f: Function, spec: Eigenvalues) -> None:
    """``(x, values[, vectors])``; a unit is a matrix."""
    n, dtype = spec.n, spec.dtype
    call = _Call(module, f, dtype, "syevd")
    numbers, integers = _eigenvalue_work(spec)
    copy, work, indices = call.piece(n * n, dtype), call.piece(numbers, dtype), call.piece(integers, "int32")
    size = call.integer(n)
    fixed = (call.letter("V" if spec.vectors else "N"), call.letter("U"), size, copy, size)
    rest = (work, call.integer(numbers), indices, call.integer(integers))
    with f.loop(f.param("first"), f.param("end"), polls=True) as matrix:
        _copy(f, copy, move(f, f.param("x"), dtype, (matrix, n * n)), n * n, dtype)
        with _if_finite(f, copy, n, n, dtype, lower=True):
            call.run(*fixed, move(f, f.param("values"), dtype, (matrix, n)), *rest)
            if spec.vectors:
                vectors = move(f, f.param("vectors"), dtype, (matrix, n * n))
                with f.loop(I64(0), I64(n)) as i:  # a vector is a row of the copy
                    row = move(f, copy, dtype, (i, n))
                    sign = _sign(f, row, 1, n, dtype)
                    with f.loop(I64(0), I64(n)) as j:
                        number = f.binary("fmul", f.load(f.at(row, j, dtype), dtype), sign)
                        f.store(number, move(f, vectors, dtype, (j, n), (i, 1)))


# --- singular values -----------------------------------------------------------------------------------------------


def _singular_work(spec: SingularValues) -> tuple[int, int]:
    """Numbers and integers of work memory."""
    k = min(spec.m, spec.n)
    return 5 * k * k + 10 * k + BLOCK * (spec.m + spec.n), 8 * k


def singular_values_scratch(spec: SingularValues) -> int:
    """Bytes of a copy of the matrix, of the transposed v, and of the work memory."""
    numbers, integers = _singular_work(spec)
    size, k = itemsize(spec.dtype), min(spec.m, spec.n)
    arrays = (spec.m * spec.n * size, k * spec.n * size, numbers * size, integers * 4)
    return sum(_rounded(nbytes) for nbytes in arrays)


def singular_values(module: Module, f: Function, spec: SingularValues) -> None:
    """``(x, u, s, v)``; a unit is a matrix."""
    m, n, dtype = spec.m, spec.n, spec.dtype
    k = min(m, n)
    call = _Call(module, f, dtype, "gesdd")
    numbers, integers = _singular_work(spec)
    copy, turned = call.piece(m * n, dtype), call.piece(k * n, dtype)
    work, indices = call.piece(numbers, dtype), call.piece(integers, "int32")
    rows, columns, count, room = (call.integer(each) for each in (n, m, k, numbers))
    letter = call.letter("S")
    with f.loop(f.param("first"), f.param("end"), polls=True) as matrix:
        _copy(f, copy, move(f, f.param("x"), dtype, (matrix, m * n)), m * n, dtype)
        with _if_finite(f, copy, m, n, dtype):
            u = move(f, f.param("u"), dtype, (matrix, m * k))
            s = move(f, f.param("s"), dtype, (matrix, k))
            v = move(f, f.param("v"), dtype, (matrix, n * k))
            call.run(letter, rows, columns, copy, rows, s, turned, rows, u, count, work, room, indices)
            with f.loop(I64(0), I64(k)) as i:
                sign = _sign(f, f.at(u, i, dtype), k, m, dtype)
                with f.loop(I64(0), I64(m)) as j:
                    place = move(f, u, dtype, (j, k), (i, 1))
                    f.store(f.binary("fmul", f.load(place, dtype), sign), place)
                with f.loop(I64(0), I64(n)) as j:
                    number = f.load(move(f, turned, dtype, (i, n), (j, 1)), dtype)
                    f.store(f.binary("fmul", number, sign), move(f, v, dtype, (j, k), (i, 1)))
