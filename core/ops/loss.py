"""Softmax and the losses."""

from __future__ import annotations

from typing import Literal

import numpy as np

from core.errors import ProgramError
from core.ops.index import check_index
from core.ops.types import axis_of
from core.registry import Example, composite, lookup

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])


def _np_softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _shifted(x, axis):
    """x minus its largest element along `axis`, which changes no result and keeps exp from overflowing."""
    top = lookup("reduce_max")(lookup("stop_gradient")(x), axes=(axis,), keepdims=True)
    return x - top


@composite
def softmax(x, *, axis: int = -1):
    """``out = exp(x) / sum(exp(x))`` along `axis`."""
    at = axis_of(axis, x.rank)
    if x.shape[at] == 0:
        return lookup("assign")(x)
    e = lookup("exp")(_shifted(x, at))
    return e / lookup("reduce_sum")(e, axes=(at,), keepdims=True)


@softmax.vjp
def softmax_vjp(ct, out, x, *, axis):
    weighted = ct * out
    return weighted - out * lookup("reduce_sum")(weighted, axes=(axis,), keepdims=True)


softmax.example(lambda: [Example((X,), (_np_softmax(X),)), Example((X,), (_np_softmax(X, 0),), {"axis": 0})])


@composite
def log_softmax(x, *, axis: int = -1):
    """``out = x - log(sum(exp(x)))`` along `axis`."""
    at = axis_of(axis, x.rank)
    if x.shape[at] == 0:
        return lookup("assign")(x)
    shifted = _shifted(x, at)
    return shifted - lookup("log")(lookup("reduce_sum")(lookup("exp")(shifted), axes=(at,), keepdims=True))


@log_softmax.vjp
def log_softmax_vjp(ct, out, x, *, axis):
    return ct - lookup("exp")(out) * lookup("reduce_sum")(ct, axes=(axis,), keepdims=True)


log_softmax.example(
    lambda: [Example((X,), (np.log(_np_softmax(X)),)), Example((X,), (np.log(_np_softmax(X, 0)),), {"axis": 0})]
)


@composite(outputs=("loss",))
def softmax_with_cross_entropy(logits, label, *, soft_label: bool = False, ignore_index: int = -100, axis: int = -1):
    """``loss = -sum(label * log_softmax(logits))`` along `axis`, one value for each row.

    Hard labels (the default) are int32 or int64 class numbers, shaped like `logits` without `axis`, or with it as 1;
    the loss has the shape of the label. A label equal to `ignore_index` gives 0 and no gradient; any other outside the
    classes is an error. Soft labels are shaped like `logits`, and the loss keeps `axis` as 1.
    """
    at = axis_of(axis, logits.rank)
    log_p = lookup("log_softmax")(logits, axis=at)
    if soft_label:
        if label.rank != logits.rank or label.dtype != logits.dtype:
            raise ProgramError(f"soft labels must be like the logits {logits.type}, not {label.type}", "type_mismatch")
        return -lookup("reduce_sum")(label * log_p, axes=(at,), keepdims=True)
    hot, _, kept = _hard(logits, label, ignore_index, at)
    picked = lookup("where")(hot, log_p, lookup("fill_zeros_like")(log_p))
    return -lookup("reduce_sum")(picked, axes=(at,), keepdims=kept)


def _hard(logits, label, ignore_index, at):
    """(bool one-hot like the logits and false where ignored, bool of rows that count, whether label has the axis)."""
    check_index(label.type, "label")
    classes = logits.shape[at]
    if classes == -1:
        raise ProgramError(f"the number of classes in {logits.type} must be known", "shape_mismatch")
    kept = label.rank == logits.rank
    if not (kept and label.shape[at] in (1, -1)) and label.rank != logits.rank - 1:
        raise ProgramError(f"labels of {logits.type} cannot be {label.type}", "shape_mismatch")
    flat = lookup("squeeze")(label, axes=(at,)) if kept else label
    ignored = lookup("equal")(flat, lookup("full_like")(flat, value=ignore_index))
    safe = lookup("where")(ignored, lookup("fill_zeros_like")(flat), flat)
    hot = lookup("one_hot")(safe, depth=classes, dtype="bool")
    valid = lookup("unsqueeze")(lookup("logical_not")(ignored), axes=(at,))
    if at != logits.rank - 1:
        order = (*range(at), logits.rank - 1, *range(at, logits.rank - 1))
        hot = lookup("transpose")(hot, axes=order)
    return lookup("logical_and")(hot, valid), valid, kept


