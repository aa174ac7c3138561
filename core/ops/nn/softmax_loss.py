"""Softmax and the most common losses.

Losses with a `reduction` return one value per element or row (`none`), or their mean or sum. The default depends on the
op. A mean over nothing is 0.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from core.ir.registry import Example, composite
from core.ops.common.types import axis_of
from core.ops.elementwise.arithmetic import assign, cast, stop_gradient
from core.ops.elementwise.logic import equal, greater_than, logical_not, where
from core.ops.elementwise.math import clip, exp, log, softplus, square
from core.ops.reduction.sums import Empty, reduce_max, reduce_mean, reduce_sum
from core.ops.shape.creation import fill_zeros_like, full_like

__all__ = ["Reduction", "logistic", "of_nothing", "reduced"]

Reduction = Literal["none", "mean", "sum"]

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])


def reduced(each, reduction: Reduction):
    """The values of a loss, or their mean or sum."""
    if reduction == "none":
        return each
    return reduce_mean(each) if reduction == "mean" else reduce_sum(each)


def _np_softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def of_nothing(size: int) -> Empty:
    """The attribute `empty` of the maximum that a softmax subtracts: an axis of open size (-1) may turn out empty."""
    return "identity" if size < 0 else "error"


def _shifted(x, axis):
    """x minus its maximum along `axis`. This leaves softmax unchanged and keeps exp from overflowing."""
    top = reduce_max(stop_gradient(x), axes=(axis,), keepdims=True, empty=of_nothing(x.shape[axis]))
    return x - top


@composite
def softmax(x, *, axis: int = -1):
    """Softmax along `axis`: ``out = exp(x) / sum(exp(x))``."""
    at = axis_of(axis, x.rank)
    if x.shape[at] == 0:
        return assign(x)
    e = exp(_shifted(x, at))
    return e * (1.0 / reduce_sum(e, axes=(at,), keepdims=True))  # a division for each row, not for each element


@softmax.vjp
def softmax_vjp(ct, out, x, *, axis):
    weighted = ct * out
    return weighted - out * reduce_sum(weighted, axes=(axis,), keepdims=True)


softmax.example(
    lambda: [
        Example((X,), (_np_softmax(X),)),
        Example((X,), (_np_softmax(X, 0),), {"axis": 0}),
        Example((X[0],), (_np_softmax(X[0]),)),
        Example((X[:0],), (X[:0],)),
    ]
)


@composite
def log_softmax(x, *, axis: int = -1):
    """Logarithm of the softmax along `axis`: ``out = x - log(sum(exp(x)))``."""
    at = axis_of(axis, x.rank)
    if x.shape[at] == 0:
        return assign(x)
    shifted = _shifted(x, at)
    return shifted - log(reduce_sum(exp(shifted), axes=(at,), keepdims=True))


@log_softmax.vjp
def log_softmax_vjp(ct, out, x, *, axis):
    return ct - exp(out) * reduce_sum(ct, axes=(axis,), keepdims=True)


log_softmax.example(
    lambda: [
        Example((X,), (np.log(_np_softmax(X)),)),
        Example((X,), (np.log(_np_softmax(X, 0)),), {"axis": 0}),
        Example((X[0],), (np.log(_np_softmax(X[0])),)),
        Example((X[:0],), (X[:0],)),
    ]
)


@composite
def mse_loss(x, y, *, reduction: Reduction = "mean"):
    """Squared error: ``(x - y) ** 2``, by default averaged over all elements."""
    return reduced(square(x - y), reduction)


mse_loss.example(
    lambda: [
        Example((X, X[::-1].copy()), (((X - X[::-1]) ** 2).mean(),)),
        Example((X, 0 * X), ((X**2).sum(),), {"reduction": "sum"}),
        Example((X, 0 * X), (X**2,), {"reduction": "none"}),
        Example((X, X[1]), (((X - X[1]) ** 2).mean(),)),
        Example((X[:0], X[:0]), (0.0,)),
    ]
)


def logistic(x, label):
    """``log(1 + exp(x)) - x * label``, the binary cross-entropy of logits, without overflow.

    It is log(1 + exp(-|x|)) plus a rest that is 0 for a label of the right sign: no difference of large numbers.
    """
    positive = greater_than(x, fill_zeros_like(x))
    return softplus(where(positive, -x, x)) + (where(positive, x, fill_zeros_like(x)) - x * label)


@composite
def sigmoid_cross_entropy_with_logits(
    x, label, pos_weight=None, *, ignore_index: float = -100.0, normalize: bool = False, reduction: Reduction = "none"
):
    """Binary cross-entropy of logits: ``-label * log(sigmoid(x)) - (1 - label) * log(1 - sigmoid(x))``, without
    overflow.

    - `pos_weight`: a factor for the first term, of positive labels; it broadcasts to the shape of x.
    - `ignore_index`: elements with this label give loss 0 and gradient 0.
    - `normalize`: divide the result by the number of elements that are not ignored.
    """
    ignored = equal(label, full_like(label, value=ignore_index))
    known = where(ignored, fill_zeros_like(label), label)
    each = logistic(x, known)
    if pos_weight is not None:  # the first term once more, times the rest of the weight
        each = each + known * (pos_weight - 1.0) * softplus(-x)
    out = where(ignored, fill_zeros_like(each), each)
    if normalize:
        counted = cast(logical_not(ignored), dtype=x.dtype)
        out = out / clip(reduce_sum(counted), min=1.0)
    return reduced(out, reduction)


def _bce(x, z):
    return np.log1p(np.exp(x)) - x * z


sigmoid_cross_entropy_with_logits.example(
    lambda: [
        Example((X, (X > 0) * 1.0), (_bce(X, X > 0),)),
        Example((X, (X > 0) * 1.0), (_bce(X, X > 0).mean(),), {"reduction": "mean"}),
        Example((X, (X > 0) * 1.0, np.array([1.0, 3.0, 0.5])),
                (np.where(X > 0, np.array([1, 3, 0.5]) * np.log1p(np.exp(-X)), np.log1p(np.exp(X))),)),
        Example((X[0, 0], np.array(0.5)), (_bce(1.0, 0.5),)),
        Example((X[:0], X[:0]), (0.0,), {"reduction": "mean"}),
        Example((X[0], np.array([1.0, -1.0, 0.5])), (np.array([_bce(1.0, 1.0), 0.0, _bce(3.0, 0.5)]) / 2,),
                {"ignore_index": -1.0, "normalize": True}, smooth=False),
    ]
)  # fmt: skip
