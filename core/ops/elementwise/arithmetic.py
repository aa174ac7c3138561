"""Arithmetic, element by element, with NumPy broadcasting. Both operands must have the same dtype.

Fluid's `axis` attribute is handled by separate ops (see `ALIGNED`), so the ops here have two operands and no attribute.
"""

from __future__ import annotations

import numpy as np
from ml_dtypes import finfo

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Dtype, Example, op
from core.ir.slot_roles import Divisor, Factor, Term
from core.ops.common.types import as_dtype, broadcast, floating, same, working_dtype
from core.ops.elementwise.logic import (
    equal,
    greater_equal,
    greater_than,
    less_than,
    logical_and,
    logical_not,
    not_equal,
    where,
    where_or_zero,
)
from core.ops.elementwise.math import clip, log
from core.ops.elementwise.rounding import isfinite
from core.ops.shape.creation import check_fits, fill_zeros_like, full_like

__all__: list[str] = []

A = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
B = np.array([2.0, 0.25, -1.0])


def _numbers(x: TensorType, y: TensorType) -> TensorType:
    if x.dtype == "bool":
        raise ProgramError(f"needs numbers, not {x}", "dtype_mismatch")
    return broadcast(x, y)


# --- two operands ----------------------------------------------------------------------------------------------


@op(elementwise=True)
def add(xp, x: Term, y: Term):
    """Sum of two arrays: ``out = x + y``. Shapes broadcast."""
    return xp.add(x, y)


add.infer(_numbers)
add.vjp(lambda ct, out, x, y: (ct, ct))
add.example(lambda: [Example((A, B), (A + B,)), Example((A, A[:, :1]), (A + A[:, :1],))])


@op(elementwise=True)
def sub(xp, x: Term, y: Term):
    """Difference of two arrays: ``out = x - y``. Shapes broadcast."""
    return xp.subtract(x, y)


sub.infer(_numbers)
sub.vjp(lambda ct, out, x, y: (ct, -ct))
sub.example(lambda: [Example((A, B), (A - B,))])


@op(elementwise=True)
def mul(xp, x: Factor, y: Factor):
    """Elementwise product of two arrays: ``out = x * y``. Shapes broadcast."""
    return xp.multiply(x, y)


mul.infer(_numbers)
mul.vjp(lambda ct, out, x, y: (ct * y, ct * x))
mul.example(lambda: [Example((A, B), (A * B,))])


@op(elementwise=True)
def div(xp, x: Factor, y: Divisor):
    """Quotient of two floating-point arrays: ``out = x / y``. Shapes broadcast."""
    return xp.divide(x, y)


@div.infer
def div_infer(x, y):
    floating(x)
    return broadcast(x, y)


@div.vjp
def div_vjp(ct, out, x, y):
    # -x / y^2 and not -out / y, because out is already rounded
    share = ct / y
    # Where x is 0, an infinite share would make the product NaN. The share is clamped there: the derivative of the
    # product by x stays large.
    largest = float(finfo(as_dtype(x.dtype)).max)
    finite = where(equal(x, fill_zeros_like(x)), clip(share, min=-largest, max=largest), share)
    return share, -(finite * (x / y))


div.example(lambda: [Example((A, np.abs(B)), (A / np.abs(B),)), Example((A, B), (A / B,))])


ROOTED = 0.15
"""Where |y| is smaller, ``x ** (y - 1)`` of a denormal x may exceed the largest number of its dtype."""


@op(elementwise=True)
def pow_(xp, x, y):
    """Power of two floating-point arrays: ``out = x ** y``. Shapes broadcast.

    The gradient of x is 0 where y is 0. The gradient of y is 0 where x is 0 and y is not negative.
    """
    return xp.power(x, y)


@pow_.infer
def pow_infer(x, y):
    floating(x)
    return broadcast(x, y)


