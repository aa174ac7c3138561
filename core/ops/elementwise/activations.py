"""Activation functions. What each does at its kinks is told with it; at a kink a gradient of 0 is the default."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.common.types import axis_of, matches
from core.ops.elementwise.arithmetic import abs_
from core.ops.elementwise.logic import greater_equal, greater_than, less_equal, where
from core.ops.elementwise.math import clip, expm1, sigmoid, softplus, square, tanh
from core.ops.elementwise.special import erfc
from core.ops.nn.softmax_loss import softmax
from core.ops.reduction.sums import reduce_max
from core.ops.shape.concat_split import split
from core.ops.shape.creation import fill_zeros_like, full_like
from core.ops.shape.reshape import reshape, unsqueeze

__all__: list[str] = []

A = np.array([[1.0, -2.0, 3.0], [0.7, 8.0, -1.5]])
E = np.exp(A)
EMPTY, ONE = A[:0], A[0, 1]

SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def _cases(f, **attrs):
    """A matrix, an empty one and a single number."""
    return lambda: [Example((x,), (f(x),), attrs) for x in (A, EMPTY, ONE)]


def _zero(x):
    return fill_zeros_like(x)


def _positive(x):
    return greater_than(x, _zero(x))


def _up_to(x, bound):
    return less_equal(x, full_like(x, value=bound))


def _between(x, low, high):
    """x held within bounds, whose gradient is 0 on the bounds as well as beyond. A NaN, which is neither, stays."""
    from_high = greater_equal(x, full_like(x, value=high))
    return where(_up_to(x, low), full_like(x, value=low), where(from_high, full_like(x, value=high), x))


def _below_zero(x):
    """``min(x, 0)``: large x never reaches an exponential, forwards or backwards."""
    return where(_positive(x), _zero(x), x)


@composite
def relu6(x):
    """``out = min(max(x, 0), 6)``. The gradient at 0 and at 6 is 0."""
    return _between(x, 0.0, 6.0)


relu6.example(_cases(lambda x: np.clip(x, 0, 6)))


@composite
def elu(x, *, alpha: float = 1.0):
    """``out = x`` where x > 0, else ``alpha * (exp(x) - 1)`` (Clevert et al. 2016). The gradient at 0 is `alpha`."""
    return where(_positive(x), x, expm1(_below_zero(x)) * alpha)


elu.example(_cases(lambda x: np.where(x > 0, x, 0.5 * np.expm1(np.minimum(x, 0))), alpha=0.5))


@composite
def selu(x):
    """``out = scale * elu(x, alpha)`` with the self-normalising constants of Klambauer et al. 2017.

    The gradient at 0 is ``scale * alpha``.
    """
    return elu(x, alpha=SELU_ALPHA) * SELU_SCALE


selu.example(_cases(lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(np.minimum(x, 0)))))


@composite
def celu(x, *, alpha: float = 1.0):
    """``out = x`` where x > 0, else ``alpha * (exp(x / alpha) - 1)`` (Barron 2017); the gradient at 0 is 1."""
    if alpha == 0:
        raise ProgramError("alpha must not be 0", "bad_attr")
    return where(_positive(x), x, expm1(_below_zero(x) / alpha) * alpha)


celu.example(_cases(lambda x: np.where(x > 0, x, 2 * np.expm1(np.minimum(x, 0) / 2)), alpha=2.0))


@composite
def mish(x):
    """``out = x * tanh(log(1 + exp(x)))`` (Misra 2020)."""
    return x * tanh(softplus(x))


mish.example(_cases(lambda x: x * np.tanh(np.log1p(np.exp(x)))))


@composite
def swish(x, *, beta: float = 1.0):
    """``out = x * sigmoid(beta * x)`` (Ramachandran et al. 2017); with beta 1 it is `silu`."""
    return x * sigmoid(x * beta)


swish.example(_cases(lambda x: x / (1 + np.exp(-1.5 * x)), beta=1.5))


@composite
def softsign(x):
    """``out = x / (1 + |x|)``; smooth at 0, where the gradient is 1."""
    return x / (abs_(x) + 1.0)


# the rule of a quotient would subtract two numbers that are nearly the same far from 0
softsign.vjp(lambda ct, out, x: ct / square(abs_(x) + 1.0))

softsign.example(_cases(lambda x: x / (1 + np.abs(x))))


@composite
def softshrink(x, *, alpha: float = 0.5):
    """``sign(x) * max(|x| - alpha, 0)``: x moved towards 0 by `alpha`. The gradient at -alpha and alpha is 0."""
    inside = _up_to(abs_(x), alpha)
    return where(inside, _zero(x), where(_positive(x), x - alpha, x + alpha))


softshrink.example(_cases(lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.9, 0), alpha=0.9))


@composite
def hard_shrink(x, *, threshold: float = 0.5):
    """x where ``|x| > threshold``, else 0. The gradient on the threshold is 0."""
    return where(_up_to(abs_(x), threshold), _zero(x), x)


hard_shrink.example(_cases(lambda x: np.where(np.abs(x) > 0.9, x, 0), threshold=0.9))


@composite
def tanh_shrink(x):
    """``out = x - tanh(x)``."""
    return x - tanh(x)


tanh_shrink.example(_cases(lambda x: x - np.tanh(x)))


@composite
def hard_sigmoid(x, *, slope: float = 1 / 6, offset: float = 0.5):
    """``out = min(max(slope * x + offset, 0), 1)``. The gradient on either bound is 0."""
    return _between(x * slope + offset, 0.0, 1.0)


hard_sigmoid.example(_cases(lambda x: np.clip(0.2 * x + 0.5, 0, 1), slope=0.2))


@composite
def hard_swish(x, *, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0):
    """``out = x * min(max(x + offset, 0), threshold) / scale`` (Howard et al. 2019); on a bound as in `relu6`."""
    # far to the left x itself is no factor: -inf times 0 is NaN
    return where(_up_to(x, -offset), _zero(x), x * (_between(x + offset, 0.0, threshold) / scale))


hard_swish.example(_cases(lambda x: x * np.clip(x + 3.1, 0, 6) / 6, offset=3.1))


@composite
def hard_tanh(x, *, min: float = -1.0, max: float = 1.0):
    """``out = min(max(x, min), max)``. Unlike `clip`'s, the gradient on either bound is 0."""
    if not min < max:
        raise ProgramError(f"min {min} must be below max {max}", "bad_attr")
    return _between(x, min, max)


