"""Ops that work element by element, with NumPy broadcasting. Both operands of a binary op have the same dtype."""

from __future__ import annotations

import math

import numpy as np

from core.errors import ProgramError
from core.ir import TensorType
from core.ops.types import broadcast
from core.registry import Dtype, Example, composite, lookup, op

__all__: list[str] = []


def _same(x: TensorType, **attrs: object) -> TensorType:
    return x


def _float(x: TensorType, **attrs: object) -> TensorType:
    """For functions that only make sense on real numbers."""
    if not x.is_float:
        raise ProgramError(f"needs a floating-point input, not {x}", "dtype_mismatch")
    return x


def _compare(x: TensorType, y: TensorType) -> TensorType:
    return TensorType(broadcast(x, y).shape, "bool")


def _logical(*types: TensorType) -> TensorType:
    for each in types:
        if each.dtype != "bool":
            raise ProgramError(f"needs bool inputs, not {each}", "dtype_mismatch")
    return broadcast(*types)


def _numbers(x: TensorType, y: TensorType) -> TensorType:
    if x.dtype == "bool":
        raise ProgramError(f"needs numbers, not {x}", "dtype_mismatch")
    return broadcast(x, y)


A = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
B = np.array([2.0, 0.25, -1.0])


# --- arithmetic on two operands --------------------------------------------------------------------------------


@op(elementwise=True)
def add(xp, x, y):
    """``out = x + y``. Shapes broadcast."""
    return xp.add(x, y)


add.infer(_numbers)
add.vjp(lambda ct, out, x, y: (ct, ct))
add.example(lambda: [Example((A, B), (A + B,)), Example((A, A[:, :1]), (A + A[:, :1],))])


@op(elementwise=True)
def sub(xp, x, y):
    """``out = x - y``. Shapes broadcast."""
    return xp.subtract(x, y)


sub.infer(_numbers)
sub.vjp(lambda ct, out, x, y: (ct, -ct))
sub.example(lambda: [Example((A, B), (A - B,))])


@op(elementwise=True)
def mul(xp, x, y):
    """``out = x * y``. Shapes broadcast."""
    return xp.multiply(x, y)


mul.infer(_numbers)
mul.vjp(lambda ct, out, x, y: (ct * y, ct * x))
mul.example(lambda: [Example((A, B), (A * B,))])


@op(elementwise=True)
def div(xp, x, y):
    """``out = x / y`` for floating-point operands. Shapes broadcast."""
    return xp.divide(x, y)


@div.infer
def div_infer(x, y):
    _float(x)
    return broadcast(x, y)


@div.vjp
def div_vjp(ct, out, x, y):
    # -x / y^2, not -out / y: the quotient was rounded
    share = ct / y
    return share, -(share * (x / y))


div.example(lambda: [Example((A, B), (A / B,))])


@op(elementwise=True)
def pow_(xp, x, y):
    """``out = x ** y`` for floating-point operands. Shapes broadcast.

    The gradient with respect to x is 0 where y is 0; with respect to y it is 0 where x is 0 and y is not negative.
    """
    return xp.power(x, y)


@pow_.infer
def pow_infer(x, y):
    _float(x)
    return broadcast(x, y)


@pow_.vjp
def pow_vjp(ct, out, x, y):
    zero, one = lookup("fill_zeros_like"), lookup("full_like")
    no_power = lookup("equal")(y, zero(y))
    lower = lookup("pow")(x, lookup("where")(no_power, one(y, value=1.0), y - 1.0))
    dx = ct * lookup("where")(no_power, zero(y), y) * lower
    at_zero = lookup("logical_and")(lookup("equal")(x, zero(x)), lookup("greater_equal")(y, zero(y)))
    logarithm = lookup("log")(lookup("where")(at_zero, one(x, value=1.0), x))
    return dx, ct * out * logarithm


pow_.example(
    lambda: [
        Example((np.abs(A), B), (np.abs(A) ** B,)),
        Example((np.array([0.0, 2.0, -2.0]), np.array([0.0, 0.0, 3.0])), (np.array([1.0, 1.0, -8.0]),)),
    ]
)


def _share_of_ties(x, y):
    """1/2 where x and y are equal, else 0."""
    return lookup("cast")(lookup("equal")(x, y), dtype=x.dtype) * 0.5


