"""Losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.beside_torch.installed import F, torch
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def reduced(each: Any, reduction: str) -> Any:
    return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()


def weighted(each: Any, label: Any, weight: Any, ignore_index: int) -> Any:
    """`each` times the weight of its label: the weights of torch's losses have no gradient."""
    return each if weight is None else each * weight[torch.where(label == ignore_index, 0, label)]


def counted(each: Any, label: Any, weight: Any, ignore_index: int, reduction: str) -> Any:
    """The mean over hard labels is weighted; without a counted label it is 0, not NaN."""
    if reduction != "mean":
        return reduced(each, reduction)
    used = label != ignore_index
    share = used.to(each.dtype) if weight is None else weight[torch.where(used, label, 0)] * used
    return each.sum() / torch.where(share.sum() > 0, share.sum(), 1.0)


def hard(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of torch, which takes the classes as axis 1, for labels that may keep the class axis with size 1."""

    def f(x: Any, label: Any, weight: Any, ignore_index: int, axis: int, reduction: str) -> Any:
        axis %= x.ndim
        flat = label.squeeze(axis) if label.ndim == x.ndim else label
        classes_second = x.movedim(axis, 1 if x.ndim > 1 else 0)
        each = loss(classes_second, flat.long(), ignore_index=ignore_index, reduction="none").reshape(label.shape)
        each = weighted(each, label, weight, ignore_index)
        return counted(each, label, weight, ignore_index, reduction)

    return f


def softmax_with_cross_entropy(
    x: Any,
    label: Any,
    weight: Any,
    soft_label: bool,
    ignore_index: int,
    axis: int,
    reduction: str,
    label_smoothing: float,
) -> Any:
    if label_smoothing and weight is None and not soft_label and axis == 1:
        return F.cross_entropy(
            x, label, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )
    if label_smoothing and not soft_label:
        spread = F.log_softmax(x, axis) if weight is None else F.log_softmax(x, axis).movedim(axis, -1) * weight
        spread = -(spread if weight is None else spread.movedim(-1, axis)).mean(axis)
        plain = hard(F.cross_entropy)(x, label, weight, ignore_index, axis, "none")
        each = plain * (1 - label_smoothing) + label_smoothing * spread * (label != ignore_index)
        return counted(each, label, weight, ignore_index, reduction)
    if not soft_label:
        return hard(F.cross_entropy)(x, label, weight, ignore_index, axis, reduction)
    label = label * (1 - label_smoothing) + label_smoothing / x.shape[axis]
    if weight is not None:
        label = (label.movedim(axis, -1) * weight).movedim(-1, axis)
    each = F.cross_entropy(x.movedim(axis, 1), label.movedim(axis, 1), reduction="none").unsqueeze(axis)
    return reduced(each, reduction)


def picked(p: Any, label: Any, ignore_index: int, reduction: str) -> Any:
    """nll_loss of the logarithm of the labels' probabilities only."""
    some = label != ignore_index
    chance = -F.nll_loss(p, label, ignore_index=ignore_index, reduction="none")
    return -torch.log(torch.where(some, chance, 1.0))


def cross_entropy(
    p: Any, label: Any, weight: Any, soft_label: bool, ignore_index: int, axis: int, reduction: str
) -> Any:
    if not soft_label:
        return hard(picked)(p, label, weight, ignore_index, axis, reduction)
    share = torch.ones(p.shape[axis], dtype=p.dtype) if weight is None else weight
    each = -(torch.xlogy(label, p).movedim(axis, -1) * share).sum(-1).unsqueeze(axis)
    return reduced(each, reduction)


def nll_loss(x: Any, label: Any, weight: Any, ignore_index: int, reduction: str) -> Any:
    each = F.nll_loss(x, label, ignore_index=ignore_index, reduction="none")
    each = weighted(each, label, weight, ignore_index)
    return counted(each, label, weight, ignore_index, reduction)


def sigmoid_cross_entropy(
    x: Any, label: Any, pos_weight: Any, ignore_index: float, normalize: bool, reduction: str
) -> Any:
    used = (label != ignore_index).to(x.dtype)
    each = F.binary_cross_entropy_with_logits(x, label, reduction="none")
    if pos_weight is not None:  # torch has no gradient of it
        each = -pos_weight * label * F.logsigmoid(x) - (1 - label) * F.logsigmoid(-x)
    each = each * used
    return reduced(each / used.sum().clamp(min=1) if normalize else each, reduction)


def focal(x: Any, label: Any, alpha: float, gamma: float, reduction: str) -> Any:
    p = torch.sigmoid(x)
    miss = p * (1 - label) + (1 - p) * label
    weight = alpha * label + (1 - alpha) * (1 - label)
    return reduced(weight * miss**gamma * F.binary_cross_entropy_with_logits(x, label, reduction="none"), reduction)


def smooth_l1(x: Any, label: Any, delta: float, sigma: float | None, reduction: str) -> Any:
    return F.smooth_l1_loss(x, label, reduction=reduction, beta=delta if sigma is None else sigma**-2)


def gaussian(x: Any, label: Any, variance: Any, full: bool, epsilon: float, reduction: str) -> Any:
    v = torch.clamp(variance, min=epsilon)  # F.gaussian_nll_loss passes a gradient to a clamped v
    each = 0.5 * (torch.log(v) + (x - label) ** 2 / v) + (0.5 * math.log(2 * math.pi) if full else 0.0)
    return reduced(each, reduction)


def bpr(x: Any, label: Any) -> Any:
    rows = torch.arange(x.shape[0])
    gaps = x[rows, label].unsqueeze(1) - x
    others = torch.arange(x.shape[1]) != label.unsqueeze(1)
    return -(F.logsigmoid(gaps) * others).sum(1) / (x.shape[1] - 1)


def npair(anchor: Any, positive: Any, label: Any, l2_reg: float) -> Any:
    same = (label.unsqueeze(1) == label).to(anchor.dtype)
    target = same / same.sum(1, keepdim=True)
    return F.cross_entropy(anchor @ positive.t(), target) + l2_reg / 4 * (anchor**2 + positive**2).sum(1).mean()


def dice(p: Any, label: Any, epsilon: float) -> Any:
    p, label = p.flatten(1), label.flatten(1)
    return (1 - 2 * (p * label).sum(1) / (p.sum(1) + label.sum(1) + epsilon)).mean()


def label_smooth(label: Any, prior: Any, epsilon: float) -> Any:
    even = torch.full_like(label, 1 / label.shape[-1])
    return torch.lerp(label, even if prior is None else prior.expand_as(label), epsilon)


def with_reduction(loss: Callable[[], Any]) -> Callable[..., Any]:
    return lambda x, label, reduction: loss()(x, label, reduction=reduction)


def multi_label_margin(x: Any, label: Any, reduction: str) -> Any:
    """F.multilabel_margin_loss has no second gradient."""
    rows = []
    for row, names in zip(x, label.tolist(), strict=True):
        inside = names[: names.index(-1)] if -1 in names else names
        outside = [k for k in range(len(row)) if k not in inside]
        rows.append(F.relu(1 - row[inside].unsqueeze(1) + row[outside]).sum() / len(row))
    return reduced(torch.stack(rows) if rows else x.sum(1), reduction)


def multi_margin(x: Any, label: Any, weight: Any, p: int, margin: float, reduction: str) -> Any:
    """F.multi_margin_loss has no second gradient."""
    own = x.gather(1, label.unsqueeze(1))
    each = F.relu(margin - own + x) ** p * (1.0 if weight is None else weight[label].unsqueeze(1))
    others = 1 - F.one_hot(label, x.shape[1]).to(x.dtype)
    return reduced((each * others).sum(1) / x.shape[1], reduction)


OPS: dict[str, Callable[..., Any]] = {
    "bce_loss": lambda p, label, weight, reduction: reduced(
        F.binary_cross_entropy(p, label, reduction="none") * (1 if weight is None else weight), reduction
    ),
    "bpr_loss": bpr,
    "cross_entropy": cross_entropy,
    "dice_loss": dice,
    "gaussian_nll_loss": gaussian,
    "hinge_loss": lambda x, label: F.relu(1 - x * (2 * label - 1)),
    "huber_loss": lambda x, label, delta, reduction: F.huber_loss(x, label, reduction, delta),
    "kldiv_loss": lambda x, target, reduction: F.kl_div(x, target, reduction=reduction),
    "cosine_embedding_loss": lambda x, y, label, margin, reduction: F.cosine_embedding_loss(
        x, y, label, margin, reduction=reduction
    ),
    "hinge_embedding_loss": lambda x, label, margin, reduction: F.hinge_embedding_loss(
        x, torch.where(label > 0, 1.0, -1.0), margin, reduction=reduction
    ),
    "multi_label_margin_loss": multi_label_margin,
    "multi_label_soft_margin_loss": lambda x, label, weight, reduction: reduced(
        (F.binary_cross_entropy_with_logits(x, label, reduction="none") * (1.0 if weight is None else weight)).mean(-1),
        reduction,
    ),
    "multi_margin_loss": multi_margin,
    "soft_margin_loss": lambda x, label, reduction: reduced(-F.logsigmoid(label * x), reduction),
    "l1_loss": with_reduction(lambda: F.l1_loss),
    "label_smooth": label_smooth,
    "log_loss": lambda p, label, epsilon: -torch.xlogy(label, p + epsilon) - torch.xlogy(1 - label, 1 - p + epsilon),
    "margin_rank_loss": lambda label, left, right, margin, reduction: F.margin_ranking_loss(
        left, right, label, margin, reduction=reduction
    ),
    "mse_loss": lambda x, y, reduction: F.mse_loss(x, y, reduction=reduction),
    "nll_loss": nll_loss,
    "npair_loss": npair,
    "poisson_nll_loss": lambda x, label, log_input, full, epsilon, reduction: F.poisson_nll_loss(
        x, label, log_input, full, eps=epsilon, reduction=reduction
    ),
    "rank_loss": lambda label, left, right: F.binary_cross_entropy_with_logits(left - right, label, reduction="none"),
    "sigmoid_cross_entropy_with_logits": sigmoid_cross_entropy,
    "sigmoid_focal_loss": focal,
    "smooth_l1_loss": smooth_l1,
    "softmax_with_cross_entropy": softmax_with_cross_entropy,
    "triplet_margin_loss": lambda anchor, positive, negative, margin, p, reduction: reduced(
        F.relu(
            torch.linalg.vector_norm(anchor - positive, p, -1)
            - torch.linalg.vector_norm(anchor - negative, p, -1)
            + margin
        ),
        reduction,
    ),
}

WAYS = ("none", "mean", "sum")
CLASSES = np.array([[2, 0, 3], [1, 1, -100]])

MORE: dict[str, list[Inputs]] = {
    **{
        name: [case((2, 3, 4), (2, 3, 4), reduction=r) for r in WAYS] + [case((5,), (5,), reduction=r) for r in WAYS]
        for name in ("l1_loss", "mse_loss", "kldiv_loss", "sigmoid_focal_loss")
    },
    "sigmoid_cross_entropy_with_logits": [
        case((2, 3, 4), (2, 3, 4), w, reduction=r) for w in (None, (4,), (2, 1, 1)) for r in WAYS
    ],
    "bce_loss": [case((2, 3, 4), (2, 3, 4), (3, 4), span=(0.05, 0.95), reduction=r) for r in WAYS],
    "cosine_embedding_loss": [
        case((4, 3), (4, 3), np.array([1.0, -1, -1, 1]), margin=m, reduction=r) for m in (0.0, 0.2) for r in WAYS
    ],
    "hinge_embedding_loss": [case((3, 4), np.array([[1.0, -1, 1, -1]] * 3), margin=0.7, reduction=r) for r in WAYS],
    "multi_label_margin_loss": [
        case((3, 4), np.array([[2, 0, -1, 1], [3, -1, 0, 0], [-1, 0, 1, 2]]), reduction=r) for r in WAYS
    ],
    "multi_label_soft_margin_loss": [case((3, 4), (3, 4), (4,), reduction=r) for r in WAYS],
    "multi_margin_loss": [
        case((3, 4), np.array([2, 0, 3]), w, p=p, margin=0.6, reduction=r)
        for w in (None, (4,))
        for p in (1, 2)
        for r in WAYS
    ],
    "soft_margin_loss": [case((3, 4), np.array([[1.0, -1, 1, -1]] * 3), reduction=r) for r in WAYS],
    "bpr_loss": [case((4, 5), np.array([4, 0, 2, 2]))],
    "cross_entropy": [case((2, 4, 3), CLASSES, (4,), axis=1, reduction=r, span=(0.05, 0.9)) for r in WAYS]
    + [case((2, 4, 3), (2, 4, 3), (4,), axis=1, soft_label=True, reduction=r, span=(0.05, 0.9)) for r in WAYS],
    "softmax_with_cross_entropy": [case((2, 4, 3), CLASSES, (4,), axis=1, reduction=r) for r in WAYS]
    + [case((2, 4, 3), CLASSES, axis=1, reduction=r) for r in WAYS]
    + [case((2, 4, 3), CLASSES, axis=1, reduction=r, label_smoothing=0.3) for r in WAYS]
    + [case((2, 4, 3), CLASSES, (4,), axis=1, reduction=r, label_smoothing=0.3) for r in WAYS]
    + [case((2, 3, 4), (2, 3, 4), (4,), soft_label=True, reduction=r) for r in WAYS]
    + [case((5, 4, 3), (5, 4, 3), axis=0, soft_label=True)],
    "nll_loss": [case((2, 4, 3), CLASSES, (4,), reduction=r) for r in WAYS] + [case((3, 4), np.array([0, 3, 1]))],
    "dice_loss": [case((3, 4, 2), (3, 4, 2), span=(0.1, 0.9)), case((3, 4), (3, 4), span=(0.1, 0.9), epsilon=0.5)],
    "gaussian_nll_loss": [
        case((2, 3), (2, 3), (2, 3), span=(0.2, 2), full=f, reduction=r) for f in (False, True) for r in WAYS
    ],
    "huber_loss": [
        case((2, 3, 4), (2, 3, 4), delta=d, reduction=r, span=(-3, 3)) for d in (0.5, 1.0, 2.0) for r in WAYS
    ],
    "smooth_l1_loss": [
        case((2, 3, 4), (2, 3, 4), delta=d, reduction=r, span=(-3, 3)) for d in (0.5, 1.0, 2.0) for r in WAYS
    ],
    "hinge_loss": [case((3, 4), np.array([[1.0, 0, 1, 0]] * 3), span=(-3, 3))],
    "label_smooth": [case((3, 4), (4,), epsilon=0.3), case((2, 3, 4), epsilon=0.2)],
    "log_loss": [case((3, 4), (3, 4), span=(0.1, 0.9), epsilon=0.01)],
    "margin_rank_loss": [
        case(np.array([[1.0, -1, 1, -1]] * 3), (3, 4), (3, 4), margin=0.5, reduction=r, span=(-2, 2)) for r in WAYS
    ],
    "rank_loss": [case((3, 4), (3, 4), (3, 4))],
    "poisson_nll_loss": [
        case((3, 4), (3, 4), log_input=g, full=f, reduction=r, span=(0.3, 4))
        for g in (True, False)
        for f in (True, False)
        for r in WAYS
    ],
    "triplet_margin_loss": [case((3, 4), (3, 4), (3, 4), p=p, reduction=r) for p in (1.0, 2.0, 3.0) for r in WAYS],
    "npair_loss": [case((4, 3), (4, 3), np.array([1, 2, 1, 0]), l2_reg=0.3)],
}
