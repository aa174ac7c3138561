"""Mathematical functions and common activations, element by element."""

from __future__ import annotations

import math

import numpy as np

from core.ir.attr_values import Extended
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.on_cuda import scipy_function
from core.ops.common.ranges import Nonzero
from core.ops.common.types import floating, working_dtype
from core.ops.elementwise.logic import equal, greater_than, not_equal, where, where_or_zero
from core.ops.shape.creation import fill_zeros_like, full_like

__all__: list[str] = []

A = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])


@op(elementwise=True)
def exp(xp, x):
    """Exponential function: ``out = e ** x``."""
    return xp.exp(x)


exp.infer(floating)
exp.vjp(lambda ct, out, x: ct * out)
exp.example(lambda: [Example((A,), (np.exp(A),))])


@op(elementwise=True)
def expm1(xp, x):
    """Exponential minus 1: ``out = e ** x - 1``. It stays accurate for small x."""
    return xp.expm1(x)


expm1.infer(floating)
# exp(x) and not out + 1, which cancels for large negative x
expm1.vjp(lambda ct, out, x: ct * exp(x))
expm1.example(lambda: [Example((A,), (np.expm1(A),))])


@op(elementwise=True)
def log(xp, x):
    """Natural logarithm: ``exp(out) = x``. At 0 the result is -inf and the gradient inf. Below 0 the result is NaN."""
    return xp.log(x)


log.infer(floating)
log.vjp(lambda ct, out, x: ct / x)
log.example(lambda: [Example((np.abs(A),), (np.log(np.abs(A)),))])


@op(elementwise=True)
def log1p(xp, x):
    """Logarithm of 1 plus x: ``out = log(1 + x)``. It stays accurate for small x."""
    return xp.log1p(x)


log1p.infer(floating)
log1p.vjp(lambda ct, out, x: ct / (x + 1.0))
log1p.example(lambda: [Example((np.abs(A),), (np.log1p(np.abs(A)),))])


@op(elementwise=True)
def sqrt(xp, x):
    """Square root: ``out * out = x``. The gradient at 0 is inf. Below 0 the result is NaN."""
    return xp.sqrt(x)


sqrt.infer(floating)
sqrt.vjp(lambda ct, out, x: ct * 0.5 / out)
sqrt.example(lambda: [Example((np.abs(A),), (np.sqrt(np.abs(A)),))])


def flat_root(x):
    """The square root of the symbol x, with gradient 0 at 0."""
    zero, one = (x.builder.constant(number, x.dtype) for number in (0.0, 1.0))
    positive = not_equal(x, zero)  # true for NaN as well, so NaN stays NaN
    return where(positive, sqrt(where(positive, x, one)), zero)


@op(elementwise=True)
def rsqrt(xp, x):
    """Reciprocal of the square root: ``out = 1 / sqrt(x)``. At 0 the result is inf."""
    return xp.divide(x.dtype.type(1), xp.sqrt(x))


rsqrt.infer(floating)
rsqrt.vjp(lambda ct, out, x: ct * -0.5 * out / x)
rsqrt.example(lambda: [Example((np.abs(A),), (1 / np.sqrt(np.abs(A)),))])


@op(elementwise=True)
def square(xp, x):
    """Square: ``out = x * x``."""
    return xp.multiply(x, x)


@square.infer
def square_infer(x):
    if x.dtype == "bool":
        raise ProgramError(f"needs numbers, not {x}", "dtype_mismatch")
    return x


square.vjp(lambda ct, out, x: ct * (2.0 * x))
square.example(lambda: [Example((A,), (A * A,))])


@op(elementwise=True)
def sin(xp, x):
    """Sine: ``out = sin(x)``, with x in radians."""
    return xp.sin(x)


sin.infer(floating)
sin.vjp(lambda ct, out, x: ct * cos(x))
sin.example(lambda: [Example((A,), (np.sin(A),))])


@op(elementwise=True)
def cos(xp, x):
    """Cosine: ``out = cos(x)``, with x in radians."""
    return xp.cos(x)


cos.infer(floating)
cos.vjp(lambda ct, out, x: -(ct * sin(x)))
cos.example(lambda: [Example((A,), (np.cos(A),))])


@op(elementwise=True)
def tanh(xp, x):
    """Hyperbolic tangent: ``(exp(x) - exp(-x)) / (exp(x) + exp(-x))``."""
    return xp.tanh(x)


tanh.infer(floating)
tanh.vjp(lambda ct, out, x: ct * (1.0 - square(out)))
tanh.example(lambda: [Example((A,), (np.tanh(A),))])