@op(elementwise=True)
def maximum(xp, x, y):
    """The larger of two values; NaN if either is NaN. Where they are equal, the gradient is split evenly."""
    return xp.maximum(x, y)


maximum.infer(_numbers)


@maximum.vjp
def maximum_vjp(ct, out, x, y):
    tie, above = _share_of_ties(x, y), lookup("cast")(lookup("greater_than")(x, y), dtype=x.dtype)
    share = above + tie
    return ct * share, ct * (1.0 - share)


maximum.example(lambda: [Example((A, B), (np.maximum(A, B),)), Example((B, B), (B,))])


@op(elementwise=True)
def minimum(xp, x, y):
    """The smaller of two values; NaN if either is NaN. Where they are equal, the gradient is split evenly."""
    return xp.minimum(x, y)


minimum.infer(_numbers)


@minimum.vjp
def minimum_vjp(ct, out, x, y):
    tie, below = _share_of_ties(x, y), lookup("cast")(lookup("less_than")(x, y), dtype=x.dtype)
    share = below + tie
    return ct * share, ct * (1.0 - share)


minimum.example(lambda: [Example((A, B), (np.minimum(A, B),))])


# --- one operand -----------------------------------------------------------------------------------------------


@op(elementwise=True)
def scale(xp, x, *, scale: float = 1.0, bias: float = 0.0):
    """``out = scale * x + bias`` with two constants."""
    kind = x.dtype.type  # keeps an integer array integer, and a float one its own precision
    product = x if scale == 1.0 else xp.multiply(x, kind(scale))
    return product if bias == 0.0 else xp.add(product, kind(bias))


@scale.infer
def scale_infer(x, *, scale, bias):
    if x.dtype == "bool":
        raise ProgramError(f"needs numbers, not {x}", "dtype_mismatch")
    if not x.is_float and not (float(scale).is_integer() and float(bias).is_integer()):
        raise ProgramError(f"scale {scale} and bias {bias} must be whole numbers for {x}", "bad_attr")
    return x


scale.vjp(lambda ct, out, x, *, scale, bias: ct if scale == 1.0 else ct * scale)
scale.example(lambda: [Example((A,), (3 * A - 1,), {"scale": 3.0, "bias": -1.0})])


@op(elementwise=True)
def increment(xp, x, *, step: float = 1.0):
    """``out = x + step``. Usually written over its input: a counter."""
    return xp.add(x, x.dtype.type(step))


@increment.infer
def increment_infer(x, *, step):
    return scale_infer(x, scale=1.0, bias=step)


increment.vjp(lambda ct, out, x, *, step: ct)
increment.example(lambda: [Example((A,), (A + 2,), {"step": 2.0})])


@op(elementwise=True)
def neg(xp, x):
    """``out = -x``."""
    return xp.negative(x)


@neg.infer
def neg_infer(x):
    return scale_infer(x, scale=-1.0, bias=0.0)


neg.vjp(lambda ct, out, x: -ct)
neg.example(lambda: [Example((A,), (-A,))])


@op(elementwise=True)
def abs_(xp, x):
    """``out = |x|``. The gradient at 0 is 0."""
    return xp.abs(x)


@abs_.infer
def abs_infer(x):
    return scale_infer(x, scale=1.0, bias=0.0)


abs_.vjp(lambda ct, out, x: ct * lookup("sign")(x))
abs_.example(lambda: [Example((A,), (np.abs(A),))])


@op(elementwise=True)
def sign(xp, x):
    """-1, 0 or 1. The gradient is zero everywhere."""
    return xp.sign(x)


@sign.infer
def sign_infer(x):
    return scale_infer(x, scale=1.0, bias=0.0)


sign.vjp(lambda ct, out, x: lookup("fill_zeros_like")(x))
sign.example(lambda: [Example((A,), (np.sign(A),))])


@op(elementwise=True)
def floor(xp, x):
    """The largest whole number not above x. The gradient is zero everywhere."""
    return xp.floor(x)


floor.infer(_float)
floor.vjp(lambda ct, out, x: lookup("fill_zeros_like")(x))
floor.example(lambda: [Example((A + 0.25,), (np.floor(A + 0.25),))])


