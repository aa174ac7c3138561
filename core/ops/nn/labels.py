"""Losses whose labels are class numbers."""

from __future__ import annotations

import math

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.ranges import Probability
from core.ops.common.types import axis_of, same_dtype
from core.ops.elementwise.arithmetic import cast
from core.ops.elementwise.logic import equal, logical_and, logical_not, not_equal, where
from core.ops.elementwise.math import log, softplus
from core.ops.indexing.gather import check_index, gather, one_hot
from core.ops.indexing.scatter_gather import take_along_axis
from core.ops.nn.softmax_loss import Reduction, log_softmax, reduced
from core.ops.reduction.sums import inverse_count, reduce_sum
from core.ops.shape.agreeing import agreed
from core.ops.shape.creation import fill_zeros_like, full_like
from core.ops.shape.reshape import squeeze, unsqueeze

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
P = np.array([[0.2, 0.5, 0.3], [0.7, 0.1, 0.2]])
T = np.array([[0.3, 0.3, 0.4], [0.5, 0.2, 0.3]])
W = np.array([1.0, 2.0, 0.5])
CUBE = np.sin(np.arange(12.0)).reshape(2, 3, 2)
LOG = np.log(P)


@op(outputs=("index", "counted"), no_gradient="its results depend on integers only")
def class_index(xp, label, x, *, axis: int = -1, ignore_index: int = -100):
    """Labels as positions along `axis` of x, ready for `take_along_axis`, and a bool mask of the labels that count.

    A label has the shape of x without `axis`, or with `axis` of size 1. Both results have `axis` of size 1. A label
    equal to `ignore_index` does not count, and its position is 0. Any other label outside the classes is an error of
    the run (index_out_of_range). x gives only its shape.
    """
    at = axis % x.ndim
    wanted = (*x.shape[:at], 1, *x.shape[at + 1 :])
    if label.shape not in (wanted, wanted[:at] + wanted[at + 1 :]):
        raise ExecutionError(
            f"labels of shape {list(label.shape)} do not match the rows of {list(x.shape)}", "shape_mismatch"
        )
    column = label.reshape(wanted)
    counted = column != ignore_index
    classes = x.shape[at]
    wrong = counted & ((column < 0) | (column >= classes))
    if label.size and bool(wrong.any()):
        found = int(column[wrong].ravel()[0])
        raise ExecutionError(f"label {found} is outside 0 to {classes - 1}", "index_out_of_range")
    return xp.where(counted, column, column.dtype.type(0)), counted


@class_index.infer
def class_index_infer(label, x, *, axis, ignore_index):
    check_index(label, "label")
    at = axis_of(axis, x.rank)
    wanted = (*x.shape[:at], 1, *x.shape[at + 1 :])
    shape = wanted if label.rank == x.rank else wanted[:at] + wanted[at + 1 :]
    if len(shape) != label.rank or any(m != n and -1 not in (m, n) for m, n in zip(shape, label.shape, strict=True)):
        raise ProgramError(f"labels {label} do not match {x} along axis {at}", "shape_mismatch")
    return TensorType(wanted, label.dtype), TensorType(wanted, "bool")


class_index.example(
    lambda: [
        Example((np.array([2, 0]), X), (np.array([[2], [0]]), np.array([[True], [True]]))),
        Example((np.array([[-1], [0]]), X), (np.array([[0], [0]]), np.array([[False], [True]])), {"ignore_index": -1}),
        Example((np.array([1, 0, 1]), X), (np.array([[1, 0, 1]]), np.ones((1, 3), bool)), {"axis": 0}),
    ]
)


