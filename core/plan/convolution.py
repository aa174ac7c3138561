"""Convolution and its adjoints: their kernels, in the direct form or as products of matrices."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from core.ir import Op
from core.plan.channel_lanes import FilterPanels, channel_lanes_of
from core.plan.entries import Entry
from core.plan.filter_sums import FilterTotal, filter_sums_of
from core.plan.geometry import Correlation, Padding
from core.plan.instructions import Kernel
from core.plan.lowering import Lowering, lowers
from core.plan.memory import View, contiguous
from core.plan.patches import Patches, lower_patches
from core.plan.target import ConvolutionLimits
from core.plan.windows import Windows, padded, triple, windows_of
from core.plan.winograd import WinogradFilters, WinogradTotal, winograd_of, winograd_sums_of

__all__ = [
    "convolution_back",
    "convolution_of",
    "correlation",
    "flipped_filters",
    "image_padding",
    "parted",
    "to_input",
]


@lowers("correlate")
def lower_correlate(low: Lowering, op: Op) -> None:
    x, filter = op.inputs
    if low.target.convolutions.patches:
        lower_patches(low, op, _patches(low, op, x, filter, op.outputs[0]), *_dense(low, x, filter))
        return
    windows, spec = convolution_of(low, op, x, filter, op.outputs[0])
    _convolved(low, op, windows, spec, low.entry(x), low.dense(low.entry(filter)))


@lowers("correlate_input_adjoint")
def lower_input_adjoint(low: Lowering, op: Op) -> None:
    """If windows move by 1, this is a convolution again: of the padded cotangent with flipped filters."""
    ct, filter, like = op.inputs
    if low.target.convolutions.patches:
        lower_patches(low, op, _patches(low, op, like, filter, ct), *_dense(low, ct, filter))
        return
    windows, spec = convolution_of(low, op, like, filter, ct)
    given, weights = low.dense(low.entry(ct)), low.dense(low.entry(filter))
    back = convolution_back(windows, spec, low.target.convolutions)
    if back is None:
        to_input(low, op, windows, spec, given, weights)
        return
    _convolved(low, op, *back, given, weights, flipped=True)


@lowers("correlate_filter_adjoint")
def lower_filter_adjoint(low: Lowering, op: Op) -> None:
    ct, x, like = op.inputs
    if low.target.convolutions.patches:
        lower_patches(low, op, _patches(low, op, x, like, ct), *_dense(low, ct, x))
        return
    windows, spec = convolution_of(low, op, x, like, ct)
    given, squares = low.dense(low.entry(ct)), winograd_sums_of(spec, windows, low.target.winograd)
    if squares is not None:
        image, held = low.dense(low.entry(x)), low.allocate(squares.shape, spec.dtype)
        out = low.destination(op.outputs[0])
        low.add(Kernel("winograd_sums", squares, (given, image, held), location=op.location))
        low.add(Kernel("winograd_total", WinogradTotal(squares), (held, out), location=op.location))
        low.define(op.outputs[0], out)
        return
    image = padded(low, op, low.entry(x), image_padding(windows, spec, spec.dtype))
    out = low.destination(op.outputs[0])
    sums = filter_sums_of(spec, low.target.filter_sums)
    if sums is None:
        _correlated(low, op, "filter_adjoint", spec, given, image, out)
    else:
        held = low.allocate(sums.shape, spec.dtype)
        low.add(Kernel("filter_sums", sums, (given, image, held), location=op.location))
        low.add(Kernel("filter_total", FilterTotal(sums), (held, out), location=op.location))
    low.define(op.outputs[0], out)


def to_input(low: Lowering, op: Op, windows: Windows, spec: Correlation, given: View, weights: View) -> None:
    """The adjoint of a convolution to its input, computed with the padding of the input, which is then removed."""
    name, padding = op.outputs[0], image_padding(windows, spec, spec.dtype)
    if not _by_columns("input_adjoint", spec, low.target.convolutions):
        weights = _by_element(low, spec, weights)
    target = low.destination(name)
    inside = low.allocate((padding.planes, padding.plane), padding.dtype) if padding else target
    _correlated(low, op, "input_adjoint", spec, given, weights, inside)
    if padding:
        low.add(Kernel("leave_room", padding, (inside, target), location=op.location))
    low.define(name, target)


def _convolved(
    low: Lowering, op: Op, windows: Windows, spec: Correlation, x: Entry, weights: View, flipped: bool = False
) -> None:
    """Append the kernels of a convolution of `x`. flipped: with the flipped filters (see `flipped_filters`)."""
    name, squares = op.outputs[0], winograd_of(spec, windows, low.target.winograd)
    if squares is not None:
        image, transformed = low.dense(x), WinogradFilters(squares.conv, flipped)
        filters, out = low.allocate(transformed.shape, spec.dtype), low.destination(name)
        low.add(Kernel("winograd_filters", transformed, (weights, filters), location=op.location))
        low.add(Kernel("winograd", squares, (image, filters, out), location=op.location))
        low.define(name, out)
        return
    image, out = padded(low, op, x, image_padding(windows, spec, spec.dtype)), low.destination(name)
    lanes = None if _takes_pixels(spec, low.target.convolutions) else channel_lanes_of(spec, low.target.channel_lanes)
    if lanes is None:
        weights = flipped_filters(low, spec, weights) if flipped else weights
        _correlated(low, op, "correlate", spec, image, weights, out)
    else:
        panels = low.allocate((spec.groups, spec.depth, spec.out), spec.dtype)
        low.add(Kernel("filter_panels", FilterPanels(lanes, flipped), (weights, panels), location=op.location))
        low.add(Kernel("correlate_lanes", lanes, (image, panels, out), location=op.location))
    low.define(name, out)


def _correlated(low: Lowering, op: Op, kind: str, spec: Correlation, first: View, second: View, out: View) -> None:
    """Append one kernel, in the faster of the two forms."""
    limits = low.target.convolutions
    if _by_columns(kind, spec, limits):
        spec, kind = parted(spec, kind, limits), f"{kind}_columns"
    low.add(Kernel(kind, spec, (first, second, out), location=op.location))


# --- windows and specs --------------------------------------------------------------------------------------------


def _windows(low: Lowering, op: Op, x: str, filter: str, out: str) -> Windows:
    """The windows of a convolution of `x` with `filter` to `out`."""
    image, weights, result, attrs = low.type(x), low.type(filter), low.type(out), op.attrs
    return windows_of(
        image.shape, result.shape, weights.shape[2:], attrs["strides"], attrs["dilations"], attrs["paddings"]
    )


def convolution_of(low: Lowering, op: Op, x: str, filter: str, out: str) -> tuple[Windows, Correlation]:
    """The windows of a convolution of `x` with `filter` to `out`, and the spec of its kernel."""
    image, weights, groups = low.type(x), low.type(filter), op.attrs["groups"]
    windows = _windows(low, op, x, filter, out)
    spec = correlation(windows, image.dtype, image.shape[0], groups, weights.shape[1], weights.shape[0] // groups)
    return windows, spec


def _patches(low: Lowering, op: Op, x: str, filter: str, out: str) -> Patches:
    """The spec of a convolution of `x` with `filter` to `out`, for kernels that read windows in place."""
    image, weights, groups = low.type(x), low.type(filter), op.attrs["groups"]
    windows = _windows(low, op, x, filter, out)
    return Patches(image.dtype, image.shape[0], groups, weights.shape[1], weights.shape[0] // groups, windows)


def _dense(low: Lowering, first: str, second: str) -> tuple[View, View]:
    return low.dense(low.entry(first)), low.dense(low.entry(second))


def correlation(windows: Windows, dtype: str, batch: int, groups: int, channels: int, out: int) -> Correlation:
    """The spec of a convolution. channels, out: input and output channels of each group."""
    padding = _padding(windows, dtype, batch * groups * channels)
    height, row = (padding.rows[1], padding.row) if padding else windows.size[1:]
    taps = range(0, windows.kernel[2] * windows.dilations[2], windows.dilations[2])
    return Correlation(
        dtype,
        batch,
        groups,
        channels,
        out,
        windows.kernel,
        windows.counts,
        padding.plane if padding else math.prod(windows.size),
        (windows.strides[0] * height * row, windows.strides[1] * row),
        (windows.dilations[0] * height * row, windows.dilations[1] * row),
        tuple(padding.along(t) if padding else t for t in taps),
    )


def _padding(windows: Windows, dtype: str, planes: int) -> Padding | None:
    """The padding that images need for a convolution; None if windows can read them as they are."""
    phases = windows.strides[2] if windows.counts[2] > 1 else 1
    return None if windows.inside and phases == 1 else windows.padding(dtype, planes, phases)


def image_padding(windows: Windows, spec: Correlation, dtype: str) -> Padding | None:
    """The padding of the images of a convolution, of this dtype."""
    return _padding(windows, dtype, spec.batch * spec.groups * spec.channels)


def _vectors(windows: Windows, limits: ConvolutionLimits) -> int:
    """Vector registers that the elements of one result plane take: a measure of time."""
    *rows, width = windows.counts
    return math.prod(rows) * -(-width // limits.lanes)


def _flipped(windows: Windows) -> Windows | None:
    """The windows over the padded result whose convolution is the adjoint; None if there are none."""
    before = [(k - 1) * d - b for k, d, b in zip(windows.kernel, windows.dilations, windows.before, strict=True)]
    if windows.strides != (1, 1, 1) or min(before) < 0:
        return None
    return replace(windows, size=windows.counts, before=triple(before, 0), counts=windows.size)


def convolution_back(
    windows: Windows, spec: Correlation, limits: ConvolutionLimits
) -> tuple[Windows, Correlation] | None:
    """The convolution that is the adjoint to the input, its windows and spec; None if there is none, or a slow one."""
    back = _flipped(windows)
    if back is None or _vectors(back, limits) > _vectors(windows, limits) * (1 + limits.addition_cost / spec.out):
        return None
    return back, correlation(back, spec.dtype, spec.batch, spec.groups, spec.out, spec.channels)


def flipped_filters(low: Lowering, spec: Correlation, weights: View) -> View:
    """The filters [group, out, in, *kernel] as [group, in, out, *kernel], with every kernel axis reversed.

    spec: of the result, whose output channels are the input channels of the filters.
    """
    steps = contiguous((spec.groups, spec.channels, spec.out, *spec.kernel))
    shape = (spec.groups, spec.out, spec.channels, *spec.kernel)
    strides = (steps[0], steps[2], steps[1], *(-n for n in steps[3:]))
    return low.dense(View(weights.root, weights.dtype, shape, strides, weights.offset + spec.size - 1))


def _by_element(low: Lowering, spec: Correlation, weights: View) -> View:
    """The filters as [group, kernel, channel, out]."""
    shape = (spec.groups, spec.size, spec.channels, spec.out)
    strides = (spec.out * spec.depth, 1, spec.size, spec.depth)
    return low.dense(View(weights.root, weights.dtype, shape, strides, weights.offset))


# --- direct form, or products of matrices -------------------------------------------------------------------------


def _by_columns(kind: str, spec: Correlation, limits: ConvolutionLimits) -> bool:
    """Whether products of matrices are faster than the direct form."""
    row = spec.counts[2] * np.dtype(spec.dtype).itemsize
    channels = spec.out * spec.channels
    return (
        channels >= limits.channels[kind]
        or (channels >= limits.short_row_channels and row <= limits.short_row_bytes)
        or (kind == "correlate" and _takes_pixels(spec, limits))
        # with filter rows of one element, the direct form uses nothing that it loads twice
        or (channels >= limits.single_tap_channels and kind == "filter_adjoint" and spec.kernel[2] == 1)
        or (spec.kernel[2] > limits.longest_filter_row and kind != "input_adjoint")
    )


def _takes_pixels(spec: Correlation, limits: ConvolutionLimits) -> bool:
    """Whether filters have one element and there are many channels: then the pixels are the columns of a product."""
    return spec.size == 1 and spec.channels * spec.out >= limits.point_channels


def parted(spec: Correlation, kind: str, limits: ConvolutionLimits) -> Correlation:
    """`spec` with the images, rows of windows and filters that one product takes."""
    wide = limits.pixels[kind]
    if kind == "filter_adjoint":
        shares = (n for n in (16, 8, 4, 2) if spec.channels % n == 0 and spec.depth >= n * limits.share)
        spec = replace(spec, shares=next(shares, 1))
    if spec.pixels < wide:
        wanted = -(-wide // spec.pixels)
        fitting = (n for n in range(wanted, spec.batch) if spec.batch % n == 0)
        return replace(spec, together=next(fitting, spec.batch))
    elements = limits.column_elements * (2 if spec.given else 1)  # of pairs, as many bytes
    count = max(wide, elements // spec.depth)
    if count >= spec.pixels:
        return spec
    return replace(spec, rows=min(spec.counts[1], -(-count // spec.counts[2])))