@softmax_with_cross_entropy.vjp
def softmax_with_cross_entropy_vjp(ct, out, logits, label, *, soft_label, ignore_index, axis):
    at = axis_of(axis, logits.rank)
    p = lookup("softmax")(logits, axis=at)
    if soft_label:
        weight = lookup("reduce_sum")(label, axes=(at,), keepdims=True)
        return ct * (p * weight - label), -(ct * lookup("log_softmax")(logits, axis=at))
    hot, valid, kept = _hard(logits, label, ignore_index, at)
    if not kept:
        ct = lookup("unsqueeze")(ct, axes=(at,))
    difference = p - lookup("cast")(hot, dtype=logits.dtype)
    return ct * lookup("where")(valid, difference, lookup("fill_zeros_like")(difference)), None


def _ce_examples():
    log_p = np.log(_np_softmax(X))
    yield Example((X, np.array([2, 0])), (-log_p[[0, 1], [2, 0]],))
    yield Example((X, np.array([[2], [0]])), (-log_p[[0, 1], [2, 0]][:, None],))
    yield Example((X, np.array([2, -1])), (np.array([-log_p[0, 2], 0.0]),), {"ignore_index": -1})
    yield Example((X.T, np.array([2, 0])), (-log_p[[0, 1], [2, 0]],), {"axis": 0})
    soft = np.array([[0.2, 0.3, 0.5], [1.0, 0.5, 0.0]])
    yield Example((X, soft), (-(soft * log_p).sum(1, keepdims=True),), {"soft_label": True})


softmax_with_cross_entropy.example(_ce_examples)


@composite
def mse_loss(x, y, *, reduction: Literal["mean", "sum", "none"] = "mean"):
    """``(x - y) ** 2``, averaged or summed over all elements, or left as it is."""
    squares = lookup("square")(x - y)
    if reduction == "none":
        return squares
    return lookup("reduce_mean" if reduction == "mean" else "reduce_sum")(squares)


mse_loss.example(
    lambda: [
        Example((X, X[::-1].copy()), (((X - X[::-1]) ** 2).mean(),)),
        Example((X, 0 * X), ((X**2).sum(),), {"reduction": "sum"}),
        Example((X, 0 * X), (X**2,), {"reduction": "none"}),
    ]
)


@composite
def sigmoid_cross_entropy_with_logits(x, label, *, ignore_index: float = -100.0, normalize: bool = False):
    """``-label * log(sigmoid(x)) - (1 - label) * log(1 - sigmoid(x))`` for each element, without overflow.

    Elements whose label equals `ignore_index` give 0 and no gradient. With `normalize` the result is divided by the
    number of the others.
    """
    ignored = lookup("equal")(label, lookup("full_like")(label, value=ignore_index))
    zero = lookup("fill_zeros_like")
    each = lookup("softplus")(x) - x * lookup("where")(ignored, zero(label), label)
    out = lookup("where")(ignored, zero(each), each)
    if normalize:
        counted = lookup("cast")(lookup("logical_not")(ignored), dtype=x.dtype)
        out = out / lookup("clip")(lookup("reduce_sum")(counted), min=1.0)
    return out


def _bce(x, z):
    return np.log1p(np.exp(x)) - x * z


sigmoid_cross_entropy_with_logits.example(
    lambda: [
        Example((X, (X > 0) * 1.0), (_bce(X, X > 0),)),
        Example((X[0], np.array([1.0, -1.0, 0.5])), (np.array([_bce(1.0, 1.0), 0.0, _bce(3.0, 0.5)]) / 2,),
                {"ignore_index": -1.0, "normalize": True}, smooth=False),
    ]
)  # fmt: skip