@op(elementwise=True)
def exp(xp, x):
    """``out = e ** x``."""
    return xp.exp(x)


exp.infer(_float)
exp.vjp(lambda ct, out, x: ct * out)
exp.example(lambda: [Example((A,), (np.exp(A),))])


@op(elementwise=True)
def expm1(xp, x):
    """``out = e ** x - 1``, exact for small x."""
    return xp.expm1(x)


expm1.infer(_float)
expm1.vjp(lambda ct, out, x: ct * (out + 1.0))
expm1.example(lambda: [Example((A,), (np.expm1(A),))])


@op(elementwise=True)
def log(xp, x):
    """The natural logarithm. At 0 it is -inf and its gradient inf."""
    return xp.log(x)


log.infer(_float)
log.vjp(lambda ct, out, x: ct / x)
log.example(lambda: [Example((np.abs(A),), (np.log(np.abs(A)),))])


@op(elementwise=True)
def log1p(xp, x):
    """``out = log(1 + x)``, exact for small x."""
    return xp.log1p(x)


log1p.infer(_float)
log1p.vjp(lambda ct, out, x: ct / (x + 1.0))
log1p.example(lambda: [Example((np.abs(A),), (np.log1p(np.abs(A)),))])


@op(elementwise=True)
def sqrt(xp, x):
    """The square root. Its gradient at 0 is inf."""
    return xp.sqrt(x)


sqrt.infer(_float)
sqrt.vjp(lambda ct, out, x: ct * 0.5 / out)
sqrt.example(lambda: [Example((np.abs(A),), (np.sqrt(np.abs(A)),))])


@op(elementwise=True)
def rsqrt(xp, x):
    """``out = 1 / sqrt(x)``. At 0 it is inf."""
    return xp.divide(x.dtype.type(1), xp.sqrt(x))


rsqrt.infer(_float)
rsqrt.vjp(lambda ct, out, x: ct * -0.5 * out / x)
rsqrt.example(lambda: [Example((np.abs(A),), (1 / np.sqrt(np.abs(A)),))])


@op(elementwise=True)
def square(xp, x):
    """``out = x * x``."""
    return xp.multiply(x, x)


@square.infer
def square_infer(x):
    return scale_infer(x, scale=1.0, bias=0.0)


square.vjp(lambda ct, out, x: ct * 2.0 * x)
square.example(lambda: [Example((A,), (A * A,))])


@op(elementwise=True)
def sin(xp, x):
    """The sine; x in radians."""
    return xp.sin(x)


sin.infer(_float)
sin.vjp(lambda ct, out, x: ct * lookup("cos")(x))
sin.example(lambda: [Example((A,), (np.sin(A),))])


@op(elementwise=True)
def cos(xp, x):
    """The cosine; x in radians."""
    return xp.cos(x)


cos.infer(_float)
cos.vjp(lambda ct, out, x: -(ct * lookup("sin")(x)))
cos.example(lambda: [Example((A,), (np.cos(A),))])


@op(elementwise=True)
def tanh(xp, x):
    """The hyperbolic tangent."""
    return xp.tanh(x)


tanh.infer(_float)
tanh.vjp(lambda ct, out, x: ct * (1.0 - lookup("square")(out)))
tanh.example(lambda: [Example((A,), (np.tanh(A),))])


@op(elementwise=True)
def sigmoid(xp, x):
    """``out = 1 / (1 + exp(-x))``, without overflow at either end."""
    half = x.dtype.type(0.5)
    return xp.add(xp.multiply(xp.tanh(xp.multiply(x, half)), half), half)


sigmoid.infer(_float)
sigmoid.vjp(lambda ct, out, x: ct * out * (1.0 - out))
sigmoid.example(lambda: [Example((A,), (1 / (1 + np.exp(-A)),))])


@op(elementwise=True)
def erf(xp, x):
    """The error function, ``2 / sqrt(pi) * integral of exp(-t^2) from 0 to x``."""
    return _erf(xp, x)


def _erf(xp, x):
    if xp.__name__ == "cupy":
        from cupyx.scipy.special import erf as device_erf

        return device_erf(x)
    from scipy.special import erf as host_erf

    return host_erf(x).astype(x.dtype, copy=False)


