"""Rounding, remainders, and tests for special values, element by element."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, op
from core.ops.common.types import broadcast, floating
from core.ops.shape.creation import fill_zeros_like

__all__: list[str] = []

A = np.array([[1.3, -2.4, 3.6], [0.6, 4.4, -1.7]])
B = np.array([2.1, 0.7, -1.1])
M = np.array([[5, -3, 7], [0, 12, -8]])
N = np.array([3, 2, 5])
THROUGH = {"straight_through": True}


def _steps(x, *, straight_through):
    return floating(x)


def _through(ct, out, x, *, straight_through):
    """Constant between the jumps, so zero; or, on request, as if nothing had been rounded (Bengio et al. 2013)."""
    return ct if straight_through else fill_zeros_like(x)


# Straight-through gradients are not those of the function, so their examples are not smooth.


@op(elementwise=True)
def floor(xp, x, *, straight_through: bool = False):
    """``out <= x < out + 1``, the largest whole number not above x. The gradient is 0, or with `straight_through` as if
    nothing happened.
    """
    return xp.floor(x)


floor.infer(_steps)
floor.vjp(_through)
floor.example(lambda: [Example((A,), (np.floor(A),)), Example((A,), (np.floor(A),), THROUGH, smooth=False)])


@op(elementwise=True)
def ceil(xp, x, *, straight_through: bool = False):
    """``-floor(-x)``: the smallest whole number not below x. The gradient is 0, or with `straight_through` as if
    nothing happened.
    """
    return xp.ceil(x)


ceil.infer(_steps)
ceil.vjp(_through)
ceil.example(lambda: [Example((A,), (np.ceil(A),)), Example((A,), (np.ceil(A),), THROUGH, smooth=False)])


@op(elementwise=True)
def round_(xp, x, *, straight_through: bool = False):
    """``|out - x| <= 1 / 2``, the nearest whole number, halves even. The gradient is 0, or with `straight_through` as
    if nothing happened.
    """
    return xp.rint(x)


round_.infer(_steps)
round_.vjp(_through)
round_.example(lambda: [Example((A,), (np.rint(A),)), Example((A,), (np.rint(A),), THROUGH, smooth=False)])


@op(elementwise=True)
def trunc(xp, x, *, straight_through: bool = False):
    """``sign(x) * floor(|x|)``, x without its fraction. The gradient is 0, or with `straight_through` as if nothing
    happened.
    """
    return xp.trunc(x)


trunc.infer(_steps)
trunc.vjp(_through)
trunc.example(lambda: [Example((A,), (np.trunc(A),)), Example((A,), (np.trunc(A),), THROUGH, smooth=False)])


# --- remainders ------------------------------------------------------------------------------------------------


def _numbers(x: TensorType, y: TensorType) -> TensorType:
    if x.dtype == "bool":
        raise ProgramError(f"needs numbers, not {x}", "dtype_mismatch")
    return broadcast(x, y)


def _divisor(xp, y):
    """Raises ExecutionError (division_by_zero) for an integer zero; a real one gives NaN or inf, as everywhere."""
    if y.dtype.kind in "iu" and bool(xp.any(y == 0)):
        raise ExecutionError("an integer is divided by zero", "division_by_zero")
    return y


@op(elementwise=True)
def mod(xp, x, y):
    """``out = x - floor(x / y) * y``: the remainder with the sign of y. It moves by 1 with x, -floor(x / y) with y."""
    return xp.mod(x, _divisor(xp, y))


mod.infer(_numbers)
# not floor(x / y): where x / y rounds up to a whole number, the remainder is just below y, and so counts one less
mod.vjp(lambda ct, out, x, y: (ct, -(ct * floor_div(x, y))))
mod.example(lambda: [Example((A, B), (A - np.floor(A / B) * B,)), Example((M, N), (M - M // N * N,))])


@op(elementwise=True)
def fmod(xp, x, y):
    """``out = x - trunc(x / y) * y``: the remainder with the sign of x. It moves by 1 with x, -trunc(x / y) with y."""
    return xp.fmod(x, _divisor(xp, y))


fmod.infer(_numbers)
fmod.vjp(lambda ct, out, x, y: (ct, -(ct * round_((x - out) / y))))  # x - out is a multiple of y
fmod.example(lambda: [Example((A, B), (A - np.trunc(A / B) * B,)), Example((M, N), (np.fmod(M, N),))])


@op(elementwise=True)
def floor_div(xp, x, y):
    """``out = floor(x / y)``. The gradient is 0."""
    return xp.floor_divide(x, _divisor(xp, y))


floor_div.infer(_numbers)
floor_div.vjp(lambda ct, out, x, y: (fill_zeros_like(x), fill_zeros_like(y)))
floor_div.example(lambda: [Example((A, B), (np.floor(A / B),)), Example((M, N), (M // N,))])


# --- tests -----------------------------------------------------------------------------------------------------

_BOOL = "its result is bool"
ODD = np.array([1.0, np.nan, np.inf, -np.inf])


def _test(x: TensorType) -> TensorType:
    return TensorType(floating(x).shape, "bool")


@op(elementwise=True, no_gradient=_BOOL)
def isnan(xp, x):
    """``x != x``: true where x is not a number."""
    return xp.isnan(x)


isnan.infer(_test)
isnan.example(lambda: [Example((ODD,), (np.array([False, True, False, False]),))])


@op(elementwise=True, no_gradient=_BOOL)
def isinf(xp, x):
    """``|x| == inf``: true where x is infinite, of either sign."""
    return xp.isinf(x)


isinf.infer(_test)
isinf.example(lambda: [Example((ODD,), (np.array([False, False, True, True]),))])


@op(elementwise=True, no_gradient=_BOOL)
def isfinite(xp, x):
    """``|x| < inf``: true where x is neither infinite nor NaN."""
    return xp.isfinite(x)


isfinite.infer(_test)
isfinite.example(lambda: [Example((ODD,), (np.array([True, False, False, False]),))])
