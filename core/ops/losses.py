"""Losses of elements, of pairs and of vectors: what has no class numbers in it."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from core.errors import ProgramError
from core.ops.loss import Reduction, reduced
from core.ops.types import axis_of
from core.registry import Example, composite, lookup

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
Y = np.array([[0.6, -1.0, 2.2], [1.5, 3.0, 0.5]])
P = np.array([[0.2, 0.5, 0.3], [0.7, 0.1, 0.2]])
T = np.array([[0.3, 0.3, 0.4], [0.5, 0.2, 0.3]])
SIGN = np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]])
EMPTY = X[:0]
_LOG = np.log(P)


def _zero(x):
    return lookup("fill_zeros_like")(x)


def _full(x, value: float):
    return lookup("full_like")(x, value=value)


def _cases(f, *inputs, **attrs):
    """One value an element, the mean over a row, the sum of nothing."""
    return lambda: [
        Example(inputs, (f(*inputs),), attrs),
        Example(tuple(x[0] for x in inputs), (f(*(x[0] for x in inputs)).mean(),), {**attrs, "reduction": "mean"}),
        Example(tuple(x[:0] for x in inputs), (np.array(0.0),), {**attrs, "reduction": "sum"}),
    ]


@composite
def square_error_cost(x, label):
    """``(x - label) ** 2``, element by element."""
    return lookup("square")(x - label)


square_error_cost.example(
    lambda: [
        Example((X, Y), ((X - Y) ** 2,)),
        Example((X, Y[0]), ((X - Y[0]) ** 2,)),
        Example((EMPTY, EMPTY), (EMPTY,)),
    ]
)


@composite
def l1_loss(x, label, *, reduction: Reduction = "mean"):
    """``|x - label|``. Where they are equal the gradient is 0."""
    return reduced(lookup("abs")(x - label), reduction)


l1_loss.example(_cases(lambda x, y: np.abs(x - y), X, Y, reduction="none"))


def _huber(difference, delta: float):
    """Half the square within `delta`, a line of slope `delta` beyond."""
    size = lookup("abs")(difference)
    inside = lookup("less_equal")(size, _full(size, delta))
    return lookup("where")(inside, lookup("square")(difference) * 0.5, size * delta - 0.5 * delta * delta)


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ProgramError(f"{name} must be a positive number, not {value}", "bad_attr")


@composite
def huber_loss(x, label, *, delta: float = 1.0, reduction: Reduction = "none"):
    """``d ** 2 / 2`` for ``|d| <= delta``, else ``delta * (|d| - delta / 2)``, with d = x - label (Huber 1964)."""
    _positive(delta=delta)
    return reduced(_huber(x - label, delta), reduction)


huber_loss.example(
    _cases(lambda x, y: np.where(abs(x - y) <= 0.7, (x - y) ** 2 / 2, 0.7 * (abs(x - y) - 0.35)), X, Y, delta=0.7)
)


@composite
def smooth_l1_loss(x, label, *, delta: float = 1.0, sigma: float | None = None, reduction: Reduction = "mean"):
    """``d ** 2 / (2 delta)`` for ``|d| <= delta``, else ``|d| - delta / 2`` (Girshick 2015): `huber_loss` / delta.

    sigma: if it is given, delta is ``1 / sigma ** 2``.
    """
    if sigma is not None:
        _positive(sigma=sigma)
        delta = sigma**-2
    _positive(delta=delta)
    return reduced(_huber(x - label, delta) / delta, reduction)


def _smooth_l1(x, y, delta=0.7):
    return np.where(abs(x - y) <= delta, (x - y) ** 2 / (2 * delta), abs(x - y) - delta / 2)


smooth_l1_loss.example(
    lambda: [
        *_cases(_smooth_l1, X, Y, delta=0.7, reduction="none")(),
        Example((X, Y), (_smooth_l1(X, Y, 0.25).mean(),), {"sigma": 2.0}),
    ]
)


@composite
def bce_loss(p, label, weight=None, *, reduction: Reduction = "mean"):
    """``-weight * (label * log(p) + (1 - label) * log(1 - p))``; log(0) counts as -100, without gradient."""

    def log(x):
        some = lookup("greater_than")(x, _zero(x))
        found = lookup("log")(lookup("where")(some, x, _full(x, 1.0)))
        return lookup("where")(some, lookup("clip")(found, min=-100.0), _full(found, -100.0))

    each = -(label * log(p) + (1.0 - label) * log(1.0 - p))
    return reduced(each if weight is None else each * weight, reduction)


bce_loss.example(_cases(lambda p, t: -(t * np.log(p) + (1 - t) * np.log(1 - p)), P, T, reduction="none"))


@composite
def log_loss(p, label, *, epsilon: float = 1e-4):
    """``-label * log(p + epsilon) - (1 - label) * log(1 - p + epsilon)``."""
    return -(label * lookup("log")(p + epsilon)) - (1.0 - label) * lookup("log")((1.0 + epsilon) - p)


log_loss.example(
    lambda: [
        Example((p, t), (-t * np.log(p + 1e-4) - (1 - t) * np.log(1 - p + 1e-4),))
        for p, t in ((P, T), (P[0], T[0]), (P[:0], T[:0]))
    ]
)


@composite
def kldiv_loss(x, target, *, reduction: Literal["none", "mean", "sum", "batchmean"] = "mean"):
    """``target * (log(target) - x)`` for log-probabilities x; 0 where target is not above 0.

    batchmean: the sum divided by the size of the first axis.
    """
    some = lookup("greater_than")(target, _zero(target))
    safe = lookup("where")(some, target, _full(target, 1.0))
    each = lookup("where")(some, safe * (lookup("log")(safe) - x), _zero(x))
    if reduction == "batchmean":
        rows = lookup("reduce_sum")(each, axes=tuple(range(1, each.rank)))
        return lookup("reduce_mean")(rows)
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
    """``max(0, 1 - x * (2 * label - 1))`` for labels 0 and 1. On the hinge the gradient is 0."""
    return lookup("relu")(1.0 - x * (label * 2.0 - 1.0))


hinge_loss.example(
    lambda: [
        Example((x, s), (np.maximum(0, 1 - x * (2 * s - 1)),))
        for x, s in ((X * 0.9, SIGN * 0.5 + 0.5), (X[0] * 0.9, SIGN[0] * 0.5 + 0.5), (EMPTY, EMPTY))
    ]
)


@composite
def rank_loss(label, left, right):
    """``log(1 + exp(left - right)) - label * (left - right)``: RankNet's loss of a pair (Burges et al. 2005)."""
    difference = left - right
    return lookup("softplus")(difference) - label * difference


