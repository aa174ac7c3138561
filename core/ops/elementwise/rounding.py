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


def _rounded_type(x, *, straight_through):
    return floating(x)


def _straight_through_vjp(ct, out, x, *, straight_through):
    """The rounding functions are constant between jumps, so the gradient is 0; with `straight_through` it is ct.

    Straight-through estimator: Bengio et al. 2013.
    """
    return ct if straight_through else fill_zeros_like(x)


# Straight-through gradients differ from the gradients of the function, so their examples are not smooth.


@op(elementwise=True)
def floor(xp, x, *, straight_through: bool = False):
    """Largest whole number not above x: ``out <= x < out + 1``.

    The gradient is 0. With `straight_through` the op passes the cotangent unchanged (Bengio et al. 2013).
    """
    return xp.floor(x)


floor.infer(_rounded_type)
floor.vjp(_straight_through_vjp)
floor.example(lambda: [Example((A,), (np.floor(A),)), Example((A,), (np.floor(A),), THROUGH, smooth=False)])


@op(elementwise=True)
def ceil(xp, x, *, straight_through: bool = False):
    """Smallest whole number not below x: ``-floor(-x)``.

    The gradient is 0. With `straight_through` the op passes the cotangent unchanged (Bengio et al. 2013).
    """
    return xp.ceil(x)


ceil.infer(_rounded_type)
ceil.vjp(_straight_through_vjp)
ceil.example(lambda: [Example((A,), (np.ceil(A),)), Example((A,), (np.ceil(A),), THROUGH, smooth=False)])


@op(elementwise=True)
def round_(xp, x, *, straight_through: bool = False):
    """Nearest whole number: ``|out - x| <= 1 / 2``. Halves are rounded to the even number.

    The gradient is 0. With `straight_through` the op passes the cotangent unchanged (Bengio et al. 2013).
    """
    return xp.rint(x)


round_.infer(_rounded_type)
round_.vjp(_straight_through_vjp)
round_.example(lambda: [Example((A,), (np.rint(A),)), Example((A,), (np.rint(A),), THROUGH, smooth=False)])


@op(elementwise=True)
def trunc(xp, x, *, straight_through: bool = False):
    """x without its fractional part: ``sign(x) * floor(|x|)``.

    The gradient is 0. With `straight_through` the op passes the cotangent unchanged (Bengio et al. 2013).
    """
    return xp.trunc(x)


trunc.infer(_rounded_type)
trunc.vjp(_straight_through_vjp)
trunc.example(lambda: [Example((A,), (np.trunc(A),)), Example((A,), (np.trunc(A),), THROUGH, smooth=False)])


# --- remainders ------------------------------------------------------------------------------------------------


def _numbers(x: TensorType, y: TensorType) -> TensorType:
    if x.dtype == "bool":
        raise ProgramError(f"needs numbers, not {x}", "dtype_mismatch")
    return broadcast(x, y)


def _divisor(xp, y):
    """y, checked for integer zeros. A floating-point 0 is not checked: it gives NaN or inf.

    Raises ExecutionError (division_by_zero).
    """
    if y.dtype.kind in "iu" and bool(xp.any(y == 0)):
        raise ExecutionError("integer division by zero", "division_by_zero")
    return y


@op(elementwise=True)
def mod(xp, x, y):
    """Remainder with the sign of y: ``out = x - floor(x / y) * y``.

    The gradient of x is 1, and the gradient of y is ``-floor(x / y)``. An integer division by 0 is an error of the run
    (division_by_zero).
    """
    return xp.mod(x, _divisor(xp, y))


mod.infer(_numbers)
# floor_div and not floor(x / y): where x / y is rounded up to a whole number, floor(x / y) is too large by 1
mod.vjp(lambda ct, out, x, y: (ct, -(ct * floor_div(x, y))))
mod.example(lambda: [Example((A, B), (A - np.floor(A / B) * B,)), Example((M, N), (M - M // N * N,))])


@op(elementwise=True)
def fmod(xp, x, y):
    """Remainder with the sign of x: ``out = x - trunc(x / y) * y``.

    The gradient of x is 1, and the gradient of y is ``-trunc(x / y)``. An integer division by 0 is an error of the run
    (division_by_zero).
    """
    return xp.fmod(x, _divisor(xp, y))


fmod.infer(_numbers)
fmod.vjp(lambda ct, out, x, y: (ct, -(ct * round_((x - out) / y))))  # x - out is a multiple of y
fmod.example(lambda: [Example((A, B), (A - np.trunc(A / B) * B,)), Example((M, N), (np.fmod(M, N),))])


@op(elementwise=True)
def floor_div(xp, x, y):
    """Quotient rounded down: ``out = floor(x / y)``.

    The gradient is 0. An integer division by 0 is an error of the run (division_by_zero).
    """
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
    """Whether x is NaN: ``x != x``, as bool."""
    return xp.isnan(x)


isnan.infer(_test)
isnan.example(lambda: [Example((ODD,), (np.array([False, True, False, False]),))])


@op(elementwise=True, no_gradient=_BOOL)
def isinf(xp, x, *, positive: bool = True, negative: bool = True):
    """Whether x is positive or negative infinity: ``|x| == inf``, as bool.

    - `positive`, `negative`: whether an infinity of this sign counts.
    """
    if positive and negative:
        return xp.isinf(x)
    if not (positive or negative):
        return xp.not_equal(x, x) & xp.equal(x, x)
    return xp.equal(x, x.dtype.type(np.inf if positive else -np.inf))


isinf.infer(lambda x, *, positive, negative: _test(x))
isinf.example(
    lambda: [
        Example((ODD,), (np.array([False, False, True, True]),)),
        Example((ODD,), (np.array([False, False, True, False]),), {"negative": False}),
        Example((ODD,), (np.array([False, False, False, True]),), {"positive": False}),
        Example((ODD,), (np.zeros(4, bool),), {"positive": False, "negative": False}),
    ]
)


@op(elementwise=True, no_gradient=_BOOL)
def isfinite(xp, x):
    """Whether x is finite, so neither infinite nor NaN: ``|x| < inf``, as bool."""
    return xp.isfinite(x)


isfinite.infer(_test)
isfinite.example(lambda: [Example((ODD,), (np.array([True, False, False, False]),))])