def _cross_entropy_terms(x, label, weight, soft_label, ignore_index, axis, reduction, log=None, smoothing=0.0):
    """The cross-entropy: ``-weight * log(x)`` at the label, or the sum over soft labels.

    smoothing: the share of each label that is spread evenly over all classes, for logarithms x.

    log: the logarithm, applied only to the selected elements, because other elements of x may be 0. None if x holds
    logarithms already.
    """
    log_zero = full_like(x, value=1.0) if log else fill_zeros_like(x)
    if soft_label:
        if label.rank != x.rank or label.dtype != x.dtype:
            raise ProgramError(f"soft labels must have rank and dtype of {x.type}, not {label.type}", "type_mismatch")
        if smoothing:
            label = label * (1.0 - smoothing) + inverse_count(x, axes=(axis,)) * smoothing
        zero = fill_zeros_like(label)
        impossible = equal(x, full_like(x, value=0.0 if log else -math.inf))
        # 0 * log(0) counts as 0
        unused = logical_and(equal(label, zero), impossible)
        safe = where(unused, log_zero, x)
        if weight is not None:
            label = label * _along(weight, axis, x)
        terms = label * (log(safe) if log else safe)
        return reduced(-reduce_sum(terms, axes=(axis,), keepdims=True), reduction)
    index, counted = class_index(label, x, axis=axis, ignore_index=ignore_index)
    selected = take_along_axis(x, index, axis=axis)
    one, none = full_like(selected, value=1.0), fill_zeros_like(selected)
    safe = where(counted, selected, one if log else none)
    factor = one if weight is None else gather(_vector(weight, x), index)
    factor = where(counted, factor, none)
    loss = -(log(safe) if log else safe)
    loss = loss if weight is None else loss * factor
    if smoothing:
        every = x if weight is None else x * _along(weight, axis, x)
        spread = -reduce_sum(every, axes=(axis,), keepdims=True) * inverse_count(x, axes=(axis,))
        loss = loss * (1.0 - smoothing) + where(counted, spread, none) * smoothing
    if reduction == "mean":
        total = reduce_sum(factor)
        nonzero = not_equal(total, fill_zeros_like(total))
        return reduce_sum(loss) / where(nonzero, total, full_like(total, value=1.0))
    return reduced(loss if label.rank == x.rank else squeeze(loss, axes=(axis,)), reduction)


def _vector(weight, x):
    if weight.rank != 1:
        raise ProgramError(f"weight must be a vector with one element per class, not {weight.type}", "shape_mismatch")
    same_dtype(weight.type, x.type)
    return weight


def _along(weight, axis, x):
    """The class weights, shaped to broadcast along `axis` of x."""
    others = tuple(i for i in range(x.rank) if i != axis)
    return unsqueeze(_vector(weight, x), axes=others) if others else weight


@composite(outputs=("loss",))
def softmax_with_cross_entropy(
    logits,
    label,
    weight=None,
    *,
    soft_label: bool = False,
    ignore_index: int = -100,
    axis: int = -1,
    reduction: Reduction = "none",
    label_smoothing: Probability = 0.0,
):
    """Cross-entropy of a softmax over logits: ``loss = -sum(label * log_softmax(logits))`` along `axis`, one value per
    row.

    Hard labels (the default) are int32 or int64 class numbers, with the shape of `logits` without `axis`, or with
    `axis` of size 1. The loss has the shape of the label. A label equal to `ignore_index` gives loss 0 and gradient 0.
    Any other label outside the classes is an error of the run (index_out_of_range).
    Soft labels have the shape of `logits`, and the loss keeps `axis` with size 1.

    - `weight`: [classes], a factor for each class.
    - `reduction`: with hard labels, `mean` divides the sum by the total weight of the labels that count, and gives 0 if
      there are none. With soft labels it is the mean over the rows.
    - `label_smoothing`: the share of each label that is spread evenly over all classes (Szegedy et al. 2016).
    """
    at = axis_of(axis, logits.rank)
    log_p = log_softmax(logits, axis=at)
    return _cross_entropy_terms(log_p, label, weight, soft_label, ignore_index, at, reduction, None, label_smoothing)


def _log_p(x, axis=-1):
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


_SOFT = np.array([[0.2, 0.3, 0.5], [1.0, 0.5, 0.0]])


def _ce_examples():
    log_p = _log_p(X)
    rows = -log_p[[0, 1], [2, 0]]
    yield Example((X, np.array([2, 0])), (rows,))
    yield Example((X, np.array([[2], [0]])), (rows[:, None],))
    yield Example((X, np.array([2, -1])), (np.array([rows[0], 0.0]),), {"ignore_index": -1})
    yield Example((X.T, np.array([2, 0])), (rows,), {"axis": 0})
    yield Example((X, _SOFT), (-(_SOFT * log_p).sum(1, keepdims=True),), {"soft_label": True})
    yield Example((X, np.array([2, 0]), W), ((0.5 * rows[0] + rows[1]) / 1.5,), {"reduction": "mean"})
    yield Example((X, np.array([2, -100])), (rows[0],), {"reduction": "mean"})
    yield Example((X, _SOFT, W), (-(_SOFT * W * log_p).sum(),), {"soft_label": True, "reduction": "sum"})
    deep = _log_p(CUBE, 1)
    selected = [[deep[0, 2, 0], deep[0, 0, 1]], [deep[1, 1, 0], deep[1, 1, 1]]]
    yield Example((CUBE, np.array([[2, 0], [1, 1]])), (-np.array(selected),), {"axis": 1})
    yield Example((X[:0], np.zeros(0, int)), (np.zeros(0),))
    smooth = 0.8 * np.array([[0, 0, 1.0], [1, 0, 0]]) + 0.2 / 3
    yield Example((X, np.array([2, 0])), (-(smooth * log_p).sum(1),), {"label_smoothing": 0.2})
    every = -(0.8 * W * np.array([[0, 0, 1.0], [1, 0, 0]]) + 0.2 / 3 * W) * log_p
    both = {"label_smoothing": 0.2, "reduction": "mean"}
    yield Example((X, np.array([2, 0]), W), (every.sum() / 1.5,), both)
    spread = -((0.9 * _SOFT + 0.1 / 3) * log_p).sum(1, keepdims=True)
    yield Example((X, _SOFT), (spread,), {"soft_label": True, "label_smoothing": 0.1})


