"""Losses between a prediction and a target of the same shape."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np

from core.ir.bounds import Bounds
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.common.ranges import NotNegative, Positive
from core.ops.elementwise.arithmetic import abs_, pow_
from core.ops.elementwise.logic import greater_equal, greater_than, less_equal, where
from core.ops.elementwise.math import clip, exp, log, log1p, relu, softplus, square
from core.ops.nn.softmax_loss import Reduction, reduced
from core.ops.reduction.sums import inverse_count, reduce_mean, reduce_sum
from core.ops.shape.creation import fill_zeros_like, full_like

__all__ = ["cases"]

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
Y = np.array([[0.6, -1.0, 2.2], [1.5, 3.0, 0.5]])
P = np.array([[0.2, 0.5, 0.3], [0.7, 0.1, 0.2]])
T = np.array([[0.3, 0.3, 0.4], [0.5, 0.2, 0.3]])
SIGN = np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]])
EMPTY = X[:0]
_LOG = np.log(P)


def _zero(x):
    return fill_zeros_like(x)


def _full(x, value: float):
    return full_like(x, value=value)


def cases(f, *inputs, **attrs):
    """Examples of a loss: elementwise, as a mean over one row, and as a sum over nothing."""
    return lambda: [
        Example(inputs, (f(*inputs),), attrs),
        Example(tuple(x[0] for x in inputs), (f(*(x[0] for x in inputs)).mean(),), {**attrs, "reduction": "mean"}),
        Example(tuple(x[:0] for x in inputs), (np.array(0.0),), {**attrs, "reduction": "sum"}),
    ]


@composite
def square_error_cost(x, label):
    """Squared error of each element: ``(x - label) ** 2``."""
    return square(x - label)


square_error_cost.example(
    lambda: [
        Example((X, Y), ((X - Y) ** 2,)),
        Example((X, Y[0]), ((X - Y[0]) ** 2,)),
        Example((EMPTY, EMPTY), (EMPTY,)),
    ]
)


@composite
def l1_loss(x, label, *, reduction: Reduction = "mean"):
    """Absolute error: ``|x - label|``. Where x equals label the gradient is 0."""
    return reduced(abs_(x - label), reduction)


l1_loss.example(cases(lambda x, y: np.abs(x - y), X, Y, reduction="none"))


def _huber(difference, delta: float):
    """Half the square within `delta`, and a line with slope `delta` outside.

    A sum, not a choice: the branch that a choice leaves out may overflow, and its gradient would be 0 * inf.
    """
    near = clip(difference, min=-delta, max=delta)
    return square(near) * 0.5 + abs_(difference - near) * delta


@composite
def huber_loss(x, label, *, delta: Positive = 1.0, reduction: Reduction = "none"):
    """Huber loss (Huber 1964) with d = x - label: ``d ** 2 / 2`` for ``|d| <= delta``, else ``delta * (|d| - delta /
    2)``.
    """
    return reduced(_huber(x - label, delta), reduction)


huber_loss.example(
    cases(lambda x, y: np.where(abs(x - y) <= 0.7, (x - y) ** 2 / 2, 0.7 * (abs(x - y) - 0.35)), X, Y, delta=0.7)
)


@composite
def smooth_l1_loss(
    x,
    label,
    *,
    delta: Positive = 1.0,
    sigma: Annotated[float, Bounds(ge=1e-150, le=1e150)] | None = None,
    reduction: Reduction = "mean",
):
    """Smooth L1 loss (Girshick 2015) with d = x - label: ``d ** 2 / (2 delta)`` for ``|d| <= delta``, else ``|d| -
    delta / 2``.

    It equals `huber_loss` / delta.

    - `sigma`: if given, delta is ``1 / sigma ** 2``.
    """
    if sigma is not None:
        delta = sigma**-2
    return reduced(_huber(x - label, delta) / delta, reduction)


def _smooth_l1(x, y, delta=0.7):
    return np.where(abs(x - y) <= delta, (x - y) ** 2 / (2 * delta), abs(x - y) - delta / 2)


smooth_l1_loss.example(
    lambda: [
        *cases(_smooth_l1, X, Y, delta=0.7, reduction="none")(),
        Example((X, Y), (_smooth_l1(X, Y, 0.25).mean(),), {"sigma": 2.0}),
    ]
)


@composite
def bce_loss(p, label, weight=None, *, reduction: Reduction = "mean"):
    """Binary cross-entropy of probabilities p: ``-weight * (label * log(p) + (1 - label) * log(1 - p))``.

    A logarithm below -100 counts as -100, with gradient 0.
    """

    def bounded(none, found):
        return where(none, _full(found, -100.0), clip(found, min=-100.0))

    never, always = less_equal(p, _zero(p)), greater_equal(p, _full(p, 1.0))
    yes = bounded(never, log(where(never, _full(p, 1.0), p)))
    no = bounded(always, log1p(where(always, _zero(p), -p)))  # 1 - p would round a small p away
    each = -(label * yes + (1.0 - label) * no)
    return reduced(each if weight is None else each * weight, reduction)


bce_loss.example(cases(lambda p, t: -(t * np.log(p) + (1 - t) * np.log(1 - p)), P, T, reduction="none"))


@composite
def log_loss(p, label, *, epsilon: float = 1e-4):
    """Binary cross-entropy with an offset: ``-label * log(p + epsilon) - (1 - label) * log(1 - p + epsilon)``."""
    return -(label * log(p + epsilon)) - (1.0 - label) * log((1.0 + epsilon) - p)


def _log_loss(p, t):
    return -t * np.log(p + 1e-4) - (1 - t) * np.log(1 - p + 1e-4)


log_loss.example(lambda: [Example((p, t), (_log_loss(p, t),)) for p, t in ((P, T), (P[0], T[0]), (P[:0], T[:0]))])


@composite
def kldiv_loss(x, target, *, reduction: Literal["none", "mean", "sum", "batchmean"] = "mean"):
    """Kullback-Leibler divergence: ``target * (log(target) - x)`` for log-probabilities x.

    The loss is 0 where target is not positive.

    - `reduction`: `batchmean` divides the sum by the size of the first axis.
    """
    none = less_equal(target, _zero(target))
    safe = where(none, _full(target, 1.0), target)
    each = where(none, _zero(x), safe * (log(safe) - x))
    if reduction == "batchmean":
        rows = reduce_sum(each, axes=tuple(range(1, each.rank)))
        return reduce_mean(rows)
    return reduced(each, reduction)


kldiv_loss.example(
    lambda: [
        Example((_LOG, T), ((T * (np.log(T) - _LOG)).mean(),)),
        Example((_LOG, T), ((T * (np.log(T) - _LOG)).sum() / 2,), {"reduction": "batchmean"}),
        Example((_LOG[0], T[0]), (T[0] * (np.log(T[0]) - _LOG[0]),), {"reduction": "none"}),
        Example((EMPTY, EMPTY), (np.array(0.0),), {"reduction": "sum"}),
    ]
)


@composite
def hinge_loss(x, label):
    """Hinge loss for labels 0 and 1: ``max(0, 1 - x * (2 * label - 1))``. At the kink the gradient is 0."""
    return relu(1.0 - x * (label * 2.0 - 1.0))


def _hinge_loss(x, s):
    return np.maximum(0, 1 - x * (2 * s - 1))


hinge_loss.example(
    lambda: [
        Example((x, s), (_hinge_loss(x, s),))
        for x, s in ((X * 0.9, SIGN * 0.5 + 0.5), (X[0] * 0.9, SIGN[0] * 0.5 + 0.5), (EMPTY, EMPTY))
    ]
)


@composite
def label_smooth(label, prior=None, *, epsilon: float = 0.1):
    """Smoothed labels: ``(1 - epsilon) * label + epsilon * prior``.

    - `prior`: uniform over the last axis by default.
    """
    if prior is None:
        if label.rank == 0 or label.shape[-1] == 0:
            raise ProgramError(f"labels need at least one class, not {label.type}", "shape_mismatch")
        if label.shape[-1] == -1:
            return label * (1.0 - epsilon) + inverse_count(label, axes=(-1,)) * epsilon
        return label * (1.0 - epsilon) + epsilon / label.shape[-1]
    return label * (1.0 - epsilon) + prior * epsilon


label_smooth.example(
    lambda: [
        Example((T,), (0.9 * T + 0.1 / 3,)),
        Example((T, P[0]), (0.8 * T + 0.2 * P[0],), {"epsilon": 0.2}),
        Example((T[:0],), (T[:0],)),
    ]
)


@composite
def dice_loss(p, label, *, epsilon: float = 1e-5):
    """Dice loss (Milletari et al. 2016): ``1 - 2 * sum(p * label) / (sum(p) + sum(label) + epsilon)`` per sample,
    averaged.
    """
    axes = tuple(range(1, p.rank))
    both = reduce_sum(p * label, axes=axes) * 2.0
    return reduce_mean(1.0 - both / (reduce_sum(p, axes=axes) + reduce_sum(label, axes=axes) + epsilon))


def _dice(p, t):
    axes = tuple(range(1, p.ndim))
    return (1 - 2 * (p * t).sum(axes) / (p.sum(axes) + t.sum(axes) + 1e-5)).mean()


dice_loss.example(
    lambda: [
        Example((P, T), (_dice(P, T),)),
        Example((P[:, :, None], T[:, :, None]), (_dice(P, T),)),
        Example((P[:0], T[:0]), (np.array(0.0),)),
    ]
)


@composite
def sigmoid_focal_loss(x, label, *, alpha: float = 0.25, gamma: NotNegative = 2.0, reduction: Reduction = "none"):
    """Focal loss (Lin et al. 2017): cross-entropy of sigmoid(x), weighted by ``alpha_t * (1 - p_t) ** gamma``.

    It does not overflow for large logits.
    """
    # the logarithms of p and 1 - p: neither 1 - p_t nor log(p_t) is a difference where p_t is nearly 1
    yes, no = (-softplus(v) for v in (-x, x))
    loss = -(yes * label + no * (1.0 - label))
    miss = exp(yes) * (1.0 - label) + exp(no) * label
    weight = label * alpha + (1.0 - label) * (1.0 - alpha)
    return reduced(weight * pow_(miss, _full(miss, gamma)) * loss, reduction)


def _focal(x, t):
    p = 1 / (1 + np.exp(-x))
    pt, at = np.where(t > 0.5, p, 1 - p), np.where(t > 0.5, 0.25, 0.75)
    return -at * (1 - pt) ** 2 * np.log(pt)


sigmoid_focal_loss.example(cases(_focal, X, SIGN * 0.5 + 0.5))


@composite
def poisson_nll_loss(
    x,
    label,
    *,
    log_input: bool = True,
    full: bool = False,
    epsilon: float = 1e-8,
    reduction: Reduction = "mean",
):
    """Negative log-likelihood of Poisson counts: ``exp(x) - label * x``, where x is the logarithm of the expected
    value.

    - `log_input`: if false, x is the expected value itself, and the loss is ``x - label * log(x + epsilon)``.
    - `full`: add ``label * log(label) - label + log(2 pi label) / 2``, Stirling's approximation of log(label!), where
      label > 1.
    """
    each = exp(x) - label * x if log_input else x - label * log(x + epsilon)
    if full:
        many = greater_than(label, _full(label, 1.0))
        safe = where(many, label, _full(label, 1.0))
        stirling = safe * log(safe) - safe + log(safe * (2.0 * math.pi)) * 0.5
        each = each + where(many, stirling, _zero(stirling))
    return reduced(each, reduction)


def _stirling(n):
    return np.where(n > 1, n * np.log(n) - n + 0.5 * np.log(2 * np.pi * n), 0)


_COUNTS = np.array([[2.0, 0.5, 3.0], [0.75, 4.0, 2.5]])
poisson_nll_loss.example(
    lambda: [
        Example((X, _COUNTS), ((np.exp(X) - _COUNTS * X).mean(),)),
        Example(
            (P, _COUNTS),
            (P - _COUNTS * np.log(P + 1e-8) + _stirling(_COUNTS),),
            {"log_input": False, "full": True, "reduction": "none"},
        ),
        Example((EMPTY, EMPTY), (np.array(0.0),), {"reduction": "sum"}),
        Example((X[0], _COUNTS[0]), ((np.exp(X[0]) - _COUNTS[0] * X[0]).sum(),), {"reduction": "sum"}),
    ]
)


@composite
def gaussian_nll_loss(
    x, label, variance, *, full: bool = False, epsilon: Positive = 1e-6, reduction: Reduction = "mean"
):
    """Negative log-likelihood of a Gaussian (Nix and Weigend 1994): ``(log(v) + (x - label) ** 2 / v) / 2``.

    v is max(variance, epsilon). A variance below `epsilon` has gradient 0.

    - `full`: add ``log(2 pi) / 2``.
    """
    v = clip(variance, min=epsilon)
    each = (log(v) + square(x - label) / v) * 0.5
    return reduced(each + 0.5 * math.log(2.0 * math.pi) if full else each, reduction)


def _gaussian(x, t, v):
    return 0.5 * (np.log(v) + (x - t) ** 2 / v)


gaussian_nll_loss.example(
    lambda: [
        Example((X, Y, P), (_gaussian(X, Y, P).mean(),)),
        Example((X, Y, P[:1]), (_gaussian(X, Y, P[:1]) + np.log(2 * np.pi) / 2,), {"full": True, "reduction": "none"}),
        Example((EMPTY, EMPTY, EMPTY), (np.array(0.0),), {"reduction": "sum"}),
    ]
)
