"""Losses of pairs and triples: ranking and similarity."""

from __future__ import annotations

import numpy as np

from core.ir.attr_values import Extended
from core.ir.errors import ProgramError, TypeMismatch
from core.ir.registry import Example, composite
from core.ops.common.types import axis_of
from core.ops.elementwise.arithmetic import abs_, cast, stop_gradient
from core.ops.elementwise.logic import equal, greater_than, where
from core.ops.elementwise.math import relu, rsqrt, sqrt, square
from core.ops.linalg.matmul import matmul
from core.ops.nn.labels import softmax_with_cross_entropy
from core.ops.nn.losses import cases
from core.ops.nn.softmax_loss import Reduction, logistic, reduced
from core.ops.reduction.statistics import norm
from core.ops.reduction.sums import reduce_max, reduce_mean, reduce_sum
from core.ops.shape.agreeing import agreed
from core.ops.shape.creation import fill_zeros_like, full_like
from core.ops.shape.pad import pad_constant
from core.ops.shape.reshape import unsqueeze

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
Y = np.array([[0.6, -1.0, 2.2], [1.5, 3.0, 0.5]])
P = np.array([[0.2, 0.5, 0.3], [0.7, 0.1, 0.2]])
T = np.array([[0.3, 0.3, 0.4], [0.5, 0.2, 0.3]])
SIGN = np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]])
EMPTY = X[:0]


def _zero(x):
    return fill_zeros_like(x)


def _full(x, value: float):
    return full_like(x, value=value)


@composite
def rank_loss(label, left, right):
    """Pairwise ranking loss of RankNet (Burges et al. 2005): ``log(1 + exp(left - right)) - label * (left -
    right)``.
    """
    return logistic(left - right, label)


rank_loss.example(
    lambda: [
        Example((t, x, y), (np.log1p(np.exp(x - y)) - t * (x - y),))
        for t, x, y in ((T, X, Y), (T[0], X[0], Y[0]), (EMPTY,) * 3)
    ]
)


@composite
def margin_rank_loss(label, left, right, *, margin: float = 0.0, reduction: Reduction = "none"):
    """Ranking loss with a margin: ``max(0, -label * (left - right) + margin)``.

    - `label`: 1 if left ranks higher, -1 if right does.

    At the kink the gradient is 0.
    """
    return reduced(relu(margin - label * (left - right)), reduction)


margin_rank_loss.example(cases(lambda s, x, y: np.maximum(0, 0.2 - s * (x - y)), SIGN, X, Y, margin=0.2))


@composite
def cos_sim(x, y, *, axis: int = -1, epsilon: float = 0.0):
    """Cosine similarity: ``sum(x * y) / (norm(x) * norm(y))`` along `axis` of x.

    A vector with a norm of at most `epsilon` gives similarity 0 and gradient 0.
    """
    axes = (axis_of(axis, x.rank) - x.rank,)
    if y.rank < -axes[0]:
        raise TypeMismatch(f"y={y.type} has no axis that lines up with axis {axis} of x={x.type}", "shape_mismatch")
    x, y = agreed(x, y, (x.rank + axes[0], y.rank + axes[0]))

    def unit(v):
        # scaled first, because squares overflow in half precision; the scale cancels, so it needs no gradient
        sizes = abs_(stop_gradient(v))
        if v.shape[axes[0]] == -1:  # the size may be 0 in the run
            sizes = pad_constant(sizes, paddings=(*(0,) * (2 * (v.rank + axes[0])), 1, *(0,) * (-2 * axes[0] - 1)))
        largest = reduce_max(sizes, axes=axes, keepdims=True)
        scaled = v / where(greater_than(largest, _zero(largest)), largest, _full(largest, 1.0))
        total = reduce_sum(square(scaled), axes=axes, keepdims=True)
        nonzero = greater_than(largest * sqrt(total), _full(total, epsilon))
        root = rsqrt(where(nonzero, total, _full(total, 1.0)))
        return scaled * where(nonzero, root, _zero(root))

    if x.shape[axes[0]] == 0 or y.shape[axes[0]] == 0:
        return reduce_sum(x * y, axes=axes)
    return reduce_sum(unit(x) * unit(y), axes=axes)


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
def triplet_margin_loss(
    anchor, positive, negative, *, margin: float = 1.0, p: Extended = 2.0, reduction: Reduction = "mean"
):
    """Triplet loss: ``max(0, d(anchor, positive) - d(anchor, negative) + margin)``.

    d is the p-norm of the difference along the last axis.
    """

    def distance(a, b):
        return norm(a - b, p=p, axes=(a.rank - 1,))

    return reduced(relu(distance(anchor, positive) - distance(anchor, negative) + margin), reduction)


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
def npair_loss(anchor, positive, label, *, l2_reg: float = 0.002):
    """N-pair loss (Sohn 2016): softmax cross-entropy over ``anchor @ positive.T``, averaged, with a norm penalty.

    Every sample with the same label is a target. The penalty is ``l2_reg / 4`` times the mean squared norms of anchor
    and positive. anchor and positive are [n, size], label [n].
    """
    if anchor.rank != 2 or positive.rank != 2 or label.rank != 1:
        found = f"{anchor.type}, {positive.type} and {label.type}"
        raise ProgramError(
            f"npair_loss takes anchor and positive [n, size] and labels [n], not {found}", "shape_mismatch"
        )
    anchor, positive = agreed(anchor, positive, (0, 0), (1, 1))
    label, anchor = agreed(label, anchor, (0, 0))
    column = unsqueeze(label, axes=(1,))
    same = cast(equal(column, unsqueeze(label, axes=(0,))), dtype=anchor.dtype)
    target = same / reduce_sum(same, axes=(1,), keepdims=True)
    scores = matmul(anchor, positive, transpose_y=True)
    each = softmax_with_cross_entropy(scores, target, soft_label=True, reduction="mean")
    size = reduce_sum(square(anchor) + square(positive), axes=(1,))
    return each + reduce_mean(size) * (l2_reg / 4)


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
