"""Powers with a constant exponent that is a small multiple of 1/2: products and square roots.

A power of any exponent needs a logarithm and an exponential function of twice the precision. The exponents of programs
are mostly such numbers: 3 and -0.5, and those of their gradients, 2 and -1.5.

The result is that of `pow`, also for zeros, infinities and NaN, and where it is nearly too large or small for its type;
it differs by less than 5 units in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from core.plan.entries import Entry, Uniform

__all__ = ["power"]

LARGEST = 4
"""The largest exponent, and the smallest below zero."""

DTYPES = ("float32", "float64")
"""In 16-bit floats the rounding of each step would be too much."""


def power(of: Callable[..., Entry], x: Entry, exponent: Entry) -> Entry | None:
    """``x ** exponent``, of the shape of `x`, by a few steps; None if it needs `pow` itself.

    of: applies an elementwise op to values of one dtype: ``of("mul", x, y)``.
    """
    if not isinstance(exponent, Uniform) or x.dtype not in DTYPES or exponent.dtype != x.dtype:
        return None
    number = float(exponent.number)
    if number == 0:
        return Uniform(1.0, x.dtype, x.shape)
    if not abs(number) <= LARGEST or number * 2 % 1:
        return None
    whole, half = divmod(abs(number), 1)
    constant: Callable[[Any], Uniform] = lambda value: Uniform(value, x.dtype, x.shape)
    if half:  # the power of -0 is that of 0, and the power of -inf that of inf, but they have other square roots
        no_sign = of("add", x, constant(0.0))
        x = of("where", of("equal", x, constant(-math.inf)), constant(math.inf), no_sign)
    root = of("sqrt", x) if half else None
    if number < 0:
        x = of("div", constant(1.0), x)
        root = None if root is None else of("div", constant(1.0), root)
    if not whole:
        return root
    product = x
    for _ in range(int(whole) - 1):
        product = of("mul", product, x)
    return product if root is None else of("mul", product, root)