rank_loss.example(
    lambda: [
        Example((t, x, y), (np.log1p(np.exp(x - y)) - t * (x - y),))
        for t, x, y in ((T, X, Y), (T[0], X[0], Y[0]), (EMPTY,) * 3)
    ]
)


@composite
def margin_rank_loss(label, left, right, *, margin: float = 0.0, reduction: Reduction = "none"):
    """``max(0, -label * (left - right) + margin)`` for labels 1 (left is better) and -1; on the margin gradient 0."""
    return reduced(lookup("relu")(margin - label * (left - right)), reduction)


margin_rank_loss.example(_cases(lambda s, x, y: np.maximum(0, 0.2 - s * (x - y)), SIGN, X, Y, margin=0.2))


@composite
def cos_sim(x, y, *, axis: int = -1, epsilon: float = 0.0):
    """``sum(x * y) / (norm(x) * norm(y))`` along `axis` of x. A vector whose norm is not above `epsilon` has the
    similarity 0 with any other, and no gradient."""
    axes = (axis_of(axis, x.rank) - x.rank,)

    def unit(v):
        # halves squared overflow early; the scale is no part of the result, and so of no gradient
        sizes = lookup("abs")(lookup("stop_gradient")(v))
        if v.shape[axes[0]] == -1:  # it may turn out to be 0
            sizes = lookup("pad_constant")(
                sizes, paddings=(*(0,) * (2 * (v.rank + axes[0])), 1, *(0,) * (-2 * axes[0] - 1))
            )
        largest = lookup("reduce_max")(sizes, axes=axes, keepdims=True)
        scaled = v / lookup("where")(lookup("greater_than")(largest, _zero(largest)), largest, _full(largest, 1.0))
        total = lookup("reduce_sum")(lookup("square")(scaled), axes=axes, keepdims=True)
        some = lookup("greater_than")(largest * lookup("sqrt")(total), _full(total, epsilon))
        root = lookup("rsqrt")(lookup("where")(some, total, _full(total, 1.0)))
        return scaled * lookup("where")(some, root, _zero(root))

    if x.shape[axes[0]] == 0:
        return lookup("reduce_sum")(x * y, axes=axes)
    return lookup("reduce_sum")(unit(x) * unit(y), axes=axes)


