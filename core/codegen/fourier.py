"""Discrete Fourier transforms (see `core.plan.fourier.Fourier`): one line in each lane of a vector.

A complex number is two vectors: the real parts of the lines, then the imaginary parts. Lines whose elements have
neighbours on a later axis are read and written in place. Lines that follow each other in memory are first transposed to
scratch memory, and back at the end.
"""

from __future__ import annotations

from core.codegen.complex_numbers import Number
from core.codegen.fourier_lines import Lines
from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.transpose import transposed_square
from core.codegen.vector_slices import for_each_slice, interleaved, load_phases, mask, move
from core.plan.fourier import Fourier

__all__ = ["fourier", "fourier_scratch", "fourier_units"]


def fourier_units(spec: Fourier) -> int:
    """Units of work: a vector of lines each."""
    width = _width(spec)
    return spec.outer * -(-spec.inner // width) if spec.inner > 1 else -(-spec.outer // width)


def fourier_scratch(spec: Fourier) -> int:
    """Bytes of two buffers for the transform; the last square reads up to a vector of rows after its numbers."""
    width = _width(spec)
    return 2 * (spec.length + width) * 2 * width * itemsize(spec.dtype)


def _width(spec: Fourier) -> int:
    """Lines in a vector: no more than there are."""
    side = spec.inner if spec.inner > 1 else spec.outer
    width = lanes(spec.dtype)
    while width > 1 and width // 2 >= side:
        width //= 2
    return width


def fourier(module: Module, f: Function, spec: Fourier) -> None:
    """``(x, out)``, both dense; a unit is a vector of lines."""
    width = _width(spec)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        if spec.inner == 1:
            _adjacent_lines(Lines(module, f, spec, width), unit)
            return
        groups = -(-spec.inner // width)
        slab = f.op(f"udiv {unit}, {groups}", "int64")
        group = f.op(f"urem {unit}, {groups}", "int64")
        rest = spec.inner % width

        def neighbours(count: int) -> None:
            _neighbouring_lines(Lines(module, f, spec, width), slab, group, count)

        if not rest:
            neighbours(width)
        elif groups == 1:
            neighbours(rest)
        else:
            whole = f.compare("icmp slt", group, I64(groups - 1))
            f.either(whole, lambda: neighbours(width), lambda: neighbours(rest))


def _neighbouring_lines(lines: Lines, slab: IRValue, group: IRValue, count: int) -> None:
    """Transform `count` lines whose elements are neighbours in memory."""
    f, spec, width = lines.f, lines.spec, lines.width

    def address(name: str, j: IRValue, elements: int, parts: int) -> IRValue:
        steps = ((slab, parts * elements * spec.inner), (group, parts * width), (j, parts * spec.inner))
        return move(f, f.param(name), spec.dtype, *steps)

    def read(j: IRValue) -> Number:
        re, im = load_phases(f, address("x", j, spec.frequencies, 2), spec.dtype, 2, width, count, wanted=2)
        return re, im

    def write(j: IRValue, number: Number) -> None:
        f.store(interleaved(f, list(number)), address("out", j, spec.frequencies, 2), mask(2 * count, 2 * width))

    def read_real(j: IRValue) -> IRValue:
        return f.load(address("x", j, spec.n, 1), spec.dtype, width, mask(count, width))

    def write_real(j: IRValue, value: IRValue) -> None:
        f.store(value, address("out", j, spec.n, 1), mask(count, width))

    lines.transform_lines(read, write, read_real, write_real)


def _adjacent_lines(lines: Lines, unit: IRValue) -> None:
    """Transform lines that follow each other in memory. A line after the last one is read as the last one."""
    f, spec, width = lines.f, lines.spec, lines.width
    first = f.op(f"mul nsw {unit}, {width}", "int64")
    numbers = [f.binary("add", first, I64(i)) for i in range(width)]

    def gather(into: int, length: int) -> None:
        """Write the elements of each line to a buffer, where those of all lines are neighbours."""
        given = lines.buffer(into)

        def square_of(column: IRValue, count: int) -> None:
            square = []
            for number in numbers:
                line = f.intrinsic("smin", number, I64(spec.outer - 1))
                address = move(f, f.param("x"), spec.dtype, (line, length), (column, 1))
                square.append(f.load(address, spec.dtype, width, mask(count, width)))
            for i, vector in enumerate(transposed_square(f, square)[:count]):
                f.store(vector, move(f, given, spec.dtype, (column, width), by=i * width))

        for_each_slice(f, length, width, square_of, unrolled=1)

    def scatter(source: int, length: int) -> None:
        """Write the lines of a buffer."""
        result = lines.buffer(source)

        def square_of(column: IRValue, count: int) -> None:
            addresses = [move(f, result, spec.dtype, (column, width), by=i * width) for i in range(width)]
            square = [f.load(address, spec.dtype, width) for address in addresses]
            for number, vector in zip(numbers, transposed_square(f, square), strict=True):
                with f.when(f.compare("icmp slt", number, I64(spec.outer))):
                    address = move(f, f.param("out"), spec.dtype, (number, length), (column, 1))
                    f.store(vector, address, mask(count, width))

        for_each_slice(f, length, width, square_of, unrolled=1)

    last, pairs = lines.last, 2 * spec.frequencies
    if not spec.real:
        gather(1, pairs)
        lines.transform(lines.reader(1), lines.writer(last))
        scatter(last, pairs)
    elif spec.inverse:
        gather(0, pairs)
        lines.signal(lines.reader(0), lines.writer(last))
        if not spec.packed:
            lines.copy(lines.reader(last), lines.unpaired(lines.real_writer(1 - last)))
        scatter(last if spec.packed else 1 - last, spec.n)
    else:
        gather(1 if spec.packed else 0, spec.n)
        if not spec.packed:
            lines.copy(lines.paired(lines.real_reader(0)), lines.writer(1))
        lines.spectrum(lines.reader(1), lines.writer(1 - last))
        scatter(1 - last, pairs)
