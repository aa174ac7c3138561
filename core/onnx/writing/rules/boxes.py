"""Boxes in images: suppression, and the points of bins."""

from __future__ import annotations

import math

from core.onnx.writing.dtypes import lacking
from core.onnx.writing.registry import writes


@writes("non_max_suppression")
def non_max_suppression(w, boxes, scores, *, max_output, iou_threshold, score_threshold, box_format):
    """A `NonMaxSuppression`, which computes in float32."""
    if boxes.dtype == "float64" or scores.dtype == "float64":
        raise lacking("NonMaxSuppression", "float64")
    given = [w.cast(v, "float32") for v in (boxes, scores)]
    limits = [w.ints([max_output]), w.const([iou_threshold], "float32")]
    if not math.isinf(score_threshold):
        limits.append(w.const([score_threshold], "float32"))
    center = int(box_format == "center")
    return w.node("NonMaxSuppression", *given, *limits, dtype="int64", shape=(-1, 3), center_point_box=center)


@writes("roi_fractions")
def roi_fractions(w, extent, *, count):
    """The kernel's formula, in float64."""
    host = w.flat(w.cast(extent, "float64"))
    host = w.guarded(host, w.node("Not", w.node("Or", w.node("IsNaN", host), w.node("IsInf", host))))
    zero, one = w.number(0, host), w.number(1, host)
    points = w.node("Max", w.node("Ceil", w.div(host, w.number(count, host))), zero)
    most = w.reduce("ReduceMax", w.concat([points, w.const([1.0], "float64")]), [0], True)
    at = w.cast(w.arange(w.cast(most, "int64")), "float64")
    each = w.unsqueeze(points, [1, 2])
    inside = w.div(w.add(at, w.number(0.5, host)), w.node("Max", each, one))
    bins = w.unsqueeze(w.cast(w.arange(count), "float64"), [1])
    fraction = w.div(w.add(bins, inside), w.number(count, host))
    counted = w.node("Less", at, each)
    sizes = [w.size(extent, 0), count, w.cast(most, "int64")]
    return w.cast(fraction, extent.dtype), w.expand(counted, sizes)
