"""The transform of a vector of lines (see `core.plan.fourier.Fourier`): its passes, and its real lines.

Sources: the self-sorting transform of T. G. Stockham (1966) in passes of radix 4, 2 and small odd primes; L. I.
Bluestein, "A linear filtering approach to the computation of discrete Fourier transform" (1970), for other lengths.

A real line of an even number of elements is transformed as half as many complex numbers: the even elements are their
real parts, the odd ones their imaginary parts. Then the transforms of both are parted, and joined to that of the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from core.codegen.complex_numbers import Complex, Number
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.module import Module
from core.codegen.vector_slices import move
from core.plan.fourier import Fourier

__all__ = ["Lines"]

Read = Callable[[IRValue], Number]
Write = Callable[[IRValue, Number], None]
ReadReal = Callable[[IRValue], IRValue]
WriteReal = Callable[[IRValue, IRValue], None]


@dataclass(slots=True)
class Lines:
    """The transform of a vector of `width` lines."""

    module: Module
    f: Function
    spec: Fourier
    width: int

    @property
    def math(self) -> Complex:
        return Complex(self.f, self.spec.dtype, self.width)

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
                return read(j), self.math.zero()
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
                write(I64(spec.count), (f.binary("fsub", re, im), self.math.zero()))
                re = f.binary("fadd", re, im)
            write(zero, (re, self.math.zero()))
        if spec.packed:
            self._parted(found, write, spec.folded / 2)
            return
        with self._each(1, spec.frequencies) as k:
            write(k, self.math.scaled(found(k), spec.folded))

    def signal(self, read: Read, write: Write) -> None:
        """Write the complex numbers of real lines whose frequencies `read` gives.

        `read` may use buffer 0, and `write` buffer `last`.
        """
        f, spec, put = self.f, self.spec, self.writer(1)
        with self._each(0, 1) as zero:
            re, im = read(zero)[0], self.math.zero()
            if spec.packed:
                other = read(I64(spec.count))[0]
                re, im = f.binary("fadd", re, other), f.binary("fsub", re, other)
            put(zero, (re, im))
        if spec.packed:
            self._parted(read, put, spec.folded)
        else:
            with self._each(1, spec.frequencies) as k:
                number = self.math.scaled(read(k), spec.folded)
                put(k, number)
                put(f.binary("sub", I64(spec.n), k), self.math.conjugate(number))
        self.transform(self.reader(1), write)

    def _parted(self, read: Read, write: Write, factor: float) -> None:
        """From the transform of packed lines to that of their elements, or back: numbers k and count - k at a time."""
        f, spec, math = self.f, self.spec, self.math
        turns = self._table(spec.turns * factor)
        with self._each(1, spec.count // 2 + 1) as k:
            other = f.binary("sub", I64(spec.count), k)
            a, b = read(k), math.conjugate(read(other))
            even = math.scaled(math.add(a, b), factor)
            odd = math.mul(math.sub(a, b), self._number(turns, k))
            write(k, math.add(even, odd))
            write(other, math.conjugate(math.sub(even, odd)))

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
            for k, number in enumerate(self.math.butterfly(given, inverse)):
                turned = self.math.mul(number, turns[k - 1]) if k and turns else number
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

    # --- lengths with other prime factors -------------------------------------------------------------------------

    def _by_convolution(self, read: Read, write: Write) -> None:
        """The transform as a circular convolution of `length` numbers: ``2 j k = j j + k k - (k - j) (k - j)``.

        `read` and `write` may use buffer 1, not buffer 0.
        """
        spec = self.spec
        chirp, kernel, middle = self._table(spec.chirp), self._table(spec.kernel), self._after(1)
        with self._each(0, spec.count) as j:
            self._store(self.buffer(1), j, self.math.mul(read(j), self._number(chirp, j)))
        zero = self.math.zero()
        with self._each(spec.count, spec.length) as j:
            self._store(self.buffer(1), j, (zero, zero))

        def weighted(j: IRValue, number: Number) -> None:
            self._store(self.buffer(middle), j, self.math.mul(number, self._number(kernel, j)))

        self._passes(False, self.reader(1), weighted, 1)
        self._passes(True, self.reader(middle), self.writer(1), middle)
        with self._each(0, spec.count) as k:
            write(k, self.math.mul(self._load(self.buffer(1), k), self._number(chirp, k)))

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