@pow_.vjp
def pow_vjp(ct, out, x, y):
    # Where y is 0, so is ct y x^(y-1), but its derivative by y is ct / x: only infinite factors are masked.
    least = float(finfo(as_dtype(x.dtype)).smallest_normal)
    normal = greater_equal(abs_(x), full_like(x, value=least))
    masked = logical_and(equal(y, fill_zeros_like(y)), logical_not(logical_and(normal, isfinite(ct))))
    # Of a denormal x, x^(y-1) may overflow and y x^(y-1) may not: the factor is then multiplied by its root twice.
    twice = logical_and(less_than(abs_(y), full_like(y, value=ROOTED)), logical_not(normal))
    exponent = y - 1.0
    one = full_like(y, value=1.0)
    lower = pow_(x, where(masked, one, where(twice, exponent * 0.5, exponent)))
    dx = where_or_zero(logical_not(masked), ct * y * lower * where(twice, lower, one))
    at_zero = logical_and(equal(x, fill_zeros_like(x)), greater_equal(y, fill_zeros_like(y)))
    logarithm = log(where(at_zero, full_like(x, value=1.0), x))
    return dx, where_or_zero(logical_not(at_zero), ct * out * logarithm)


pow_.example(
    lambda: [
        Example((np.abs(A), B), (np.abs(A) ** B,)),
        Example((np.array([0.0, 2.0, -2.0]), np.array([0.0, 0.0, 3.0])), (np.array([1.0, 1.0, -8.0]),), smooth=False),
    ]
)


def _share_cotangent(ct, x_wins, y_wins):
    """The cotangents of x and y: the selected operand gets ct. Where neither is selected (a tie or a NaN), each gets
    half.
    """
    half = ct * 0.5
    zero = ct.builder.constant(0.0, ct.dtype)
    return where(x_wins, ct, where(y_wins, zero, half)), where(y_wins, ct, where(x_wins, zero, half))


@op(elementwise=True)
def maximum(xp, x, y):
    """Larger of two values: ``out = max(x, y)``. NaN if either is NaN. Shapes broadcast.

    Where x equals y, or either is NaN, each operand gets half of the gradient.
    """
    return xp.maximum(x, y)


maximum.infer(_numbers)


@maximum.vjp
def maximum_vjp(ct, out, x, y):
    return _share_cotangent(ct, greater_than(x, y), less_than(x, y))


maximum.example(lambda: [Example((A, B), (np.maximum(A, B),)), Example((B, B), (B,), smooth=False)])


@op(elementwise=True)
def minimum(xp, x, y):
    """Smaller of two values: ``out = min(x, y)``. NaN if either is NaN. Shapes broadcast.

    Where x equals y, or either is NaN, each operand gets half of the gradient.
    """
    return xp.minimum(x, y)


minimum.infer(_numbers)


@minimum.vjp
def minimum_vjp(ct, out, x, y):
    return _share_cotangent(ct, less_than(x, y), greater_than(x, y))


minimum.example(lambda: [Example((A, B), (np.minimum(A, B),))])


# --- one operand -----------------------------------------------------------------------------------------------


@op(elementwise=True)
def scale(xp, x, *, scale: float = 1.0, bias: float = 0.0):
    """Linear function with two constants: ``out = scale * x + bias``.

    For an integer x, `scale` and `bias` must be whole numbers.
    """
    kind = working_dtype(x).type  # keeps the dtype of integers and of floats
    out = x if scale == 1.0 else xp.multiply(x.astype(kind, copy=False), kind(scale))
    out = out if bias == 0.0 else xp.add(out.astype(kind, copy=False), kind(bias))
    return out.astype(x.dtype, copy=False)


@scale.infer
def scale_infer(x, *, scale, bias):
    if x.dtype == "bool":
        raise ProgramError(f"needs numbers, not {x}", "dtype_mismatch")
    if not x.is_float and not (float(scale).is_integer() and float(bias).is_integer()):
        raise ProgramError(f"scale {scale} and bias {bias} must be whole numbers for {x}", "bad_attr")
    for number in (scale, bias):
        check_fits(number, x.dtype)
    return x


scale.vjp(lambda ct, out, x, *, scale, bias: ct if scale == 1.0 else ct * scale)
scale.example(lambda: [Example((A,), (3 * A - 1,), {"scale": 3.0, "bias": -1.0})])


