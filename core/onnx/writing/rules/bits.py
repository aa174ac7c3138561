"""Operations on the bits of integers."""

from __future__ import annotations

import numpy as np

from core.onnx.writing.registry import writes
from core.onnx.writing.rules.rounding import whole_floor_div


def _bits(operator: str, logical: str):
    return lambda w, x, y: w.node(logical if x.dtype == "bool" else operator, x, y)


writes("bitwise_and")(_bits("BitwiseAnd", "And"))
writes("bitwise_or")(_bits("BitwiseOr", "Or"))
writes("bitwise_xor")(_bits("BitwiseXor", "Xor"))


@writes("bitwise_not")
def bitwise_not(w, x):
    return w.node("Not" if x.dtype == "bool" else "BitwiseNot", x)


def _power_of_two(w, y):
    """2 to the power of an int64 y from 0 to 63; the last is negative, with the same bits."""
    powers = [2**i for i in range(63)] + [-(2**63)]
    return w.gather(w.ints(powers), y)


def _counts(w, y):
    y = w.cast(y, "int64")
    return w.guarded(y, w.node("GreaterOrEqual", y, w.number(0, y)))


@writes("bitwise_left_shift")
def bitwise_left_shift(w, x, y):
    """A product in int64, whose low bits are those of the shift."""
    y = _counts(w, y)
    most = w.number(np.dtype(x.dtype).itemsize * 8 - 1, y)
    power = _power_of_two(w, w.node("Min", y, most))
    shifted = w.mul(w.cast(x, "int64"), power)
    return w.cast(w.where(w.node("Greater", y, most), w.number(0, shifted), shifted), x.dtype)


@writes("bitwise_right_shift")
def bitwise_right_shift(w, x, y):
    """Floor divisions in int64; a shift by 63 takes two."""
    y = _counts(w, y)
    y = w.node("Min", y, w.number(63, y))
    first = w.node("Min", y, w.number(62, y))
    rest = w.sub(y, first)
    half = whole_floor_div(w, w.cast(x, "int64"), _power_of_two(w, first))
    return w.cast(whole_floor_div(w, half, _power_of_two(w, rest)), x.dtype)