softmax_with_cross_entropy.example(_ce_examples)


@composite
def cross_entropy(
    p,
    label,
    weight=None,
    *,
    soft_label: bool = False,
    ignore_index: int = -100,
    axis: int = -1,
    reduction: Reduction = "none",
):
    """Cross-entropy of probabilities p: ``-log(p[label])`` for each row, or ``-sum(label * log(p))`` for soft
    labels.

    Labels, weights and results are as in `softmax_with_cross_entropy`. For training, prefer that op: it takes logits
    and is more accurate. A probability of 0 at the label gives inf. A probability of 0 elsewhere has no effect.
    """
    at = axis_of(axis, p.rank)
    return _cross_entropy_terms(p, label, weight, soft_label, ignore_index, at, reduction, log)


cross_entropy.example(
    lambda: [
        Example((P, np.array([2, 0])), (-LOG[[0, 1], [2, 0]],)),
        Example((P, np.array([[2], [-100]])), (np.array([[-np.log(0.3)], [0.0]]),)),
        Example((P.T, np.array([2, 0])), (-LOG[[0, 1], [2, 0]],), {"axis": 0}),
        Example((P, T), (-(T * LOG).sum(1, keepdims=True),), {"soft_label": True}),
        Example((P, np.array([2, 0]), W), (-(0.5 * LOG[0, 2] + LOG[1, 0]) / 1.5,), {"reduction": "mean"}),
        Example((P[:0], np.zeros(0, int)), (np.zeros(0),)),
    ]
)


@composite
def nll_loss(x, label, weight=None, *, ignore_index: int = -100, reduction: Reduction = "mean"):
    """Negative log-likelihood: ``-weight[label] * x[label]`` for log-probabilities x.

    x is [n, classes, ...] or [classes]; the labels have that shape without the class axis. A label equal to
    `ignore_index` gives loss 0 and gradient 0.

    - `reduction`: `mean` divides the sum by the total weight of the labels that count, and gives 0 if there are none.
    """
    if x.rank == 0 or label.rank != x.rank - 1:
        wanted = "[n, classes, ...] and labels [n, ...]"
        raise ProgramError(f"nll_loss takes {wanted}, not {x.type} and {label.type}", "shape_mismatch")
    return _cross_entropy_terms(x, label, weight, False, ignore_index, min(1, x.rank - 1), reduction)


nll_loss.example(
    lambda: [
        Example((LOG, np.array([2, 0])), (-(LOG[0, 2] + LOG[1, 0]) / 2,)),
        Example((LOG, np.array([2, 0]), W), (-(0.5 * LOG[0, 2] + LOG[1, 0]) / 1.5,)),
        Example((LOG, np.array([2, -100])), (np.array([-LOG[0, 2], 0.0]),), {"reduction": "none"}),
        Example((CUBE, np.array([[2, -100], [1, 1]])), (-(CUBE[0, 2, 0] + CUBE[1, 1, 0] + CUBE[1, 1, 1]) / 3,)),
        Example((LOG[0], np.array(1)), (-LOG[0, 1],)),
        Example((LOG[:0], np.zeros(0, int)), (np.array(0.0),)),
    ]
)


@composite
def bpr_loss(x, label):
    """Bayesian personalised ranking loss (Rendle et al. 2009): the mean of ``-log(sigmoid(x[label] - x[other]))``.

    The mean is over all other classes of a row. x is [n, classes] and label [n].
    """
    check_index(label.type, "label")
    if x.rank != 2 or x.shape[1] < 2 or label.rank != 1:
        wanted = "[n, a known number of classes] and [n]"
        raise ProgramError(f"bpr_loss takes {wanted}, not {x.type} and {label.type}", "shape_mismatch")
    x, label = agreed(x, label, (0, 0))
    column = unsqueeze(label, axes=(1,))
    selected = take_along_axis(x, column, axis=1)
    others = cast(logical_not(one_hot(label, depth=x.shape[1], dtype="bool")), dtype=x.dtype)
    each = softplus(x - selected) * others
    return reduce_sum(each, axes=(1,)) / float(x.shape[1] - 1)


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
        Example((X[:0], np.zeros(0, int)), (np.zeros(0),)),
    ]
)
