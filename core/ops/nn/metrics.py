"""Metrics of a model. They have no gradient."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, op
from core.ops.common.ranges import Count
from core.ops.common.types import widened
from core.ops.indexing.gather import check_index

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])


@op(no_gradient="it counts")
def accuracy(xp, x, label, *, k: Count = 1):
    """Share of rows whose label is among the `k` highest scores: ``right / n``. Without rows it is 0.

    x is [n, classes], label [n] or [n, 1]. Of equal scores, the first ones rank higher.
    """
    best = xp.argsort(-widened(x), axis=1, kind="stable")[:, :k]
    correct = xp.any(best == label.reshape(-1, 1), axis=1)
    return xp.asarray(correct.sum() / max(len(correct), 1), dtype=x.dtype)


@accuracy.infer
def accuracy_infer(x, label, *, k):
    check_index(label, "label")
    rows = (x.shape[:1], (*x.shape[:1], 1))
    fits = any(len(r) == label.rank and _agree(r, label.shape) for r in rows)
    if not x.is_float or x.rank != 2 or not fits:
        raise ProgramError(f"accuracy takes scores [n, classes] and labels [n], not {x} and {label}", "shape_mismatch")
    return TensorType((), x.dtype)


def _agree(a, b):
    return all(m == n or -1 in (m, n) for m, n in zip(a, b, strict=True))


accuracy.example(
    lambda: [
        Example((X, np.array([2, 0])), (np.array(0.5),)),
        Example((X, np.array([[0], [0]])), (np.array(1.0),), {"k": 2}),
        Example((X[:0], np.zeros(0, int)), (np.array(0.0),)),
    ]
)


@op(no_gradient="it counts")
def auc(xp, x, label):
    """Area under the ROC curve: the probability that a positive row scores above a negative row. A tie counts half.

    x [n] holds the scores; of x [n, 2], the second column. label is [n] or [n, 1], and any nonzero label is positive.
    If all labels are of one kind, the result is 0. It is exact, computed from ranks (Hanley and McNeil 1982) and not
    from a table of thresholds.
    """
    score = widened(x if x.ndim == 1 else x[:, 1])
    positive = label.reshape(-1) != 0
    up, down = score[positive], xp.sort(score[~positive])
    if not up.size or not down.size:
        return xp.zeros((), x.dtype)
    wins = xp.searchsorted(down, up, side="left") + xp.searchsorted(down, up, side="right")
    return xp.asarray(wins.sum() / (2 * up.size * down.size), dtype=x.dtype)


@auc.infer
def auc_infer(x, label):
    check_index(label, "label")
    rows = (x.shape[:1], (*x.shape[:1], 1))
    fits = any(len(r) == label.rank and _agree(r, label.shape) for r in rows)
    if not x.is_float or not fits or not (x.rank == 1 or (x.rank == 2 and x.shape[1] in (2, -1))):
        raise ProgramError(f"auc takes scores [n] or [n, 2] and labels [n], not {x} and {label}", "shape_mismatch")
    return TensorType((), x.dtype)


def _auc(x, label):
    pairs = [(a > b) + (a == b) / 2 for a in x[label == 1] for b in x[label == 0]]
    return np.array(sum(pairs) / len(pairs))


_SCORES, _LABELS = np.array([0.1, 0.4, 0.35, 0.8, 0.4]), np.array([0, 0, 1, 1, 1])
auc.example(
    lambda: [
        Example((_SCORES, _LABELS), (_auc(_SCORES, _LABELS),)),
        Example((np.stack([1 - _SCORES, _SCORES], 1), _LABELS[:, None]), (_auc(_SCORES, _LABELS),)),
        Example((_SCORES[:2], _LABELS[:2]), (np.array(0.0),)),
    ]
)
