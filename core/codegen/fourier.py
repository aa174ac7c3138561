"""Discrete Fourier transforms of complex numbers (see `core.plan.fourier.Fourier`): one line in each lane of a vector.

Sources: the self-sorting transform of T. G. Stockham (1966) in passes of radix 4, 2 and small odd primes; L. I.
Bluestein, "A linear filtering approach to the computation of discrete Fourier transform" (1970), for other lengths.

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
    start = ((slab, 2 * spec.n * spec.inner), (group, 2 * width))

    def address(name: str, j: IRValue) -> IRValue:
        return move(f, f.param(name), spec.dtype, *start, (j, 2 * spec.inner))

    def read(j: IRValue) -> Number:
        re, im = load_phases(f, address("x", j), spec.dtype, 2, width, count, wanted=2)
        return re, im

    def write(j: IRValue, number: Number) -> None:
        f.store(interleaved(f, list(number)), address("out", j), mask(2 * count, 2 * width))

    lines.transform(read, write)


def _adjacent_lines(lines: Lines, unit: IRValue) -> None:
    """Transform lines that follow each other in memory. A line after the last one is read as the last one."""
    f, spec, width = lines.f, lines.spec, lines.width
    length, first = 2 * spec.n, f.op(f"mul nsw {unit}, {width}", "int64")
    numbers = [f.binary("add", first, I64(i)) for i in range(width)]
    given, result = lines.buffer(1), lines.buffer(lines.last)

    def gather(column: IRValue, count: int) -> None:
        square = []
        for number in numbers:
            line = f.intrinsic("smin", number, I64(spec.outer - 1))
            address = move(f, f.param("x"), spec.dtype, (line, length), (column, 1))
            square.append(f.load(address, spec.dtype, width, mask(count, width)))
        for i, vector in enumerate(transposed_square(f, square)[:count]):
            f.store(vector, move(f, given, spec.dtype, (column, width), by=i * width))

    def scatter(column: IRValue, count: int) -> None:
        addresses = [move(f, result, spec.dtype, (column, width), by=i * width) for i in range(width)]
        square = [f.load(address, spec.dtype, width) for address in addresses]
        for number, vector in zip(numbers, transposed_square(f, square), strict=True):
            with f.when(f.compare("icmp slt", number, I64(spec.outer))):
                address = move(f, f.param("out"), spec.dtype, (number, length), (column, 1))
                f.store(vector, address, mask(count, width))

    for_each_slice(f, length, width, gather, unrolled=1)
    lines.transform(lines.reader(1), lines.writer(lines.last))
    for_each_slice(f, length, width, scatter, unrolled=1)


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

    def transform(self, read: Read, write: Write) -> None:
        """Write the transform of the numbers that `read` gives."""
        spec = self.spec
        scaled = self._scaled(write)
        if spec.is_direct:
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
        f, spec = self.f, self.spec
        chirp, kernel, middle = self._table(spec.chirp), self._table(spec.kernel), self._after(1)
        with self._each(0, spec.n) as j:
            self._store(self.buffer(1), j, self._times(read(j), self._number(chirp, j)))
        zero = f.splat(literal(0, spec.dtype), self.width)
        with self._each(spec.n, spec.length) as j:
            self._store(self.buffer(1), j, (zero, zero))

        def weighted(j: IRValue, number: Number) -> None:
            self._store(self.buffer(middle), j, self._times(number, self._number(kernel, j)))

        self._passes(False, self.reader(1), weighted, 1)
        self._passes(True, self.reader(middle), self.writer(1), middle)
        with self._each(0, spec.n) as k:
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