erf.infer(_float)
erf.vjp(lambda ct, out, x: ct * lookup("exp")(-lookup("square")(x)) * (2.0 / math.sqrt(math.pi)))
erf.example(lambda: [Example((A,), (np.vectorize(math.erf)(A),))])


@op(elementwise=True)
def relu(xp, x):
    """``out = max(x, 0)``. The gradient at 0 is 0."""
    return xp.maximum(x, x.dtype.type(0))


relu.infer(_float)


@relu.vjp
def relu_vjp(ct, out, x):
    return ct * lookup("cast")(lookup("greater_than")(x, lookup("fill_zeros_like")(x)), dtype=x.dtype)


relu.example(lambda: [Example((A,), (np.maximum(A, 0),))])


@op(elementwise=True)
def clip(xp, x, *, min: float = -math.inf, max: float = math.inf):
    """x held between `min` and `max`. The gradient is 1 inside and on the bounds, 0 beyond."""
    kind = x.dtype.type
    return xp.minimum(xp.maximum(x, kind(min)), kind(max))


@clip.infer
def clip_infer(x, *, min, max):
    if not min <= max:
        raise ProgramError(f"min {min} is above max {max}", "bad_attr")
    return _float(x)


@clip.vjp
def clip_vjp(ct, out, x, *, min, max):
    return ct * lookup("cast")(lookup("equal")(out, x), dtype=x.dtype)


clip.example(lambda: [Example((A,), (np.clip(A, -1.0, 2.0),), {"min": -1.0, "max": 2.0})])


@op(elementwise=True)
def cast(xp, x, *, dtype: Dtype):
    """x converted to `dtype`. Between floating-point dtypes the gradient is cast back; an integer or bool ends it."""
    return x.astype(as_dtype(dtype))


