"""More losses. Each gives one value for each element or row unless `reduction` says otherwise."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from core.errors import ProgramError
from core.ops.index import check_index
from core.ops.types import axis_of
from core.registry import Example, composite, lookup, op

__all__: list[str] = []

Reduction = Literal["none", "mean", "sum"]

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
Y = np.array([[0.6, -1.0, 2.2], [1.5, 3.0, 0.5]])
P = np.array([[0.2, 0.5, 0.3], [0.7, 0.1, 0.2]])
T = np.array([[0.3, 0.3, 0.4], [0.5, 0.2, 0.3]])
SIGN = np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]])
EMPTY = X[:0]


def _reduce(each, reduction: Reduction):
    if reduction == "none":
        return each
    return lookup("reduce_mean" if reduction == "mean" else "reduce_sum")(each)


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
    return _reduce(lookup("abs")(x - label), reduction)


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
    return _reduce(_huber(x - label, delta), reduction)


huber_loss.example(
    _cases(lambda x, y: np.where(abs(x - y) <= 0.7, (x - y) ** 2 / 2, 0.7 * (abs(x - y) - 0.35)), X, Y, delta=0.7)
)


@composite
def smooth_l1_loss(x, label, *, delta: float = 1.0, reduction: Reduction = "mean"):
    """``d ** 2 / (2 delta)`` for ``|d| <= delta``, else ``|d| - delta / 2`` (Girshick 2015): `huber_loss` / delta."""
    _positive(delta=delta)
    return _reduce(_huber(x - label, delta) / delta, reduction)


smooth_l1_loss.example(
    _cases(
        lambda x, y: np.where(abs(x - y) <= 0.7, (x - y) ** 2 / 1.4, abs(x - y) - 0.35),
        X, Y, delta=0.7, reduction="none",
    )
)  # fmt: skip


@composite
def cross_entropy(p, label, *, soft_label: bool = False, ignore_index: int = -100, axis: int = -1):
    """``-log(p[label])`` for each row of probabilities p, or ``-sum(label * log(p))`` for soft labels.

    Labels and results as with `softmax_with_cross_entropy`, which takes logits and is the better choice for training.
    """
    at = axis_of(axis, p.rank)
    if soft_label:
        return -lookup("reduce_sum")(label * lookup("log")(p), axes=(at,), keepdims=True)
    check_index(label.type, "label")
    kept = label.rank == p.rank
    index = label if kept else lookup("unsqueeze")(label, axes=(at,))
    ignored = lookup("equal")(index, _full(index, ignore_index))
    picked = lookup("take_along_axis")(p, lookup("where")(ignored, _zero(index), index), axis=at)
    loss = -lookup("log")(lookup("where")(ignored, _full(picked, 1.0), picked))
    return loss if kept else lookup("squeeze")(loss, axes=(at,))


cross_entropy.example(
    lambda: [
        Example((P, np.array([2, 0])), (-np.log(P[[0, 1], [2, 0]]),)),
        Example((P, np.array([[2], [-100]])), (np.array([[-np.log(0.3)], [0.0]]),)),
        Example((P.T, np.array([2, 0])), (-np.log(P[[0, 1], [2, 0]]),), {"axis": 0}),
        Example((P, T), (-(T * np.log(P)).sum(1, keepdims=True),), {"soft_label": True}),
        Example((P[:0], np.zeros(0, int)), (np.zeros(0),)),
    ]
)


@composite
def nll_loss(x, label, weight=None, *, ignore_index: int = -100, reduction: Reduction = "mean"):
    """``-weight[label] * x[label]`` for rows of log-probabilities x [n, classes].

    The mean is weighted: the sum divided by the sum of the weights of the labels that are not `ignore_index`.
    """
    check_index(label.type, "label")
    if x.rank != 2 or label.rank != 1:
        raise ProgramError(f"nll_loss takes [n, classes] and [n], not {x.type} and {label.type}", "shape_mismatch")
    ignored = lookup("equal")(label, _full(label, ignore_index))
    safe = lookup("where")(ignored, _zero(label), label)
    picked = lookup("take_along_axis")(x, lookup("unsqueeze")(safe, axes=(1,)), axis=1)
    each = lookup("squeeze")(picked, axes=(1,))
    share = _full(each, 1.0) if weight is None else lookup("gather")(weight, safe)
    share = lookup("where")(ignored, _zero(share), share)
    loss = -(each * share)
    if reduction == "mean":
        return lookup("reduce_sum")(loss) / lookup("reduce_sum")(share)
    return _reduce(loss, reduction)


_LOG, _W = np.log(P), np.array([1.0, 2.0, 0.5])
nll_loss.example(
    lambda: [
        Example((_LOG, np.array([2, 0])), (-(_LOG[0, 2] + _LOG[1, 0]) / 2,)),
        Example((_LOG, np.array([2, 0]), _W), (-(0.5 * _LOG[0, 2] + _LOG[1, 0]) / 1.5,)),
        Example((_LOG, np.array([2, -100])), (np.array([-_LOG[0, 2], 0.0]),), {"reduction": "none"}),
        Example((_LOG[:0], np.zeros(0, int)), (np.array(0.0),), {"reduction": "sum"}),
    ]
)


@composite
def bce_loss(p, label, weight=None, *, reduction: Reduction = "mean"):
    """``-weight * (label * log(p) + (1 - label) * log(1 - p))``; a logarithm is not below -100, as p may be 0 or 1."""

    def log(x):
        return lookup("clip")(lookup("log")(x), min=-100.0)

    each = -(label * log(p) + (1.0 - label) * log(1.0 - p))
    return _reduce(each if weight is None else each * weight, reduction)


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
    return _reduce(each, reduction)


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
    return _reduce(lookup("relu")(margin - label * (left - right)), reduction)


margin_rank_loss.example(_cases(lambda s, x, y: np.maximum(0, 0.2 - s * (x - y)), SIGN, X, Y, margin=0.2))


@composite
def cos_sim(x, y, *, axis: int = -1, epsilon: float = 0.0):
    """``sum(x * y) / (norm(x) * norm(y))`` along `axis`. A vector of zeros has the similarity 0, and no gradient."""
    at = axis_of(axis, x.rank)
    sums = {"axes": (at,), "keepdims": False}
    xx, yy = (lookup("reduce_sum")(lookup("square")(v), **sums) for v in (x, y))
    square = xx * yy
    some = lookup("greater_than")(square, _full(square, epsilon * epsilon))
    safe = lookup("where")(some, square, _full(square, 1.0))
    dot = lookup("reduce_sum")(x * y, **sums)
    return lookup("where")(some, dot * lookup("rsqrt")(safe), _zero(dot))


def _cos(x, y, axis=-1):
    return (x * y).sum(axis) / np.sqrt((x**2).sum(axis) * (y**2).sum(axis))


cos_sim.example(
    lambda: [
        Example((X, Y), (_cos(X, Y),)),
        Example((X, Y), (_cos(X, Y, 0),), {"axis": 0}),
        Example((X[0], Y[0]), (_cos(X[0], Y[0]),)),
        Example((0 * X, Y), (np.zeros(2),), smooth=False),
        Example((EMPTY, EMPTY), (np.zeros(0),)),
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

    return _reduce(lookup("relu")(distance(anchor, positive) - distance(anchor, negative) + margin), reduction)


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
    p = lookup("sigmoid")(x)
    loss = lookup("softplus")(x) - x * label
    miss = p + label - p * label * 2.0
    weight = label * alpha + (1.0 - label) * (1.0 - alpha)
    return _reduce(weight * lookup("pow")(miss, _full(miss, gamma)) * loss, reduction)


def _focal(x, t):
    p = 1 / (1 + np.exp(-x))
    pt, at = np.where(t > 0.5, p, 1 - p), np.where(t > 0.5, 0.25, 0.75)
    return -at * (1 - pt) ** 2 * np.log(pt)


sigmoid_focal_loss.example(_cases(_focal, X, SIGN * 0.5 + 0.5))


@composite
def bpr_loss(x, label):
    """For each row the mean over the other classes of ``-log(sigmoid(x[label] - x[other]))`` (Rendle et al. 2009)."""
    check_index(label.type, "label")
    if x.rank != 2 or x.shape[1] < 2 or label.rank != 1:
        wanted = "[n, a known number of classes] and [n]"
        raise ProgramError(f"bpr_loss takes {wanted}, not {x.type} and {label.type}", "shape_mismatch")
    column = lookup("unsqueeze")(label, axes=(1,))
    picked = lookup("take_along_axis")(x, column, axis=1)
    others = lookup("cast")(
        lookup("logical_not")(lookup("one_hot")(label, depth=x.shape[1], dtype="bool")), dtype=x.dtype
    )
    each = lookup("softplus")(x - picked) * others
    return lookup("reduce_sum")(each, axes=(1,)) / float(x.shape[1] - 1)


def _bpr(x, label):
    rows = [
        np.mean([np.log1p(np.exp(v - row[k])) for j, v in enumerate(row) if j != k])
        for row, k in zip(x, label, strict=True)
    ]
    return np.array(rows)


bpr_loss.example(
    lambda: [
        Example((X, np.array([2, 0])), (_bpr(X, [2, 0]),)),
        Example((X[:, :2], np.array([1, 1])), (_bpr(X[:, :2], [1, 1]),)),
        Example((EMPTY, np.zeros(0, int)), (np.zeros(0),)),
    ]
)


@op(no_gradient="it counts")
def accuracy(xp, x, label, *, k: int = 1):
    """The share of rows of scores x [n, classes] whose label [n] or [n, 1] is among the `k` best; 0 without rows.

    Of equal scores the first in order are the best.
    """
    best = xp.argsort(-x, axis=1, kind="stable")[:, :k]
    hit = xp.any(best == label.reshape(-1, 1), axis=1)
    return xp.asarray(hit.sum() / max(len(hit), 1), dtype=x.dtype)


@accuracy.infer
def accuracy_infer(x, label, *, k):
    from core.ir import TensorType

    check_index(label, "label")
    if not x.is_float or x.rank != 2 or label.rank not in (1, 2) or k < 1:
        raise ProgramError(f"accuracy takes scores [n, classes] and labels [n], not {x} and {label}", "shape_mismatch")
    return TensorType((), x.dtype)


accuracy.example(
    lambda: [
        Example((X, np.array([2, 0])), (np.array(0.5),)),
        Example((X, np.array([[0], [0]])), (np.array(1.0),), {"k": 2}),
    ]
)