@op(elementwise=True)
def increment(xp, x, *, step: float = 1.0):
    """x plus a constant: ``out = x + step``. A counter uses it with the same variable as input and output."""
    return xp.add(x, x.dtype.type(step))


@increment.infer
def increment_infer(x, *, step):
    return scale_infer(x, scale=1.0, bias=step)


increment.vjp(lambda ct, out, x, *, step: ct)
increment.example(lambda: [Example((A,), (A + 2,), {"step": 2.0})])


@op(elementwise=True)
def neg(xp, x):
    """Negation: ``out = -x``."""
    return xp.negative(x)


@neg.infer
def neg_infer(x):
    if x.dtype == "uint8":
        raise ProgramError(f"neg needs a signed dtype, not {x}: cast it", "dtype_mismatch")
    return scale_infer(x, scale=-1.0, bias=0.0)


neg.vjp(lambda ct, out, x: -ct)
neg.example(lambda: [Example((A,), (-A,))])


@op(elementwise=True)
def abs_(xp, x):
    """Absolute value: ``out = |x|``. The gradient at 0 is 0."""
    return xp.abs(x)


@abs_.infer
def abs_infer(x):
    return scale_infer(x, scale=1.0, bias=0.0)


@abs_.vjp
def abs_vjp(ct, out, x):
    return where_or_zero(not_equal(x, fill_zeros_like(x)), ct * sign(x))


abs_.example(lambda: [Example((A,), (np.abs(A),))])


@op(elementwise=True)
def sign(xp, x, *, straight_through: bool = False):
    """Sign of x, as -1, 0 or 1: ``x / |x|``, and 0 at 0.

    The gradient is 0. With `straight_through` the op passes the cotangent unchanged (Bengio et al. 2013).
    """
    return xp.sign(x)


@sign.infer
def sign_infer(x, *, straight_through):
    return scale_infer(x, scale=1.0, bias=0.0)


@sign.vjp
def sign_vjp(ct, out, x, *, straight_through):
    return ct if straight_through else fill_zeros_like(x)


sign.example(
    lambda: [Example((A,), (np.sign(A),)), Example((A,), (np.sign(A),), {"straight_through": True}, smooth=False)]
)


@op(elementwise=True)
def cast(xp, x, *, dtype: Dtype):
    """x converted to `dtype`.

    A float is rounded towards 0 to an integer. A float outside the range of the integer dtype, including inf, becomes
    the nearest integer of that dtype; NaN becomes 0.
    Between two floating-point dtypes the gradient is cast back. No gradient flows through an integer or bool.
    """
    kind = as_dtype(dtype)
    if kind.kind not in "iu" or x.dtype.kind not in "fV":
        return x.astype(kind)
    x = x.astype(working_dtype(x))
    limits = np.iinfo(kind)
    lowest, limit = float(limits.min), float(limits.max + 1)
    in_range = xp.where((x > lowest) & (x < limit), x, 0).astype(kind)
    return xp.where(x >= limit, kind.type(limits.max), xp.where(x <= lowest, kind.type(limits.min), in_range))


cast.infer(lambda x, *, dtype: TensorType(x.shape, dtype))
cast.vjp(lambda ct, out, x, *, dtype: cast(ct, dtype=x.dtype) if x.type.is_float else None)
cast.example(
    lambda: [
        Example((A,), (A.astype("float32"),), {"dtype": "float32"}, smooth=False),
        *(Example((x,), (x,), {"dtype": "float64"}) for x in (A, A[:0], A[0, 0])),
    ]
)


@op(elementwise=True, stacks=True)
def assign(xp, x):
    """Copy of x under another name: ``out = x``."""
    return x


assign.infer(same)
assign.vjp(lambda ct, out, x: ct)
assign.example(lambda: [Example((A,), (A,))])


@op(elementwise=True, no_gradient="it blocks gradients by definition")
def stop_gradient(xp, x):
    """Identity that blocks the gradient: ``out = x``, treated as a constant in the backward pass."""
    return x


stop_gradient.infer(same)
stop_gradient.example(lambda: [Example((A,), (A,))])