def _cos(x, y, axis=-1):
    return (x * y).sum(axis) / np.sqrt((x**2).sum(axis) * (y**2).sum(axis))


cos_sim.example(
    lambda: [
        Example((X, Y), (_cos(X, Y),)),
        Example((X, Y), (_cos(X, Y, 0),), {"axis": 0}),
        Example((X[0], Y[0]), (_cos(X[0], Y[0]),)),
        Example((X, Y[:1]), (_cos(X, Y[:1]),)),
        Example((0 * X, Y), (np.zeros(2),), smooth=False),
        Example((EMPTY, EMPTY), (np.zeros(0),)),
        Example((X[:, :0], Y[:, :0]), (np.zeros(2),)),
    ]
)


@composite
def label_smooth(label, prior=None, *, epsilon: float = 0.1):
    """``(1 - epsilon) * label + epsilon * prior``, the prior being even over the last axis if it is left out."""
    if prior is None:
        if label.rank == 0 or label.shape[-1] < 1:
            raise ProgramError(f"the number of classes in {label.type} must be known", "shape_mismatch")
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
def triplet_margin_loss(
    anchor, positive, negative, *, margin: float = 1.0, p: float = 2.0, reduction: Reduction = "mean"
):
    """``max(0, d(anchor, positive) - d(anchor, negative) + margin)`` with the p-norm along the last axis as d."""

    def distance(a, b):
        return lookup("norm")(a - b, p=p, axes=(a.rank - 1,))

    return reduced(lookup("relu")(distance(anchor, positive) - distance(anchor, negative) + margin), reduction)


def _triplet(a, b, c, p=2):
    return np.maximum(0, (abs(a - b) ** p).sum(-1) ** (1 / p) - (abs(a - c) ** p).sum(-1) ** (1 / p) + 4)


triplet_margin_loss.example(
    lambda: [
        Example((X, Y, P), (_triplet(X, Y, P).mean(),), {"margin": 4.0}),
        Example((X, Y, P), (_triplet(X, Y, P, 1),), {"margin": 4.0, "p": 1.0, "reduction": "none"}),
        Example((X[0], Y[0], P[0]), (_triplet(X[0], Y[0], P[0]),), {"margin": 4.0, "reduction": "sum"}),
        Example((EMPTY,) * 3, (np.zeros(0),), {"reduction": "none"}),
    ]
)


@composite
def dice_loss(p, label, *, epsilon: float = 1e-5):
    """``1 - 2 * sum(p * label) / (sum(p) + sum(label) + epsilon)`` a sample, averaged (Milletari et al. 2016)."""
    axes = tuple(range(1, p.rank))
    add = lookup("reduce_sum")
    both = add(p * label, axes=axes) * 2.0
    return lookup("reduce_mean")(1.0 - both / (add(p, axes=axes) + add(label, axes=axes) + epsilon))


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
def sigmoid_focal_loss(x, label, *, alpha: float = 0.25, gamma: float = 2.0, reduction: Reduction = "none"):
    """Cross-entropy of sigmoid(x), weighted by ``alpha_t * (1 - p_t) ** gamma`` (Lin et al. 2017), without overflow."""
    if gamma < 0:
        raise ProgramError(f"gamma must be at least 0, not {gamma}", "bad_attr")
    loss = lookup("softplus")(x) - x * label
    # 1 - p_t; above 0 even where p_t is nearly 1
    yes, no = (lookup("exp")(-lookup("softplus")(v)) for v in (-x, x))
    miss = yes * (1.0 - label) + no * label
    weight = label * alpha + (1.0 - label) * (1.0 - alpha)
    return reduced(weight * lookup("pow")(miss, _full(miss, gamma)) * loss, reduction)


