"""Losses with a margin: of pairs, of one class against the others, and of several classes at once."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from core.ir import TensorType
from core.ir.bounds import Bounds
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.common.types import matches
from core.ops.elementwise.arithmetic import cast, neg
from core.ops.elementwise.logic import (
    equal,
    greater_equal,
    greater_than,
    logical_and,
    logical_not,
    where,
    where_or_zero,
)
from core.ops.elementwise.math import relu, softplus, square
from core.ops.indexing.gather import check_index, gather
from core.ops.indexing.scatter_gather import take_along_axis
from core.ops.nn.labels import class_index
from core.ops.nn.pair_losses import cos_sim
from core.ops.nn.softmax_loss import Reduction, logistic, reduced
from core.ops.reduction.cumulative import cumprod
from core.ops.reduction.sums import inverse_count, reduce_max, reduce_mean, reduce_sum
from core.ops.shape.agreeing import agreed
from core.ops.shape.creation import fill_zeros_like
from core.ops.shape.reshape import unsqueeze

__all__: list[str] = []

NONE = -(2**62)
"""A label that no class has: every label counts."""

X = np.array([[1.0, -2.0, 3.0, 0.3], [0.5, 1.6, -1.5, 0.8]])
Y = np.array([[0.6, -1.0, 2.2, 0.1], [1.5, 3.0, 0.5, -0.7]])
SIGN = np.array([[1.0, -1.0, 1.0, -1.0], [-1.0, 1.0, -1.0, -1.0]])
CLASSES = np.array([2, 0])
SETS = np.array([[2, 0, -1, 1], [3, -1, 0, 0]])
W = np.array([1.0, 2.0, 0.5, 0.25])


def _positive(label):
    return greater_than(label, fill_zeros_like(label))


@composite
def hinge_embedding_loss(x, label, *, margin: float = 1.0, reduction: Reduction = "mean"):
    """Loss of distances x: ``x`` where the label is positive, else ``max(0, margin - x)``. At the kink the gradient is
    0.
    """
    return reduced(where(_positive(label), x, relu(margin - x)), reduction)


@composite
def cosine_embedding_loss(x, y, label, *, margin: float = 0.0, reduction: Reduction = "mean"):
    """Loss of pairs of vectors along the last axis: ``1 - cos_sim(x, y)`` where the label is positive, else ``max(0,
    cos_sim(x, y) - margin)``. At the kink the gradient is 0.
    """
    near = cos_sim(x, y)
    return reduced(where(_positive(label), 1.0 - near, relu(near - margin)), reduction)


@composite
def soft_margin_loss(x, label, *, reduction: Reduction = "mean"):
    """Logistic loss for labels 1 and -1: ``log(1 + exp(-label * x))``, without overflow."""
    return reduced(softplus(neg(label * x)), reduction)


@composite
def multi_margin_loss(
    x,
    label,
    weight=None,
    *,
    p: Annotated[int, Bounds(ge=1, le=2)] = 1,
    margin: float = 1.0,
    reduction: Reduction = "mean",
):
    """Hinge loss of classes: the sum over all other classes j of ``max(0, margin - x[label] + x[j]) ** p``, divided by
    the number of classes. x is [n, classes] and label [n]. A label outside the classes is an error of the run
    (index_out_of_range).

    - `weight`: [classes], a factor for each label.
    """
    check_index(label.type, "label")
    if x.rank != 2 or not matches(label.type, TensorType(x.shape[:1], label.dtype)):
        raise ProgramError(f"needs [n, classes] and [n], not {x.type} and {label.type}", "shape_mismatch")
    column, _ = class_index(label, x, axis=1, ignore_index=NONE)
    each = relu(margin - take_along_axis(x, column, axis=1) + x)
    each = square(each) if p == 2 else each
    if weight is not None:
        each = each * gather(weight, column)
    place = x.builder.emit("roll_positions", x, shift=0, axis=1)
    others = logical_not(equal(place, cast(column, dtype="int64")))
    return reduced(reduce_sum(where_or_zero(others, each), axes=(1,)) * inverse_count(x, axes=(1,)), reduction)


@composite
def multi_label_margin_loss(x, label, *, reduction: Reduction = "mean"):
    """Hinge loss of sets of classes: the sum over classes j of the set and i outside of it of ``max(0, 1 - x[j] +
    x[i])``, divided by the number of classes.

    x and label are [n, classes]. A row of label lists the classes of the set, different ones; it ends at the first -1.
    """
    check_index(label.type, "label")
    if x.rank != 2 or not matches(label.type, TensorType(x.shape, label.dtype)):
        raise ProgramError(f"needs x and labels [n, classes], not {x.type} and {label.type}", "shape_mismatch")
    x, label = agreed(x, label, (0, 0), (1, 1))
    listed = cast(greater_equal(label, fill_zeros_like(label)), dtype="int64")
    valid = greater_than(cumprod(listed, axis=1), fill_zeros_like(listed))
    index = where(valid, label, fill_zeros_like(label))
    place = x.builder.emit("roll_positions", x, shift=0, axis=1)
    hit = logical_and(equal(unsqueeze(cast(index, dtype="int64"), axes=(2,)), place), unsqueeze(valid, axes=(2,)))
    members = reduce_max(cast(hit, dtype="int64"), axes=(1,))
    outside = equal(members, fill_zeros_like(members))
    chosen = unsqueeze(take_along_axis(x, index, axis=1), axes=(2,))
    each = relu(1.0 - chosen + unsqueeze(x, axes=(1,)))
    pairs = logical_and(unsqueeze(valid, axes=(2,)), unsqueeze(outside, axes=(1,)))
    return reduced(reduce_sum(where_or_zero(pairs, each), axes=(1, 2)) * inverse_count(x, axes=(1,)), reduction)


@composite
def multi_label_soft_margin_loss(x, label, weight=None, *, reduction: Reduction = "mean"):
    """Mean over the last axis, the classes, of the binary cross-entropy of logits: ``log(1 + exp(x)) - label * x``.

    - `weight`: [classes], a factor for each class.
    """
    each = logistic(x, label)
    each = each if weight is None else each * weight
    return reduced(reduce_mean(each, axes=(-1,)), reduction)


def _cosine(x, y):
    return (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1))


def _multi_margin(x, label, p=1, margin=1.0, weight=None):
    out = np.zeros(len(x))
    for i, k in enumerate(label):
        for j in range(x.shape[1]):
            if j != k:
                out[i] += max(0, margin - x[i, k] + x[i, j]) ** p * (1 if weight is None else weight[k]) / x.shape[1]
    return out


def _sets(x, label):
    out = np.zeros(len(x))
    for i, row in enumerate(label.tolist()):
        members = row[: row.index(-1)] if -1 in row else row
        for j in members:
            out[i] += sum(max(0, 1 - x[i, j] + x[i, k]) for k in range(x.shape[1]) if k not in members) / x.shape[1]
    return out


hinge_embedding_loss.example(
    lambda: [
        Example((Y, SIGN), (np.where(SIGN > 0, Y, np.maximum(0, 1 - Y)).mean(),)),
        Example((Y[0], SIGN[0]), (np.where(SIGN[0] > 0, Y[0], np.maximum(0, 2 - Y[0])),),
                {"margin": 2.0, "reduction": "none"}),
        Example((Y[:0], SIGN[:0]), (np.array(0.0),), {"reduction": "sum"}),
    ]
)  # fmt: skip
cosine_embedding_loss.example(
    lambda: [
        Example(
            (X, Y, SIGN[:, 0]), (np.where(SIGN[:, 0] > 0, 1 - _cosine(X, Y), np.maximum(0, _cosine(X, Y))).mean(),)
        ),
        Example((X[0], Y[0], np.array(-1)), (_cosine(X[0], Y[0]) - 0.1,), {"margin": 0.1, "reduction": "none"}),
        Example((X[:0], Y[:0], SIGN[:0, 0]), (np.array(0.0),), {"reduction": "sum"}),
    ]
)
soft_margin_loss.example(
    lambda: [
        Example((X, SIGN), (np.log1p(np.exp(-X * SIGN)).mean(),)),
        Example((X[0], SIGN[0]), (np.log1p(np.exp(-X[0] * SIGN[0])),), {"reduction": "none"}),
        Example((X[:0], SIGN[:0]), (np.array(0.0),), {"reduction": "sum"}),
    ]
)
multi_margin_loss.example(
    lambda: [
        Example((X, CLASSES), (_multi_margin(X, CLASSES).mean(),)),
        Example((X, CLASSES, W), (_multi_margin(X, CLASSES, 2, 0.7, W),),
                {"p": 2, "margin": 0.7, "reduction": "none"}),
        Example((X[:1], CLASSES[:1]), (_multi_margin(X[:1], CLASSES[:1]).sum(),), {"reduction": "sum"}),
        Example((X[:0], CLASSES[:0]), (np.array(0.0),), {"reduction": "sum"}),
    ]
)  # fmt: skip
multi_label_margin_loss.example(
    lambda: [
        Example((X, SETS), (_sets(X, SETS).mean(),)),
        Example((X[:1], SETS[:1]), (_sets(X[:1], SETS[:1]),), {"reduction": "none"}),
        Example((X[:0], SETS[:0]), (np.array(0.0),), {"reduction": "sum"}),
    ]
)
multi_label_soft_margin_loss.example(
    lambda: [
        Example((X, SIGN * 0.5 + 0.5, W), (((np.log1p(np.exp(X)) - X * (SIGN > 0)) * W).mean(),)),
        Example((X[0], SIGN[0] * 0.5 + 0.5), ((np.log1p(np.exp(X[0])) - X[0] * (SIGN[0] > 0)).mean(),)),
        Example((X[:0], SIGN[:0]), (np.zeros(0),), {"reduction": "none"}),
    ]
)
