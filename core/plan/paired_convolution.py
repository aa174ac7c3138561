"""Convolutions of bfloat16 numbers as products of pairs, on targets that multiply pairs faster than float32 numbers.

Images and filters stay as they are, in half the memory; sums are float32, and the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from core.ir import Op
from core.plan.convolution import convolution_back, convolution_of, flipped_filters, image_padding, parted
from core.plan.entries import Entry
from core.plan.geometry import Correlation
from core.plan.halves import WIDE, narrowed
from core.plan.instructions import Kernel
from core.plan.lowering import Lowering
from core.plan.memory import View
from core.plan.windows import Windows, padded
from core.plan.winograd import winograd_of

__all__ = ["lower_paired"]

PAIRS = "bfloat16"


def lower_paired(low: Lowering, op: Op) -> bool:
    """Lower `op` if it is a convolution that runs faster so, and return whether it is."""
    how = PAIRED.get(op.type)
    if how is None or any(low.type(n).dtype != PAIRS for n in (*op.inputs, *op.outputs)):
        return False
    low.stand_alone(op.outputs[0])
    return how(low, op)


def _correlate(low: Lowering, op: Op) -> bool:
    x, filter = op.inputs
    windows, spec = convolution_of(low, op, x, filter, op.outputs[0])
    return _convolved(low, op, windows, spec, low.entry(x), low.dense(low.entry(filter)))


def _input_adjoint(low: Lowering, op: Op) -> bool:
    ct, filter, like = op.inputs
    windows, spec = convolution_of(low, op, like, filter, ct)
    weights = low.dense(low.entry(filter))
    back = convolution_back(windows, spec, low.target.convolutions)
    if back is not None:
        return _convolved(low, op, *back, low.entry(ct), weights, flipped=True)
    found = _in_pairs(low, "input_adjoint", spec)
    if found is None:
        return False
    type, padding = low.type(op.outputs[0]), image_padding(windows, spec, WIDE)
    turned = View(weights.root, PAIRS, (spec.groups, spec.depth, spec.out), (spec.out * spec.depth, 1, spec.depth))
    turned = low.dense(replace(turned, offset=weights.offset))
    out = low.allocate(type.shape, WIDE)
    inside = low.allocate((padding.planes, padding.plane), WIDE) if padding else out
    given = low.dense(low.entry(ct))
    low.add(Kernel("input_adjoint_columns", found, (given, turned, inside), location=op.location))
    if padding:
        low.add(Kernel("leave_room", padding, (inside, out), location=op.location))
    low.define(op.outputs[0], narrowed(low, out, type))
    return True


def _filter_adjoint(low: Lowering, op: Op) -> bool:
    ct, x, like = op.inputs
    windows, spec = convolution_of(low, op, x, like, ct)
    found = _in_pairs(low, "filter_adjoint", spec)
    if found is None:
        return False
    image, given = padded(low, op, low.entry(x), image_padding(windows, spec, PAIRS)), low.dense(low.entry(ct))
    _append(low, op, "filter_adjoint_columns", found, (given, image))
    return True


def _convolved(
    low: Lowering, op: Op, windows: Windows, spec: Correlation, x: Entry, weights: View, flipped: bool = False
) -> bool:
    found = _in_pairs(low, "correlate", spec)
    squares = winograd_of(replace(spec, dtype=WIDE), windows, low.target.winograd)
    if found is None or (squares is not None and spec.channels < low.target.convolutions.pair_channels()):
        return False
    image = padded(low, op, x, image_padding(windows, spec, PAIRS))
    weights = flipped_filters(low, spec, weights) if flipped else weights
    _append(low, op, "correlate_columns", found, (image, weights))
    return True


def _append(low: Lowering, op: Op, kind: str, spec: Correlation, operands: tuple[View, View]) -> None:
    type = low.type(op.outputs[0])
    out = low.allocate(type.shape, WIDE)
    low.add(Kernel(kind, spec, (*operands, out), location=op.location))
    low.define(op.outputs[0], narrowed(low, out, type))


def _in_pairs(low: Lowering, kind: str, spec: Correlation) -> Correlation | None:
    """The spec of a convolution as products of pairs, or None if other forms are faster, or a pair has no partner."""
    limits = low.target.convolutions
    found = parted(replace(spec, dtype=WIDE, given=PAIRS), kind, limits)
    width = found.counts[2]
    count = found.together * (found.rows * width if found.rows else found.pixels)
    sizes = {
        "correlate": (found.out, count, found.depth),
        "input_adjoint": (found.depth, count, found.out),
        "filter_adjoint": (found.out, found.depth // found.shares, count),
    }[kind]
    if kind == "filter_adjoint" and found.together == 1:  # the pixels of one image are read in place, from any row on
        height = found.counts[1]
        fewest = height // -(-height // found.rows) if found.rows else height  # rows of the smallest of equal parts
        if width % 2 or fewest * width == 2:  # a single pair by columns looks like one by rows
            return None
    return found if limits.pairs(kind, *sizes) else None


PAIRED: dict[str, Callable[[Lowering, Op], bool]] = {
    "correlate": _correlate,
    "correlate_input_adjoint": _input_adjoint,
    "correlate_filter_adjoint": _filter_adjoint,
}
"""Type of an op -> the function that lowers it if it runs faster so, and returns whether it does."""