hard_tanh.example(_cases(lambda x: np.clip(x, -1.7, 2), min=-1.7, max=2.0))


@composite
def thresholded_relu(x, *, threshold: float = 1.0):
    """``out = x`` where ``x > threshold``, else 0. The gradient on the threshold is 0."""
    return where(_up_to(x, threshold), _zero(x), x)


thresholded_relu.example(_cases(lambda x: np.where(x > 0.9, x, 0), threshold=0.9))


@composite
def prelu(x, alpha, *, mode: Literal["all", "channel", "element"] = "all"):
    """``out = x`` where x > 0, else ``alpha * x``, with a learned alpha (He et al. 2015). The gradient at 0 is alpha.

    mode: one alpha of shape [1] or [] for all, one per channel (axis 1 of x), or one for each element of a sample.
    """
    if mode == "all":
        if any(n not in (1, -1) for n in alpha.shape):
            raise ProgramError(f"one alpha for all is [] or [1], not {alpha.type}", "shape_mismatch")
        alpha = reshape(alpha, shape=())
    elif mode == "channel":
        if x.rank < 2 or not matches(alpha.type, TensorType(x.shape[1:2], alpha.dtype)):
            raise ProgramError(f"one alpha a channel of {x.type} is a vector, not {alpha.type}", "shape_mismatch")
        alpha = unsqueeze(alpha, axes=tuple(range(1, x.rank - 1)))
    elif x.rank < 1 or not matches(alpha.type, TensorType(x.shape[1:], alpha.dtype)):
        raise ProgramError(f"alpha must be as a sample of {x.type}, not {alpha.type}", "shape_mismatch")
    # what is above 0 must not meet alpha: the gradient of an infinite x by it would be 0 times inf
    return where(_positive(x), x, _below_zero(x) * alpha)


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
def maxout(x, *, groups: int, axis: int = 1):
    """``out[i] = max(x[groups * i], ..., x[groups * i + groups - 1])`` along `axis` (Goodfellow et al. 2013). Ties
    share the gradient evenly.
    """
    at = axis_of(axis, x.rank)
    if groups < 1 or x.shape[at] == -1 or x.shape[at] % groups:
        raise ProgramError(f"axis {axis} of {x.type} is not known to be a multiple of {groups}", "shape_mismatch")
    if x.shape.count(-1) > 1:
        raise ProgramError(f"maxout needs all sizes but one known, not {x.type}", "shape_mismatch")
    shape = (*x.shape[:at], x.shape[at] // groups, groups, *x.shape[at + 1 :])
    return reduce_max(reshape(x, shape=shape), axes=(at + 1,))


_M = np.array([[1.0, -2.0, 3.0, 0.5], [0.1, 0.7, -1.0, 2.0]])
maxout.example(
    lambda: [
        Example((_M,), (_M.reshape(2, 2, 2).max(2),), {"groups": 2}),
        Example((_M,), (_M.max(0, keepdims=True),), {"groups": 2, "axis": 0}),
        Example((_M[:0],), (np.zeros((0, 1)),), {"groups": 4}),
        Example((_M[0],), (np.array([1.0, 3.0]),), {"groups": 2, "axis": 0}),
    ]
)


@composite
def glu(x, *, axis: int = -1):
    """``out = a * sigmoid(b)`` for the two halves a, b of x along `axis` (Dauphin et al. 2017)."""
    at = axis_of(axis, x.rank)
    if x.shape[at] == -1 or x.shape[at] % 2:
        raise ProgramError(f"axis {axis} of {x.type} is not known to be even", "shape_mismatch")
    a, b = split(x, sections=(x.shape[at] // 2,) * 2, axis=at)
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
    """``softmax(-x)`` along `axis`."""
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
    """``out = x * P(N <= x)`` for a standard normal N; `approximate` takes the tanh form (Hendrycks, Gimpel 2016)."""
    if approximate:
        # beyond 30 the sigmoid is 0 or 1 in every dtype, and its argument would overflow at last;
        # (1 + tanh(z)) / 2 = sigmoid(2 z), which keeps its digits on the far left
        near = clip(x, min=-30.0, max=30.0)
        inner = near + near * square(near) * 0.044715
        return x * sigmoid(inner * (2.0 * math.sqrt(2.0 / math.pi)))
    # 1 + erf would lose all digits of the far left
    return x * 0.5 * erfc(x * -math.sqrt(0.5))


def _by_erf(x):
    return x * 0.5 * (1 + np.vectorize(math.erf, [float])(x / math.sqrt(2)))


def _by_tanh(x):
    return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


gelu.example(
    lambda: [
        *(Example((x,), (_by_erf(x),)) for x in CASES),
        *(Example((x,), (_by_tanh(x),), {"approximate": True}) for x in CASES),
    ]
)


@composite
def silu(x):
    """``out = x * sigmoid(x)``, also called swish."""
    return x * sigmoid(x)


silu.example(lambda: [Example((x,), (x / (1 + np.exp(-x)),)) for x in CASES])
