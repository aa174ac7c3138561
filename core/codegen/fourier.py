"""Discrete Fourier transforms (see `core.plan.fourier.Fourier`): one line in each lane of a vector.

Sources: the self-sorting transform of T. G. Stockham (1966) in passes of radix 4, 2 and small odd primes; L. I.
Bluestein, "A linear filtering approach to the computation of discrete Fourier transform" (1970), for other lengths.

A real line of an even number of elements is transformed as half as many complex numbers: the even elements are their
real parts, the odd ones their imaginary parts. Then the transforms of both are parted, and joined to that of the line.

A complex number is two vectors here: the real parts of the lines, then the imaginary parts. Lines whose elements have
neighbours on a later axis are read and written in place. Lines that follow each other in memory are first transposed to
scratch memory, and back at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

import numpy as np

from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.transpose import transposed_square
from core.codegen.vector_slices import for_each_slice, interleaved, load_phases, mask, move
from core.plan.fourier import Fourier

__all__ = ["Lines", "Number", "Read", "Write", "fourier", "fourier_scratch", "fourier_units"]

Number = tuple[IRValue, IRValue]
"""A complex number of each line: real parts, imaginary parts."""

Read = Callable[[IRValue], Number]
Write = Callable[[IRValue, Number], None]
ReadReal = Callable[[IRValue], IRValue]
WriteReal = Callable[[IRValue, IRValue], None]


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


@contextmanager
def _counted(f: Function, count: int) -> Iterator[IRValue]:
    """A loop of `count` trips; straight code if there is one trip."""
    if count == 1:
        yield I64(0)
        return
    with f.loop(I64(0), I64(count)) as number:
        yield number


def _plus(f: Function, a: IRValue, b: IRValue) -> IRValue:
    return a if b.name == "0" else b if a.name == "0" else f.binary("add", a, b)


@dataclass(slots=True)
class Lines:
    """The transform of a vector of `width` lines."""

    module: Module
    f: Function
    spec: Fourier
    width: int

    @property
    def last(self) -> int:
        """The buffer for the transform of the numbers in buffer 1."""
        return self._after(1) if self.spec.is_direct else 1

    def buffer(self, which: int) -> IRValue:
        f, spec = self.f, self.spec
        size = (spec.length + self.width) * 2 * self.width
        return move(f, f.param("scratch"), spec.dtype, by=which * size)

    def reader(self, which: int) -> Read:
        return lambda j: self._load(self.buffer(which), j)

    def writer(self, which: int) -> Write:
        return lambda j, number: self._store(self.buffer(which), j, number)

    def real_reader(self, which: int) -> ReadReal:
        """Reads elements of real lines from a buffer."""
        buffer, dtype = self.buffer(which), self.spec.dtype
        return lambda j: self.f.load(move(self.f, buffer, dtype, (j, self.width)), dtype, self.width)

    def real_writer(self, which: int) -> WriteReal:
        buffer, dtype = self.buffer(which), self.spec.dtype
        return lambda j, value: self.f.store(value, move(self.f, buffer, dtype, (j, self.width)))

    def transform(self, read: Read, write: Write) -> None:
        """Write the transform of the numbers that `read` gives."""
        spec = self.spec
        scaled = self._scaled(write)
        if spec.count == 1:
            self.copy(read, scaled)
        elif spec.is_direct:
            self._passes(spec.inverse, read, scaled, 1)
        else:
            self._by_convolution(read, scaled)

    def _scaled(self, write: Write) -> Write:
        f, spec = self.f, self.spec
        if spec.scale == 1:
            return write
        factor = literal(spec.scale, spec.dtype)

        def scaled(j: IRValue, number: Number) -> None:
            re, im = (f.binary("fmul", each, factor) for each in number)
            write(j, (re, im))

        return scaled

    # --- real lines ---------------------------------------------------------------------------------------------------

    def transform_lines(self, read: Read, write: Write, read_real: ReadReal, write_real: WriteReal) -> None:
        """Write the transform of complex or real lines.

        read, write: a complex number, or a frequency, of the lines. read_real, write_real: an element of real lines.
        """
        if not self.spec.real:
            self.transform(read, write)
        elif self.spec.inverse:
            self.signal(read, self.unpaired(write_real))
        else:
            self.spectrum(self.paired(read_real), write)

    def paired(self, read: ReadReal) -> Read:
        """Complex numbers from the elements of real lines: two neighbours each if lines are packed."""
        f, spec = self.f, self.spec

        def pair(j: IRValue) -> Number:
            if not spec.packed:
                return read(j), self._zero()
            even = f.binary("mul", j, I64(2))
            return read(even), read(f.binary("add", even, I64(1)))

        return pair

    def unpaired(self, write: WriteReal) -> Write:
        """The inverse of `paired`."""
        f, spec = self.f, self.spec

        def parts(j: IRValue, number: Number) -> None:
            if not spec.packed:
                write(j, number[0])
                return
            even = f.binary("mul", j, I64(2))
            write(even, number[0])
            write(f.binary("add", even, I64(1)), number[1])

        return parts

    def copy(self, read: Read, write: Write) -> None:
        with self._each(0, self.spec.count) as j:
            write(j, read(j))

    def spectrum(self, read: Read, write: Write) -> None:
        """Write the frequencies of real lines whose complex numbers `read` gives. `write` may use a buffer other than
        `last`.
        """
        f, spec = self.f, self.spec
        self.transform(read, self.writer(self.last))
        found = self.reader(self.last)
        with self._each(0, 1) as zero:
            re, im = found(zero)
            if spec.packed:
                write(I64(spec.count), (f.binary("fsub", re, im), self._zero()))
                re = f.binary("fadd", re, im)
            write(zero, (re, self._zero()))
        if spec.packed:
            self._parted(found, write, spec.folded / 2)
            return
        with self._each(1, spec.frequencies) as k:
            write(k, self._folded(found(k), spec.folded))

    def signal(self, read: Read, write: Write) -> None:
        """Write the complex numbers of real lines whose frequencies `read` gives.

        `read` may use buffer 0, and `write` buffer `last`.
        """
        f, spec, put = self.f, self.spec, self.writer(1)
        with self._each(0, 1) as zero:
            re, im = read(zero)[0], self._zero()
            if spec.packed:
                other = read(I64(spec.count))[0]
                re, im = f.binary("fadd", re, other), f.binary("fsub", re, other)
            put(zero, (re, im))
        if spec.packed:
            self._parted(read, put, spec.folded)
        else:
            with self._each(1, spec.frequencies) as k:
                number = self._folded(read(k), spec.folded)
                put(k, number)
                put(f.binary("sub", I64(spec.n), k), self._conjugate(number))
        self.transform(self.reader(1), write)

    def _parted(self, read: Read, write: Write, factor: float) -> None:
        """From the transform of packed lines to that of their elements, or back: numbers k and count - k at a time."""
        f, spec = self.f, self.spec
        turns = self._table(spec.turns * factor)
        with self._each(1, spec.count // 2 + 1) as k:
            other = f.binary("sub", I64(spec.count), k)
            a, b = read(k), self._conjugate(read(other))
            even = self._folded(self._sum(a, b), factor)
            odd = self._times(self._difference(a, b), self._number(turns, k))
            write(k, self._sum(even, odd))
            write(other, self._conjugate(self._difference(even, odd)))

    def _folded(self, number: Number, factor: float) -> Number:
        if factor == 1:
            return number
        each = literal(factor, self.spec.dtype)
        return self.f.binary("fmul", number[0], each), self.f.binary("fmul", number[1], each)

    def _conjugate(self, number: Number) -> Number:
        return number[0], self.f.op(f"fneg {number[1]}", number[1].dtype, number[1].lanes)

    def _zero(self) -> IRValue:
        return self.f.splat(literal(0, self.spec.dtype), self.width)

    # --- passes ---------------------------------------------------------------------------------------------------

    def _passes(self, inverse: bool, read: Read, write: Write, source: int) -> None:
        """All passes of a transform of `length` numbers. Between them, numbers are in the buffers in turn.

        source: the buffer that `read` reads, if any; the first pass writes the other one.
        """
        spec = self.spec
        roots = self._table(spec.roots(inverse))
        done, here = 1, source
        for number, radix in enumerate(spec.radices):
            last = number == len(spec.radices) - 1
            self._pass(
                radix, done, inverse, roots,
                self.reader(here) if number else read, write if last else self.writer(1 - here),
            )  # fmt: skip
            done, here = done * radix, 1 - here

    def _pass(self, radix: int, done: int, inverse: bool, roots: IRValue, read: Read, write: Write) -> None:
        """One pass. done: the product of the radices of the passes before it."""
        f, left = self.f, self.spec.length // done // radix

        def turns_of(p: IRValue) -> list[Number]:
            return [self._number(roots, f.binary("mul", p, I64(k * done))) for k in range(1, radix)] if left > 1 else []

        with self._butterflies(left, done, turns_of) as (p, q, turns):
            source, target = (_plus(f, q, f.binary("mul", p, I64(step))) for step in (done, done * radix))
            given = [read(_plus(f, source, I64(done * left * k))) for k in range(radix)]
            for k, number in enumerate(self._butterfly(given, inverse)):
                turned = self._times(number, turns[k - 1]) if k and turns else number
                write(_plus(f, target, I64(done * k)), turned)

    @contextmanager
    def _butterflies(
        self, left: int, done: int, turns: Callable[[IRValue], list[Number]]
    ) -> Iterator[tuple[IRValue, IRValue, list[Number]]]:
        """All p below `left` with all q below `done`, and the numbers that `turns` gives for p."""
        with _counted(self.f, left) as p:
            found = turns(p)
            with _counted(self.f, done) as q:
                yield p, q, found

    @contextmanager
    def _each(self, first: int, end: int) -> Iterator[IRValue]:
        """All numbers of a line from `first` to `end`."""
        with self.f.loop(I64(first), I64(end)) as j:
            yield j

    def _butterfly(self, x: list[Number], inverse: bool) -> list[Number]:
        """The transform of a few numbers."""
        f = self.f
        if len(x) == 2:
            return [self._sum(x[0], x[1]), self._difference(x[0], x[1])]
        if len(x) == 4:
            even, odd = self._sum(x[0], x[2]), self._sum(x[1], x[3])
            here, there = self._difference(x[0], x[2]), self._turned(self._difference(x[1], x[3]), inverse)
            return [self._sum(even, odd), self._sum(here, there), self._difference(even, odd),
                    self._difference(here, there)]  # fmt: skip
        half, dtype = len(x) // 2, self.spec.dtype
        pairs = [(self._sum(x[k], x[-k]), self._difference(x[k], x[-k])) for k in range(1, half + 1)]
        found = [reduce(self._sum, (plus for plus, _ in pairs), x[0])] * len(x)
        for j in range(1, half + 1):
            angles = [2 * np.pi * (j * k % len(x)) / len(x) for k in range(1, half + 1)]
            cosines, sines = ([literal(part(a), dtype) for a in angles] for part in (np.cos, np.sin))
            re, im = x[0]
            across: list[IRValue] = []
            for (plus, _), factor in zip(pairs, cosines, strict=True):
                re, im = f.fma(plus[0], factor, re), f.fma(plus[1], factor, im)
            for part in (0, 1):
                total = f.binary("fmul", pairs[0][1][part], sines[0])
                for (_, minus), factor in zip(pairs[1:], sines[1:], strict=True):
                    total = f.fma(minus[part], factor, total)
                across.append(total)
            turned = self._turned((across[0], across[1]), inverse)
            found[j], found[-j] = self._sum((re, im), turned), self._difference((re, im), turned)
        return found

    def _sum(self, a: Number, b: Number) -> Number:
        return self.f.binary("fadd", a[0], b[0]), self.f.binary("fadd", a[1], b[1])

    def _difference(self, a: Number, b: Number) -> Number:
        return self.f.binary("fsub", a[0], b[0]), self.f.binary("fsub", a[1], b[1])

    def _turned(self, a: Number, inverse: bool) -> Number:
        """``a`` times i for the inverse transform, else times -i."""
        f = self.f
        negative = f.op(f"fneg {a[1 if inverse else 0]}", a[0].dtype, a[0].lanes)
        return (negative, a[0]) if inverse else (a[1], negative)

    def _times(self, a: Number, b: Number) -> Number:
        f = self.f
        minus = f.op(f"fneg {a[1]}", a[1].dtype, a[1].lanes)
        return f.fma(minus, b[1], f.binary("fmul", a[0], b[0])), f.fma(a[1], b[0], f.binary("fmul", a[0], b[1]))

    # --- lengths with other prime factors -------------------------------------------------------------------------

    def _by_convolution(self, read: Read, write: Write) -> None:
        """The transform as a circular convolution of `length` numbers: ``2 j k = j j + k k - (k - j) (k - j)``.

        `read` and `write` may use buffer 1, not buffer 0.
        """
        spec = self.spec
        chirp, kernel, middle = self._table(spec.chirp), self._table(spec.kernel), self._after(1)
        with self._each(0, spec.count) as j:
            self._store(self.buffer(1), j, self._times(read(j), self._number(chirp, j)))
        zero = self._zero()
        with self._each(spec.count, spec.length) as j:
            self._store(self.buffer(1), j, (zero, zero))

        def weighted(j: IRValue, number: Number) -> None:
            self._store(self.buffer(middle), j, self._times(number, self._number(kernel, j)))

        self._passes(False, self.reader(1), weighted, 1)
        self._passes(True, self.reader(middle), self.writer(1), middle)
        with self._each(0, spec.count) as k:
            write(k, self._times(self._load(self.buffer(1), k), self._number(chirp, k)))

    def _after(self, source: int) -> int:
        """The buffer that the last pass writes if the first one reads buffer `source`."""
        return source ^ (len(self.spec.radices) % 2)

    # --- memory ---------------------------------------------------------------------------------------------------

    def _load(self, buffer: IRValue, j: IRValue) -> Number:
        at = move(self.f, buffer, self.spec.dtype, (j, 2 * self.width))
        re, im = (self.f.load(move(self.f, at, self.spec.dtype, by=i), self.spec.dtype, self.width)
                  for i in (0, self.width))  # fmt: skip
        return re, im

    def _store(self, buffer: IRValue, j: IRValue, number: Number) -> None:
        at = move(self.f, buffer, self.spec.dtype, (j, 2 * self.width))
        for i, part in enumerate(number):
            self.f.store(part, move(self.f, at, self.spec.dtype, by=i * self.width))

    def _table(self, numbers: np.ndarray) -> IRValue:
        pairs = np.stack([numbers.real, numbers.imag], axis=-1).astype(self.spec.dtype)
        return self.module.data(pairs.tobytes())

    def _number(self, table: IRValue, j: IRValue) -> Number:
        """A number of a table, in all lanes."""
        f, dtype = self.f, self.spec.dtype
        at = move(f, table, dtype, (j, 2))
        re, im = (f.splat(f.load(move(f, at, dtype, by=i), dtype), self.width) for i in (0, 1))
        return re, im
