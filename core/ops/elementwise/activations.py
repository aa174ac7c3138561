"""Activation functions, element by element. Unless an op says otherwise, its gradient at a kink is 0."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ir.slot_roles import Slope
from core.ops.common.ranges import Count, Nonzero, NotNegative
from core.ops.common.types import axis_of, matches
from core.ops.elementwise.arithmetic import abs_, cast
from core.ops.elementwise.logic import equal, greater_equal, greater_than, less_equal, less_than, where
from core.ops.elementwise.math import clip, expm1, sigmoid, softplus, square, tanh
from core.ops.elementwise.special import erfc
from core.ops.nn.softmax_loss import softmax
from core.ops.reduction.sums import argmax, reduce_max
from core.ops.shape.agreeing import agreed
from core.ops.shape.concat_split import split
from core.ops.shape.creation import fill_zeros_like, full_like
from core.ops.shape.reshape import divided, reshape, unsqueeze

__all__: list[str] = []

A = np.array([[1.0, -2.0, 3.0], [0.7, 8.0, -1.5]])
E = np.exp(A)
EMPTY, ONE = A[:0], A[0, 1]

SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def _cases(f, **attrs):
    """Examples of an op: on a matrix, on an empty matrix and on a 0-d array."""
    return lambda: [Example((x,), (f(x),), attrs) for x in (A, EMPTY, ONE)]


def _zero(x):
    return fill_zeros_like(x)


def _positive(x):
    return greater_than(x, _zero(x))


def _at_most(x, bound):
    return less_equal(x, full_like(x, value=bound))


def _clamped(x, low, high):
    """x clamped to [low, high]. The gradient is 0 on both bounds and outside them. NaN stays NaN."""
    at_high = greater_equal(x, full_like(x, value=high))
    return where(_at_most(x, low), full_like(x, value=low), where(at_high, full_like(x, value=high), x))


def _negative_part(x):
    """``min(x, 0)``. Keeps large x out of the exponential, so that neither out nor the gradient overflows."""
    return where(_positive(x), _zero(x), x)


@composite
def relu6(x):
    """ReLU capped at 6: ``out = min(max(x, 0), 6)``. The gradient at 0 and at 6 is 0."""
    return _clamped(x, 0.0, 6.0)


relu6.example(_cases(lambda x: np.clip(x, 0, 6)))


@composite
def elu(x, *, alpha: float = 1.0):
    """Exponential linear unit (Clevert et al. 2016): ``out = x`` where x > 0, else ``alpha * (exp(x) - 1)``.

    The gradient at 0 is `alpha`.
    """
    return where(_positive(x), x, expm1(_negative_part(x)) * alpha)


elu.example(_cases(lambda x: np.where(x > 0, x, 0.5 * np.expm1(np.minimum(x, 0))), alpha=0.5))


@composite
def selu(x):
    """Scaled exponential linear unit: ``out = scale * elu(x, alpha)`` with the constants of Klambauer et al. 2017.

    The gradient at 0 is ``scale * alpha``.
    """
    return elu(x, alpha=SELU_ALPHA) * SELU_SCALE


selu.example(_cases(lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(np.minimum(x, 0)))))


@composite
def celu(x, *, alpha: Nonzero = 1.0):
    """Continuously differentiable ELU (Barron 2017): ``out = x`` where x > 0, else ``alpha * (exp(x / alpha) - 1)``.

    The gradient at 0 is 1.
    """
    return where(_positive(x), x, expm1(_negative_part(x) / alpha) * alpha)


celu.example(_cases(lambda x: np.where(x > 0, x, 2 * np.expm1(np.minimum(x, 0) / 2)), alpha=2.0))


@composite
def mish(x):
    """Mish activation: ``out = x * tanh(log(1 + exp(x)))`` (Misra 2020)."""
    return x * tanh(softplus(x))


mish.example(_cases(lambda x: x * np.tanh(np.log1p(np.exp(x)))))


@composite
def swish(x, *, beta: float = 1.0):
    """Swish activation: ``out = x * sigmoid(beta * x)`` (Ramachandran et al. 2017). With beta 1 it equals `silu`."""
    return x * sigmoid(x * beta)


swish.example(_cases(lambda x: x / (1 + np.exp(-1.5 * x)), beta=1.5))


@composite
def softsign(x):
    """Softsign activation: ``out = x / (1 + |x|)``. The function is smooth at 0, and its gradient there is 1."""
    return x / (abs_(x) + 1.0)


# The quotient rule would subtract two nearly equal numbers for large |x|.
softsign.vjp(lambda ct, out, x: ct / square(abs_(x) + 1.0))

softsign.example(_cases(lambda x: x / (1 + np.abs(x))))


@composite
def softshrink(x, *, alpha: NotNegative = 0.5):
    """Soft shrinkage: ``sign(x) * max(|x| - alpha, 0)`` moves x towards 0 by `alpha`.

    The gradient at -alpha and at alpha is 0.
    """
    inside = _at_most(abs_(x), alpha)
    return where(inside, _zero(x), where(_positive(x), x - alpha, x + alpha))


softshrink.example(_cases(lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.9, 0), alpha=0.9))


@composite
def hard_shrink(x, *, threshold: float = 0.5):
    """Hard shrinkage: ``out = x`` where ``|x| > threshold``, else 0.

    The gradient at -threshold and at threshold is 0.
    """
    return where(_at_most(abs_(x), threshold), _zero(x), x)


hard_shrink.example(_cases(lambda x: np.where(np.abs(x) > 0.9, x, 0), threshold=0.9))


@composite
def shrink(x, *, threshold: float = 0.5, bias: float = 0.0):
    """Shrinkage: ``out = x - bias`` where ``x > threshold``, ``x + bias`` where ``x < -threshold``, and 0 between.

    With a bias of 0 it is `hard_shrink`, with a bias equal to the threshold `softshrink`.
    """
    above = greater_than(x, full_like(x, value=threshold))
    below = less_than(x, full_like(x, value=-threshold))
    return where(below, x + bias, where(above, x - bias, where(equal(x, x), _zero(x), x)))


def _shrunk(x):
    return np.where(x < -0.9, x + 0.25, np.where(x > 0.9, x - 0.25, 0.0))


shrink.example(_cases(_shrunk, threshold=0.9, bias=0.25))


@composite
def tanh_shrink(x):
    """Tanh shrinkage: ``out = x - tanh(x)``."""
    return x - tanh(x)


tanh_shrink.example(_cases(lambda x: x - np.tanh(x)))


@composite
def hard_sigmoid(x, *, slope: float = 1 / 6, offset: float = 0.5):
    """Piecewise linear sigmoid: ``out = min(max(slope * x + offset, 0), 1)``.

    The gradient is 0 where ``slope * x + offset`` is 0 or 1.
    """
    return _clamped(x * slope + offset, 0.0, 1.0)


hard_sigmoid.example(_cases(lambda x: np.clip(0.2 * x + 0.5, 0, 1), slope=0.2))


@composite
def hard_swish(x, *, threshold: float = 6.0, scale: Nonzero = 6.0, offset: float = 3.0):
    """Piecewise swish: ``out = x * min(max(x + offset, 0), threshold) / scale`` (Howard et al. 2019).

    Where ``x + offset`` is 0 or `threshold`, the factor ``min(max(...))`` has gradient 0, as in `relu6`.
    """
    # Below the lower bound, out is set to 0 and not computed as x * 0: -inf * 0 is NaN.
    return where(_at_most(x, -offset), _zero(x), x * (_clamped(x + offset, 0.0, threshold) / scale))


hard_swish.example(_cases(lambda x: x * np.clip(x + 3.1, 0, 6) / 6, offset=3.1))


@composite
def hard_tanh(x, *, min: float = -1.0, max: float = 1.0):
    """x clamped to two bounds: ``out = min(max(x, min), max)``.

    The gradient is 0 on both bounds. The gradient of `clip` is 1 there.
    """
    if not min <= max:
        raise ProgramError(f"min {min} is above max {max}", "bad_attr")
    return _clamped(x, min, max)


hard_tanh.example(_cases(lambda x: np.clip(x, -1.7, 2), min=-1.7, max=2.0))


@composite
def thresholded_relu(x, *, threshold: float = 1.0):
    """ReLU with a threshold: ``out = x`` where ``x > threshold``, else 0. The gradient at the threshold is 0."""
    return where(_at_most(x, threshold), _zero(x), x)


thresholded_relu.example(_cases(lambda x: np.where(x > 0.9, x, 0), threshold=0.9))


@composite
def prelu(x, alpha: Slope, *, mode: Literal["all", "channel", "element"] = "all"):
    """ReLU with a learned negative slope (He et al. 2015): ``out = x`` where x > 0, else ``alpha * x``.

    - `mode`: `all`: one alpha, of shape [1] or []; `channel`: one alpha per channel (axis 1 of x); `element`: one alpha
      per element of a sample.

    The gradient at 0 is alpha.
    """
    if mode == "all":
        if any(n not in (1, -1) for n in alpha.shape):
            raise ProgramError(f"mode all needs alpha of shape [] or [1], not {alpha.type}", "shape_mismatch")
        alpha = reshape(alpha, shape=())
    elif mode == "channel":
        if x.rank < 2 or not matches(alpha.type, TensorType(x.shape[1:2], alpha.dtype)):
            raise ProgramError(
                f"mode channel needs a vector alpha, one element per channel of {x.type}, not {alpha.type}",
                "shape_mismatch",
            )
        x, alpha = agreed(x, alpha, (1, 0))
        alpha = unsqueeze(alpha, axes=tuple(range(1, x.rank - 1)))
    elif x.rank < 1 or not matches(alpha.type, TensorType(x.shape[1:], alpha.dtype)):
        raise ProgramError(
            f"mode element needs alpha shaped as one sample of {x.type}, not {alpha.type}", "shape_mismatch"
        )
    else:
        x, alpha = agreed(x, alpha, *((i + 1, i) for i in range(alpha.rank)))
    # alpha multiplies only the negative part: for x = inf, the gradient of alpha would be 0 * inf
    return where(_positive(x), x, _negative_part(x) * alpha)


_P = np.array([0.1, 0.2, 0.3])
prelu.example(
    lambda: [
        Example((A, np.array([0.1])), (np.where(A > 0, A, 0.1 * A),)),
        Example((A, _P), (np.where(A > 0, A, _P * A),), {"mode": "channel"}),
        Example((A[:, :, None], _P), (np.where(A > 0, A, _P * A)[:, :, None],), {"mode": "channel"}),
        Example((A, _P), (np.where(A > 0, A, _P * A),), {"mode": "element"}),
        Example((EMPTY, np.array(0.1)), (EMPTY,)),
    ]
)


@composite
def maxout(x, *, groups: Count, axis: int = 1):
    """Maximum of each group of `groups` consecutive elements along `axis` (Goodfellow et al. 2013).

    ``out[i] = max(x[groups * i], ..., x[groups * i + groups - 1])``. Tied elements share the gradient evenly.
    """
    at = axis_of(axis, x.rank)
    return reduce_max(divided(x, at, (-1, groups)), axes=(at + 1,))


_M = np.array([[1.0, -2.0, 3.0, 0.5], [0.1, 0.7, -1.0, 2.0]])
maxout.example(
    lambda: [
        Example((_M,), (_M.reshape(2, 2, 2).max(2),), {"groups": 2}),
        Example((_M,), (_M.max(0, keepdims=True),), {"groups": 2, "axis": 0}),
        Example((_M[:0],), (np.zeros((0, 1)),), {"groups": 4}),
        Example((_M[0],), (np.array([1.0, 3.0]),), {"groups": 2, "axis": 0}),
    ]
)


@composite(no_gradient="it is constant between jumps")
def hardmax(x, *, axis: int = -1):
    """1 at the largest element along `axis`, at the first of equal ones, and 0 elsewhere, in the dtype of x."""
    at = axis_of(axis, x.rank)
    place = x.builder.emit("roll_positions", x, shift=0, axis=at)
    place = unsqueeze(place, axes=tuple(range(1, x.rank - at))) if at < x.rank - 1 else place
    return cast(equal(place, argmax(x, axis=at, keepdims=True)), dtype=x.dtype)


hardmax.example(
    lambda: [
        Example((A,), (np.array([[0.0, 0, 1], [0, 1, 0]]),)),
        Example((A,), (np.array([[1.0, 0, 1], [0, 1, 0]]),), {"axis": 0}),
        Example((np.array([2.0, 5.0, 5.0]),), (np.array([0.0, 1, 0]),)),
        Example((EMPTY,), (EMPTY,)),
    ]
)


@composite
def glu(x, *, axis: int = -1):
    """Gated linear unit (Dauphin et al. 2017): ``out = a * sigmoid(b)``, where a and b are the halves of x along
    `axis`.

    The size of `axis` is even.
    """
    at = axis_of(axis, x.rank)
    if x.shape[at] != -1 and x.shape[at] % 2:
        raise ProgramError(f"the size of axis {axis} of {x.type} must be even", "shape_mismatch")
    a, b = split(x, num=2, axis=at)
    return a * sigmoid(b)


def _glu(a, b):
    return a / (1 + np.exp(-b))


glu.example(
    lambda: [
        Example((_M,), (_glu(_M[:, :2], _M[:, 2:]),)),
        Example((_M,), (_glu(_M[:1], _M[1:]),), {"axis": 0}),
        Example((_M[:0],), (np.zeros((0, 2)),)),
        Example((_M[0],), (_glu(_M[0, :2], _M[0, 2:]),)),
    ]
)


@composite
def softmin(x, *, axis: int = -1):
    """Softmax of the negated input along `axis`: ``softmax(-x)``."""
    return softmax(-x, axis=axis)


softmin.example(
    lambda: [
        Example((A,), (1 / E / (1 / E).sum(-1, keepdims=True),)),
        Example((A,), (1 / E / (1 / E).sum(0),), {"axis": 0}),
        Example((A[0],), (1 / E[0] / (1 / E[0]).sum(),)),
        Example((EMPTY,), (EMPTY,)),
    ]
)


CASES = (A, EMPTY, ONE)


@composite
def gelu(x, *, approximate: bool = False):
    """Gaussian error linear unit (Hendrycks and Gimpel 2016): ``out = x * P(N <= x)`` for a standard normal N.

    With `approximate` the op uses the tanh approximation of P.
    """
    if approximate:
        # Beyond 30 the sigmoid is exactly 0 or 1 in every dtype; clipping keeps its argument from overflowing.
        # (1 + tanh(z)) / 2 = sigmoid(2 z), and the sigmoid keeps its precision for large negative x.
        bounded = clip(x, min=-30.0, max=30.0)
        inner = bounded + bounded * square(bounded) * 0.044715
        return x * sigmoid(inner * (2.0 * math.sqrt(2.0 / math.pi)))
    # erfc keeps its precision for large negative x, where 1 + erf cancels
    return x * 0.5 * erfc(x * -math.sqrt(0.5))


def _gelu_erf(x):
    return x * 0.5 * (1 + np.vectorize(math.erf, [float])(x / math.sqrt(2)))


def _gelu_tanh(x):
    return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


gelu.example(
    lambda: [
        *(Example((x,), (_gelu_erf(x),)) for x in CASES),
        *(Example((x,), (_gelu_tanh(x),), {"approximate": True}) for x in CASES),
    ]
)


@composite
def silu(x):
    """Sigmoid linear unit, also called swish: ``out = x * sigmoid(x)``."""
    return x * sigmoid(x)


silu.example(lambda: [Example((x,), (x / (1 + np.exp(-x)),)) for x in CASES])