def _focal(x, t):
    p = 1 / (1 + np.exp(-x))
    pt, at = np.where(t > 0.5, p, 1 - p), np.where(t > 0.5, 0.25, 0.75)
    return -at * (1 - pt) ** 2 * np.log(pt)


sigmoid_focal_loss.example(_cases(_focal, X, SIGN * 0.5 + 0.5))


@composite
def npair_loss(anchor, positive, label, *, l2_reg: float = 0.002):
    """Softmax cross-entropy over ``anchor @ positive.T`` with every sample of the same label as a target, averaged,
    plus ``l2_reg / 4`` times the mean squared norms of both (Sohn 2016). anchor, positive [n, size], label [n]."""
    if anchor.rank != 2 or positive.rank != 2 or label.rank != 1:
        found = f"{anchor.type}, {positive.type} and {label.type}"
        raise ProgramError(f"npair_loss takes [n, size] twice and labels [n], not {found}", "shape_mismatch")
    column = lookup("unsqueeze")(label, axes=(1,))
    same = lookup("cast")(lookup("equal")(column, lookup("unsqueeze")(label, axes=(0,))), dtype=anchor.dtype)
    target = same / lookup("reduce_sum")(same, axes=(1,), keepdims=True)
    scores = lookup("matmul")(anchor, positive, transpose_y=True)
    each = lookup("softmax_with_cross_entropy")(scores, target, soft_label=True, reduction="mean")
    size = lookup("reduce_sum")(lookup("square")(anchor) + lookup("square")(positive), axes=(1,))
    return each + lookup("reduce_mean")(size) * (l2_reg / 4)


def _npair(a, p, label, l2_reg=0.002):
    target = (label[:, None] == label) / (label[:, None] == label).sum(1, keepdims=True)
    scores = a @ p.T
    each = -(target * (scores - np.log(np.exp(scores).sum(1, keepdims=True)))).sum(1)
    return each.mean() + l2_reg / 4 * ((a**2).sum(1) + (p**2).sum(1)).mean()


npair_loss.example(
    lambda: [
        Example((X, Y, np.array([3, 3])), (_npair(X, Y, np.array([3, 3])),)),
        Example((X.T, Y.T, np.array([1, 2, 1])), (_npair(X.T, Y.T, np.array([1, 2, 1]), 0.5),), {"l2_reg": 0.5}),
        Example((X[:1], Y[:1], np.array([0])), (_npair(X[:1], Y[:1], np.array([0])),)),
    ]
)


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
    """``exp(x) - label * x``, the negative log-likelihood of counts whose expected value has the logarithm x.

    log_input: false if x is the expected value itself: ``x - label * log(x + epsilon)``.
    full:      add ``label * log(label) - label + log(2 pi label) / 2``, Stirling's log(label!), where label > 1.
    """
    each = lookup("exp")(x) - label * x if log_input else x - label * lookup("log")(x + epsilon)
    if full:
        many = lookup("greater_than")(label, _full(label, 1.0))
        safe = lookup("where")(many, label, _full(label, 1.0))
        stirling = safe * lookup("log")(safe) - safe + lookup("log")(safe * (2.0 * math.pi)) * 0.5
        each = each + lookup("where")(many, stirling, _zero(stirling))
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
    ]
)


@composite
def gaussian_nll_loss(x, label, variance, *, full: bool = False, epsilon: float = 1e-6, reduction: Reduction = "mean"):
    """``(log(v) + (x - label) ** 2 / v) / 2`` with v = max(variance, epsilon) (Nix and Weigend 1994).

    A variance below `epsilon` gets no gradient. full: add ``log(2 pi) / 2``.
    """
    _positive(epsilon=epsilon)
    v = lookup("clip")(variance, min=epsilon)
    each = (lookup("log")(v) + lookup("square")(x - label) / v) * 0.5
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