def as_dtype(name: str) -> np.dtype:
    """The NumPy dtype of that name; bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


cast.infer(lambda x, *, dtype: TensorType(x.shape, dtype))
cast.vjp(lambda ct, out, x, *, dtype: lookup("cast")(ct, dtype=x.dtype) if x.type.is_float else None)
cast.example(lambda: [Example((A,), (A.astype("float32"),), {"dtype": "float32"})])


@op(elementwise=True)
def assign(xp, x):
    """``out = x``: another name for the same value."""
    return x


assign.infer(_same)
assign.vjp(lambda ct, out, x: ct)
assign.example(lambda: [Example((A,), (A,))])


@op(elementwise=True, no_gradient="it stops gradients by definition")
def stop_gradient(xp, x):
    """``out = x``, as a constant: no gradient flows back through it."""
    return x


stop_gradient.infer(_same)
stop_gradient.example(lambda: [Example((A,), (A,))])


# --- comparisons and logic -------------------------------------------------------------------------------------

_BOOL = "its result is bool"


@op(elementwise=True, no_gradient=_BOOL)
def equal(xp, x, y):
    """``x == y``, as bool."""
    return xp.equal(x, y)


equal.infer(_compare)
equal.example(lambda: [Example((A, A[:1]), (A[:1] == A,))])


@op(elementwise=True, no_gradient=_BOOL)
def not_equal(xp, x, y):
    """``x != y``, as bool."""
    return xp.not_equal(x, y)


not_equal.infer(_compare)
not_equal.example(lambda: [Example((A, A[:1]), (A[:1] != A,))])


@op(elementwise=True, no_gradient=_BOOL)
def less_than(xp, x, y):
    """``x < y``, as bool."""
    return xp.less(x, y)


less_than.infer(_compare)
less_than.example(lambda: [Example((A, B), (A < B,))])


@op(elementwise=True, no_gradient=_BOOL)
def less_equal(xp, x, y):
    """``x <= y``, as bool."""
    return xp.less_equal(x, y)


less_equal.infer(_compare)
less_equal.example(lambda: [Example((A, B), (A <= B,))])


@op(elementwise=True, no_gradient=_BOOL)
def greater_than(xp, x, y):
    """``x > y``, as bool."""
    return xp.greater(x, y)


greater_than.infer(_compare)
greater_than.example(lambda: [Example((A, B), (A > B,))])


@op(elementwise=True, no_gradient=_BOOL)
def greater_equal(xp, x, y):
    """``x >= y``, as bool."""
    return xp.greater_equal(x, y)


greater_equal.infer(_compare)
greater_equal.example(lambda: [Example((A, B), (A >= B,))])


@op(elementwise=True, no_gradient=_BOOL)
def logical_and(xp, x, y):
    """True where both are."""
    return xp.logical_and(x, y)


logical_and.infer(_logical)
logical_and.example(lambda: [Example((A > 0, B > 0), ((A > 0) & (B > 0),))])


@op(elementwise=True, no_gradient=_BOOL)
def logical_or(xp, x, y):
    """True where either is."""
    return xp.logical_or(x, y)


logical_or.infer(_logical)
logical_or.example(lambda: [Example((A > 0, B > 0), ((A > 0) | (B > 0),))])


@op(elementwise=True, no_gradient=_BOOL)
def logical_xor(xp, x, y):
    """True where just one is."""
    return xp.logical_xor(x, y)


logical_xor.infer(_logical)
logical_xor.example(lambda: [Example((A > 0, B > 0), ((A > 0) ^ (B > 0),))])


@op(elementwise=True, no_gradient=_BOOL)
def logical_not(xp, x):
    """True where x is not."""
    return xp.logical_not(x)


logical_not.infer(_logical)
logical_not.example(lambda: [Example((A > 0,), (A <= 0,))])


@op(elementwise=True)
def where(xp, condition, x, y):
    """x where `condition` (bool) holds, else y. Shapes broadcast.

    The gradient of the side not selected is 0 at that place. A NaN or infinity *inside the computation* of the side
    not selected still spoils its gradient (0 times inf): mask that computation's input too.
    """
    return xp.where(condition, x, y)


@where.infer
def where_infer(condition, x, y):
    if condition.dtype != "bool":
        raise ProgramError(f"the condition must be bool, not {condition}", "dtype_mismatch")
    both = broadcast(x, y)
    return TensorType(broadcast(TensorType(condition.shape, both.dtype), both).shape, both.dtype)


@where.vjp
def where_vjp(ct, out, condition, x, y):
    zero = lookup("fill_zeros_like")(ct)
    choose = lookup("where")
    return None, choose(condition, ct, zero), choose(condition, zero, ct)


where.example(lambda: [Example((A > 0, A, B), (np.where(A > 0, A, B),))])


# --- composites ------------------------------------------------------------------------------------------------


@composite
def leaky_relu(x, *, alpha: float = 0.02):
    """``out = x`` where x > 0, else ``alpha * x``. The gradient at 0 is `alpha`."""
    positive = lookup("greater_than")(x, lookup("fill_zeros_like")(x))
    return lookup("where")(positive, x, x * alpha)


leaky_relu.example(lambda: [Example((A,), (np.where(A > 0, A, 0.1 * A),), {"alpha": 0.1})])


@composite
def gelu(x, *, approximate: bool = False):
    """``out = x * P(N <= x)`` for a standard normal N; `approximate` takes the tanh form (Hendrycks, Gimpel 2016)."""
    if approximate:
        inner = (x + x * lookup("square")(x) * 0.044715) * math.sqrt(2.0 / math.pi)
        return x * 0.5 * (1.0 + lookup("tanh")(inner))
    return x * 0.5 * (1.0 + lookup("erf")(x * math.sqrt(0.5)))


gelu.example(
    lambda: [
        Example((A,), (A * 0.5 * (1 + np.vectorize(math.erf)(A / math.sqrt(2))),)),
        Example(
            (A,),
            (A * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (A + 0.044715 * A**3))),),
            {"approximate": True},
        ),
    ]
)


@composite
def silu(x):
    """``out = x * sigmoid(x)``, also called swish."""
    return x * lookup("sigmoid")(x)


silu.example(lambda: [Example((A,), (A / (1 + np.exp(-A)),))])


@op(elementwise=True)
def softplus(xp, x):
    """``out = log(1 + exp(x))``, without overflow."""
    return xp.logaddexp(x, x.dtype.type(0))


softplus.infer(_float)
softplus.vjp(lambda ct, out, x: ct * lookup("sigmoid")(x))
softplus.example(lambda: [Example((A,), (np.log1p(np.exp(A)),))])
