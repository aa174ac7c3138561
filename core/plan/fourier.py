"""Discrete Fourier transforms along an axis of complex or real numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import count

import numpy as np

from core.ir import Op
from core.plan.instructions import Kernel
from core.plan.lowering import Lowering, lowers
from core.plan.slabs import as_slabs
from core.plan.unsupported import Unsupported

__all__ = ["Fourier"]

LONGEST = 1 << 15
"""Numbers of the longest transform: its roots of unity are constants of the machine code."""

PRIMES = (3, 5, 7, 11, 13)
"""Odd lengths of the transforms that a pass computes by their sums."""


@dataclass(frozen=True, slots=True)
class Fourier:
    """Transforms along the middle axis of dense arrays [outer, n, inner, 2].

    inverse: whether the exponent is positive.
    scale:   factor of every result.
    real:    whether the operand, or the result of the inverse, is real, [outer, n, inner]. The other array has only the
             first n / 2 + 1 numbers: the rest are their conjugates.
    folded:  of a real transform, factor of the numbers whose conjugates are left out.
    """

    dtype: str
    outer: int
    n: int
    inner: int
    inverse: bool
    scale: float
    real: bool = False
    folded: float = 1.0

    @property
    def packed(self) -> bool:
        """Whether two neighbours of a real line are one complex number: its transform has half the length."""
        return self.real and self.n % 2 == 0

    @property
    def count(self) -> int:
        """Complex numbers of a line that is transformed."""
        return self.n // 2 if self.packed else self.n

    @property
    def frequencies(self) -> int:
        """Numbers of a transformed line that are kept."""
        return self.n // 2 + 1 if self.real else self.n

    @property
    def is_direct(self) -> bool:
        """Whether passes compute the transform itself, because it has no large prime factor; else a convolution."""
        return self.count == 1 or bool(_radices(self.count))

    @property
    def length(self) -> int:
        """The length of the transforms that the passes compute."""
        return self.count if self.is_direct else _length_for(self.count)

    @property
    def radices(self) -> list[int]:
        """The lengths of the transforms in each pass; their product is `length`."""
        return _radices(self.length)

    def roots(self, inverse: bool) -> np.ndarray:
        """The powers of the root of unity of `length`."""
        return _roots(np.arange(self.length), self.length, inverse)

    @property
    def chirp(self) -> np.ndarray:
        """``exp(-pi i j j / count)`` for each j; of the inverse transform ``exp(pi i j j / count)``."""
        j = np.arange(self.count)
        return _roots(j * j % (2 * self.count), 2 * self.count, self.inverse)

    @property
    def kernel(self) -> np.ndarray:
        """The transform of the conjugate chirp at -count + 1 to count - 1, around `length`, divided by it."""
        around, n = np.zeros(self.length, complex), self.count
        around[:n] = self.chirp.conj()
        around[len(around) - n + 1 :] = around[n - 1 : 0 : -1]
        return np.fft.fft(around) / self.length

    @property
    def turns(self) -> np.ndarray:
        """``-i exp(-2 pi i k / n)`` for each k up to n / 4, or its conjugate for the inverse.

        They part the transforms of the even and the odd elements of a packed line.
        """
        return _roots(np.arange(self.count // 2 + 1), self.n, self.inverse) * (1j if self.inverse else -1j)

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        each = sum(2 * r + 8 for r in self.radices) + 8
        return self.outer * self.inner * self.length * each * (1 if self.is_direct else 2)


@lru_cache(64)
def _length_for(n: int) -> int:
    """The least length, with prime factors up to 5, of a circular convolution of n numbers with 2 n - 1 others."""
    return next(m for m in count(2 * n - 1) if max(_radices(m), default=m) <= 5)


def _radices(n: int) -> list[int]:
    """Factors of n: fours, at most one two, odd primes; none if n has other prime factors."""
    found = []
    for factor in (4, 2, *PRIMES):
        while n % factor == 0:
            found.append(factor)
            n //= factor
    return found if n == 1 else []


def _roots(power: np.ndarray, n: int, inverse: bool) -> np.ndarray:
    return np.exp((2j if inverse else -2j) * np.pi * power / n)


@lowers("dft")
def lower_dft(low: Lowering, op: Op) -> None:
    type, attrs = low.type(op.inputs[0]), op.attrs
    axis = attrs["axis"] % len(type.shape)
    n = type.shape[axis]
    if type.shape[-1] != 2 or n == 0:
        raise Unsupported("its last axis does not hold pairs, or its axis is empty")
    if n == 1:
        low.define(op.outputs[0], low.entry(op.inputs[0]))
        return
    outer, _, inner = as_slabs(type.shape[:-1], axis)
    _transform(
        low, op, Fourier(type.dtype, outer, n, inner, attrs["inverse"], _scale(n, attrs["inverse"], attrs["norm"]))
    )


@lowers("real_dft")
def lower_real_dft(low: Lowering, op: Op) -> None:
    type, attrs = low.type(op.inputs[0]), op.attrs
    outer, n, inner = as_slabs(type.shape, attrs["axis"] % len(type.shape))
    scale = _scale(n, False, attrs["norm"])
    _transform(low, op, Fourier(type.dtype, outer, n, inner, False, scale, True, attrs["inner"]))


@lowers("real_from_dft")
def lower_real_from_dft(low: Lowering, op: Op) -> None:
    type, attrs = low.type(op.inputs[0]), op.attrs
    outer, _, inner = as_slabs(type.shape[:-1], attrs["axis"] % len(type.shape))
    n = attrs["n"]
    _transform(
        low, op, Fourier(type.dtype, outer, n, inner, True, _scale(n, True, attrs["norm"]), True, attrs["inner"])
    )


def _scale(n: int, inverse: bool, norm: str) -> float:
    divided = {"backward": inverse, "forward": not inverse}.get(norm)
    return n**-0.5 if divided is None else 1 / n if divided else 1.0


def _transform(low: Lowering, op: Op, spec: Fourier) -> None:
    if spec.count > LONGEST:
        raise Unsupported(f"a transform of {spec.count} numbers is longer than {LONGEST}")
    x, out = low.dense(low.entry(op.inputs[0])), low.destination(op.outputs[0])
    low.add(Kernel("fourier", spec, (x, out), location=op.location))
    low.define(op.outputs[0], out)
