"""Selection of boxes among those that a detector proposes."""

from __future__ import annotations

from typing import Literal

import numpy as np

from core.ir import TensorType
from core.ir.attr_values import Extended
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, op
from core.ops.common.ranges import Probability, Size
from core.ops.common.types import matches

__all__: list[str] = []


@op(no_gradient="its result is an integer")
def non_max_suppression(
    xp,
    boxes,
    scores,
    *,
    max_output: Size = 2**31 - 1,
    iou_threshold: Probability = 0.0,
    score_threshold: Extended = -np.inf,
    box_format: Literal["corners", "center"] = "corners",
):
    """Greedy suppression of boxes that overlap a box with a higher score: int64 [selected, 3], each row (batch, class,
    box).

    boxes is [batch, n, 4] and scores [batch, classes, n]. For each batch and class, boxes are taken in the order of
    their scores, equal ones in the order of their numbers; a box is left out if its intersection over union with a
    selected one is above `iou_threshold`.

    - `max_output`: most boxes selected for each batch and class.
    - `score_threshold`: only boxes with a higher score are considered.
    - `box_format`: two opposite corners (y1, x1, y2, x2) in any order, or (x centre, y centre, width, height).
    """
    host_boxes, host_scores = (np.asarray(v.tolist(), "float64").reshape(v.shape) for v in (boxes, scores))
    if host_scores.shape[0] != host_boxes.shape[0] or host_scores.shape[2] != host_boxes.shape[1]:
        raise ExecutionError(f"scores {list(scores.shape)} do not fit boxes {list(boxes.shape)}", "shape_mismatch")
    low, high = _corners(host_boxes, box_format)
    rows = [
        (batch, kind, box)
        for batch, kind in np.ndindex(*host_scores.shape[:2])
        for box in _kept(low[batch], high[batch], host_scores[batch, kind], max_output, iou_threshold, score_threshold)
    ]
    return xp.asarray(np.array(rows, "int64").reshape(-1, 3))


def _corners(boxes, box_format: str):
    """The lower and the upper corner of each box."""
    if box_format == "center":
        middle, half = boxes[..., :2], boxes[..., 2:] / 2
        return middle - half, middle + half
    return np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])


def _kept(low, high, scores, max_output: int, iou_threshold: float, score_threshold: float) -> list[int]:
    """The numbers of the selected boxes, those with the highest scores first."""
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > score_threshold]
    area = np.prod(high - low, axis=-1)
    kept: list[int] = []
    while len(order) and len(kept) < max_output:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        shared = np.prod(np.maximum(np.minimum(high[order], high[best]) - np.maximum(low[order], low[best]), 0), -1)
        union = area[order] + area[best] - shared
        order = order[shared <= iou_threshold * union]
    return kept


@non_max_suppression.infer
def non_max_suppression_infer(boxes, scores, **attrs):
    wanted = TensorType((boxes.shape[0], -1, boxes.shape[1]), boxes.dtype) if boxes.rank == 3 else None
    if wanted is None or boxes.shape[2] not in (4, -1) or not boxes.is_float or not matches(scores, wanted):
        raise ProgramError(
            f"needs floating-point boxes [batch, n, 4] and scores [batch, classes, n], not {boxes} and {scores}",
            "shape_mismatch",
        )
    return TensorType((-1, 3), "int64")


def _shared(a, b):
    """Intersection over union of two boxes (y1, x1, y2, x2) whose first corner is the lower one."""
    sides = [max(min(a[2 + i], b[2 + i]) - max(a[i], b[i]), 0) for i in (0, 1)]
    areas = [(v[2] - v[0]) * (v[3] - v[1]) for v in (a, b)]
    both = sides[0] * sides[1]
    return both / (areas[0] + areas[1] - both)


def _greedy(boxes, scores, most, iou, least):
    """The op by its definition, one pair of boxes at a time."""
    rows = []
    for b, c in np.ndindex(*scores.shape[:2]):
        kept: list[int] = []
        for i in sorted(range(boxes.shape[1]), key=lambda i: (-scores[b, c, i], i)):
            overlaps = [_shared(boxes[b, i], boxes[b, k]) > iou for k in kept]
            if scores[b, c, i] > least and len(kept) < most and not any(overlaps):
                kept.append(i)
        rows += [(b, c, i) for i in kept]
    return np.array(rows, "int64").reshape(-1, 3)


_BOXES = np.array([[[0.0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1]]])
_SCORES = np.array([[[0.9, 0.75, 0.6, 0.95, 0.5], [0.3, 0.2, 0.8, 0.1, 0.7]]])
_CENTRES = np.stack([(_BOXES[..., 0] + _BOXES[..., 2]) / 2, (_BOXES[..., 1] + _BOXES[..., 3]) / 2,
                     _BOXES[..., 2] - _BOXES[..., 0], _BOXES[..., 3] - _BOXES[..., 1]], -1)  # fmt: skip
non_max_suppression.example(
    lambda: [
        Example((_BOXES, _SCORES), (_greedy(_BOXES, _SCORES, 9, 0.5, 0.15),),
                {"iou_threshold": 0.5, "score_threshold": 0.15}),
        Example((_BOXES[..., [2, 3, 0, 1]], _SCORES), (_greedy(_BOXES, _SCORES, 2, 0.9, -1),),
                {"iou_threshold": 0.9, "max_output": 2}),
        Example((_CENTRES, _SCORES), (_greedy(_BOXES, _SCORES, 9, 0.5, -1),),
                {"iou_threshold": 0.5, "box_format": "center"}),
        Example((_BOXES[:, :0], _SCORES[..., :0]), (np.zeros((0, 3), int),)),
    ]
)  # fmt: skip
