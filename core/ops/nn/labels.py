"""Losses of class numbers: cross-entropies, and what finds the class of a row."""

from __future__ import annotations

import math

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.types import axis_of, same_dtype
from core.ops.elementwise.arithmetic import cast
from core.ops.elementwise.logic import equal, logical_and, logical_not, not_equal, where
from core.ops.elementwise.math import log, softplus
from core.ops.indexing.gather import check_index, gather, one_hot
from core.ops.indexing.scatter_gather import take_along_axis
from core.ops.nn.softmax_loss import Reduction, log_softmax, reduced
from core.ops.reduction.sums import reduce_sum
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
    """Labels as positions along `axis` of x, ready for `take_along_axis`, and whether each counts.

    A label is shaped like x without `axis`, or with it as 1; the results have it as 1. A label equal to `ignore_index`
    does not count, and its position is 0. Any other that is no class of x is an error. x gives only its shape.
    """
    at = axis % x.ndim
    wanted = (*x.shape[:at], 1, *x.shape[at + 1 :])
    if label.shape not in (wanted, wanted[:at] + wanted[at + 1 :]):
        raise ExecutionError(
            f"labels of shape {list(label.shape)} do not fit rows of {list(x.shape)}", "shape_mismatch"
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
        raise ProgramError(f"labels of {x} along axis {at} cannot be {label}", "shape_mismatch")
    return TensorType(wanted, label.dtype), TensorType(wanted, "bool")


class_index.example(
    lambda: [
        Example((np.array([2, 0]), X), (np.array([[2], [0]]), np.array([[True], [True]]))),
        Example((np.array([[-1], [0]]), X), (np.array([[0], [0]]), np.array([[False], [True]])), {"ignore_index": -1}),
        Example((np.array([1, 0, 1]), X), (np.array([[1, 0, 1]]), np.ones((1, 3), bool)), {"axis": 0}),
    ]
)


def _nats(x, label, weight, soft_label, ignore_index, axis, reduction, log=None):
    """``-weight * log(x)`` at the label, or of soft labels the sum; x holds logarithms already if `log` is None.

    `log` is applied to what the labels pick only: elsewhere x may be 0.
    """
    certain = full_like(x, value=1.0) if log else fill_zeros_like(x)
    if soft_label:
        if label.rank != x.rank or label.dtype != x.dtype:
            raise ProgramError(f"soft labels must be like {x.type}, not {label.type}", "type_mismatch")
        zero = fill_zeros_like(label)
        impossible = equal(x, full_like(x, value=0.0 if log else -math.inf))
        # 0 * log(0) is 0
        unused = logical_and(equal(label, zero), impossible)
        safe = where(unused, certain, x)
        if weight is not None:
            label = label * _along(weight, axis, x)
        terms = label * (log(safe) if log else safe)
        return reduced(-reduce_sum(terms, axes=(axis,), keepdims=True), reduction)
    index, counted = class_index(label, x, axis=axis, ignore_index=ignore_index)
    picked = take_along_axis(x, index, axis=axis)
    one, none = full_like(picked, value=1.0), fill_zeros_like(picked)
    safe = where(counted, picked, one if log else none)
    share = one if weight is None else gather(_vector(weight, x), index)
    share = where(counted, share, none)
    loss = -(log(safe) if log else safe)
    loss = loss if weight is None else loss * share
    if reduction == "mean":
        total = reduce_sum(share)
        some = not_equal(total, fill_zeros_like(total))
        return reduce_sum(loss) / where(some, total, full_like(total, value=1.0))
    return reduced(loss if label.rank == x.rank else squeeze(loss, axes=(axis,)), reduction)


def _vector(weight, x):
    if weight.rank != 1:
        raise ProgramError(f"weight must be one number a class, not {weight.type}", "shape_mismatch")
    same_dtype(weight.type, x.type)
    return weight


def _along(weight, axis, x):
    """The weights of the classes along `axis` of x."""
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
):
    """``loss = -sum(label * log_softmax(logits))`` along `axis`, one value for each row.

    Hard labels (the default) are int32 or int64 class numbers, shaped like `logits` without `axis`, or with it as 1;
    the loss has the shape of the label. A label equal to `ignore_index` gives 0 and no gradient; any other outside the
    classes is an error. Soft labels are shaped like `logits`, and the loss keeps `axis` as 1.

    weight: [classes], a factor for each class. The mean of hard labels is the sum divided by the weights of those that
    count, 0 if none does; of soft labels it is the mean over the rows.
    """
    at = axis_of(axis, logits.rank)
    log_p = log_softmax(logits, axis=at)
    return _nats(log_p, label, weight, soft_label, ignore_index, at, reduction)


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
    picked = [[deep[0, 2, 0], deep[0, 0, 1]], [deep[1, 1, 0], deep[1, 1, 1]]]
    yield Example((CUBE, np.array([[2, 0], [1, 1]])), (-np.array(picked),), {"axis": 1})
    yield Example((X[:0], np.zeros(0, int)), (np.zeros(0),))


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
    """``-log(p[label])`` for each row of probabilities p, or ``-sum(label * log(p))`` for soft labels.

    Labels, weights and results as with `softmax_with_cross_entropy`, which takes logits and is the better choice for
    training. A probability of 0 at the label gives inf; one that no label asks for gives nothing.
    """
    at = axis_of(axis, p.rank)
    return _nats(p, label, weight, soft_label, ignore_index, at, reduction, log)


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
    """``-weight[label] * x[label]`` for log-probabilities x [n, classes, ...] or [classes], labels without that axis.

    The mean is weighted: the sum divided by the sum of the weights of the labels that are not `ignore_index`, 0 if
    there are none.
    """
    if x.rank == 0 or label.rank != x.rank - 1:
        wanted = "[n, classes, ...] and labels [n, ...]"
        raise ProgramError(f"nll_loss takes {wanted}, not {x.type} and {label.type}", "shape_mismatch")
    return _nats(x, label, weight, False, ignore_index, min(1, x.rank - 1), reduction)


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
    """For each row the mean over the other classes of ``-log(sigmoid(x[label] - x[other]))`` (Rendle et al. 2009)."""
    check_index(label.type, "label")
    if x.rank != 2 or x.shape[1] < 2 or label.rank != 1:
        wanted = "[n, a known number of classes] and [n]"
        raise ProgramError(f"bpr_loss takes {wanted}, not {x.type} and {label.type}", "shape_mismatch")
    column = unsqueeze(label, axes=(1,))
    picked = take_along_axis(x, column, axis=1)
    others = cast(logical_not(one_hot(label, depth=x.shape[1], dtype="bool")), dtype=x.dtype)
    each = softplus(x - picked) * others
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