@op(elementwise=True)
def sigmoid(xp, x):
    """Logistic sigmoid: ``out = 1 / (1 + exp(-x))``. It stays accurate for large positive and negative x."""
    # A form with tanh would reach 0 at a much smaller |x|.
    wide = x.astype(working_dtype(x), copy=False)
    one = wide.dtype.type(1)
    out = xp.asarray(xp.negative(wide))
    xp.exp(out, out=out)
    xp.add(one, out, out=out)
    xp.divide(one, out, out=out)
    if not out.all():  # exp(-x) has overflown: the result is denormal, and exp(x) to all its digits
        out = xp.where(out == 0, xp.exp(wide), out)
    return out.astype(x.dtype, copy=False)


sigmoid.infer(floating)
sigmoid.vjp(lambda ct, out, x: ct * (out * (1.0 - out)))
sigmoid.example(lambda: [Example((A,), (1 / (1 + np.exp(-A)),))])


@op(elementwise=True)
def erf(xp, x):
    """Error function: ``2 / sqrt(pi) * integral of exp(-t^2) from 0 to x``."""
    return scipy_function(xp, "special", "erf")(x).astype(x.dtype, copy=False)


erf.infer(floating)
erf.vjp(lambda ct, out, x: ct * exp(-square(x)) * (2.0 / math.sqrt(math.pi)))
erf.example(lambda: [Example((A,), (np.vectorize(math.erf)(A),))])


@op(elementwise=True)
def relu(xp, x):
    """Rectified linear unit: ``out = max(x, 0)``. The gradient at 0 is 0."""
    return xp.maximum(x, x.dtype.type(0))


relu.infer(floating)


@relu.vjp
def relu_vjp(ct, out, x):
    return where_or_zero(greater_than(x, fill_zeros_like(x)), ct)


relu.example(lambda: [Example((A,), (np.maximum(A, 0),))])


@op(elementwise=True)
def clip(xp, x, *, min: Extended = -math.inf, max: Extended = math.inf):
    """x clamped to [min, max]: ``out = min(max(x, min), max)``.

    The gradient is 1 inside the interval and on its bounds, and 0 outside.
    """
    kind = x.dtype.type
    return xp.minimum(xp.maximum(x, kind(min)), kind(max))


@clip.infer
def clip_infer(x, *, min, max):
    if not min <= max:
        raise ProgramError(f"min {min} is above max {max}", "bad_attr")
    return floating(x)


@clip.vjp
def clip_vjp(ct, out, x, *, min, max):
    return where_or_zero(equal(out, x), ct)


clip.example(lambda: [Example((A,), (np.clip(A, -1.0, 2.0),), {"min": -1.0, "max": 2.0})])


@op(elementwise=True)
def softplus(xp, x, *, beta: Nonzero = 1.0, threshold: float | None = None):
    """Smooth approximation of ReLU (Dugas et al. 2001): ``out = log(1 + exp(beta * x)) / beta``, without overflow.

    - `threshold`: where ``beta * x`` exceeds it, out is x and the gradient is 1. With null, the formula applies
      everywhere; it does not overflow, so a threshold is needed only for compatibility with other frameworks.
    """
    wide = x.astype(working_dtype(x), copy=False)
    kind = wide.dtype.type
    scaled = wide if beta == 1.0 else xp.multiply(wide, kind(beta))
    # softplus = its asymptote + a bounded rest. The asymptote is written without beta * x, which might overflow.
    asymptote = (xp.maximum if beta > 0 else xp.minimum)(wide, kind(0))
    soft = asymptote + xp.log1p(xp.exp(-xp.abs(scaled))) / kind(beta)
    return (soft if threshold is None else xp.where(scaled > kind(threshold), wide, soft)).astype(x.dtype, copy=False)


@softplus.infer
def softplus_infer(x, *, beta, threshold):
    return floating(x)


@softplus.vjp
def softplus_vjp(ct, out, x, *, beta, threshold):
    scaled = x if beta == 1.0 else x * beta
    dx = ct * sigmoid(scaled)
    if threshold is None:
        return dx
    linear = greater_than(scaled, full_like(scaled, value=threshold))
    return where(linear, ct, dx)


softplus.example(
    lambda: [
        Example((A,), (np.log1p(np.exp(A)),)),
        Example((A,), (np.log1p(np.exp(2 * A)) / 2,), {"beta": 2.0}),
        Example((A,), (np.where(A > 1.75, A, np.log1p(np.exp(2 * A)) / 2),), {"beta": 2.0, "threshold": 3.5}),
    ]
)


@composite
def leaky_relu(x, *, alpha: float = 0.02):
    """ReLU with a slope below 0: ``out = x`` where x > 0, else ``alpha * x``. The gradient at 0 is `alpha`."""
    positive = greater_than(x, fill_zeros_like(x))
    return where(positive, x, x * alpha)


SOME = (A, A[:0], A[0, 1])
leaky_relu.example(lambda: [Example((x,), (np.where(x > 0, x, 0.1 * x),), {"alpha": 0.1}) for x in SOME])
