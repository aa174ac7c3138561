"""Arithmetic on vectors of complex numbers, and the transforms of a few of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from core.codegen.llvm import Function, IRValue, literal

__all__ = ["Complex", "Number"]

Number = tuple[IRValue, IRValue]
"""A complex number in each lane: real parts, imaginary parts."""


@dataclass(frozen=True, slots=True)
class Complex:
    """Appends arithmetic on complex numbers to a function. dtype, lanes: of the parts."""

    f: Function
    dtype: str
    lanes: int

    def zero(self) -> IRValue:
        """A part that is 0."""
        return self.f.splat(literal(0, self.dtype), self.lanes)

    def add(self, a: Number, b: Number) -> Number:
        return self.f.binary("fadd", a[0], b[0]), self.f.binary("fadd", a[1], b[1])

    def sub(self, a: Number, b: Number) -> Number:
        return self.f.binary("fsub", a[0], b[0]), self.f.binary("fsub", a[1], b[1])

    def mul(self, a: Number, b: Number) -> Number:
        f = self.f
        minus = f.op(f"fneg {a[1]}", a[1].dtype, a[1].lanes)
        return f.fma(minus, b[1], f.binary("fmul", a[0], b[0])), f.fma(a[1], b[0], f.binary("fmul", a[0], b[1]))

    def scaled(self, number: Number, factor: float) -> Number:
        if factor == 1:
            return number
        each = literal(factor, self.dtype)
        return self.f.binary("fmul", number[0], each), self.f.binary("fmul", number[1], each)

    def conjugate(self, number: Number) -> Number:
        return number[0], self.f.op(f"fneg {number[1]}", number[1].dtype, number[1].lanes)

    def turned(self, a: Number, inverse: bool) -> Number:
        """``a`` times i for the inverse transform, else times -i."""
        f = self.f
        negative = f.op(f"fneg {a[1 if inverse else 0]}", a[0].dtype, a[0].lanes)
        return (negative, a[0]) if inverse else (a[1], negative)

    def butterfly(self, x: list[Number], inverse: bool) -> list[Number]:
        """The discrete Fourier transform of a few numbers: of 2, of 4, or of an odd number of them."""
        f = self.f
        if len(x) == 2:
            return [self.add(x[0], x[1]), self.sub(x[0], x[1])]
        if len(x) == 4:
            even, odd = self.add(x[0], x[2]), self.add(x[1], x[3])
            here, there = self.sub(x[0], x[2]), self.turned(self.sub(x[1], x[3]), inverse)
            return [self.add(even, odd), self.add(here, there), self.sub(even, odd),
                    self.sub(here, there)]  # fmt: skip
        half, dtype = len(x) // 2, self.dtype
        pairs = [(self.add(x[k], x[-k]), self.sub(x[k], x[-k])) for k in range(1, half + 1)]
        found = [reduce(self.add, (plus for plus, _ in pairs), x[0])] * len(x)
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
            turned = self.turned((across[0], across[1]), inverse)
            found[j], found[-j] = self.add((re, im), turned), self.sub((re, im), turned)
        return found
