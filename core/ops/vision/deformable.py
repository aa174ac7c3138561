"""Deformable convolution: the network computes offsets that move each tap."""

from __future__ import annotations

import math

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.common.ranges import Count
from core.ops.common.types import matches, same_size
from core.ops.common.windows import PLANE, Convolution, pads_of, reach, sizes
from core.ops.elementwise.arithmetic import cast
from core.ops.indexing.gather import slice_
from core.ops.linalg.matmul import matmul
from core.ops.shape.broadcast import expand
from core.ops.shape.reshape import reshape, reshape_as, squeeze, transpose, unsqueeze
from core.ops.vision.grid import channel_rows, interpolate_rows

__all__: list[str] = []


@composite
def deformable_conv2d(
    x,
    offset,
    filter,
    mask=None,
    bias=None,
    *,
    conv: Convolution = PLANE,
    deformable_groups: Count = 1,
):
    """Deformable convolution (Dai et al. 2017): `conv2d` whose taps are moved by `offset` and read x bilinearly.

    x is [n, c, h, w], the filter [o, c / groups, i, j], and the output [n, o, height, width].

    - `offset`: [n, 2 * d * i * j, height, width]. For each of the d `deformable_groups` of channels, and each tap in
      row-major order, it holds the distance down and the distance right.
    - `mask`: optional [n, d * i * j, height, width]; it multiplies the elements read (Zhu et al. 2019).

    Outside the image x counts as 0. All inputs get gradients. Where a tap falls exactly on an element, the gradient of
    the offset is one-sided.
    """
    if any(v.rank != 4 for v in (x, offset, filter)) or -1 in (*x.shape[1:], *filter.shape):
        raise ProgramError(
            f"needs four axes, of known sizes except those of the batch and the offset, not {x.type}, {offset.type} "
            f"and {filter.type}",
            "shape_mismatch",
        )
    (n, c, *spatial), (o, each, *kernel) = x.shape, filter.shape
    n = same_size(n, offset.shape[0], f"the batches of {x.type} and {offset.type} differ")
    d, groups, taps = deformable_groups, conv.groups, math.prod(kernel)
    if c % groups or o % groups or c % d or each * groups != c or 0 in (*spatial, *kernel):
        raise ProgramError(
            f"{groups} groups and {d} deformable_groups do not fit {x.type} and {filter.type}", "shape_mismatch"
        )
    strides, dilations = sizes(conv.strides, 2, "strides", 1), sizes(conv.dilations, 2, "dilations", 1)
    pads = pads_of(conv.paddings, 2)
    counts = [reach(*axis) for axis in zip(spatial, kernel, strides, pads, dilations, strict=True)]
    offset = _fitting(offset, (n, 2 * d * taps, *counts), "offset")
    mask = None if mask is None else _fitting(mask, (n, d * taps, *counts), "mask")

    many = -1 if n == -1 else n * d
    points = taps * math.prod(counts)
    offset_parts = reshape(offset, shape=(many, taps, 2, *counts))
    positions = []
    for axis in (0, 1):
        where = _tap_positions(x, axis, kernel, counts, strides[axis], dilations[axis], pads[axis][0])
        offsets = squeeze(slice_(offset_parts, axes=(2,), starts=(axis,), ends=(axis + 1,)), axes=(2,))
        positions.append(reshape(offsets + where, shape=(many, points)))
    rows, first = channel_rows(reshape(x, shape=(-1 if x.shape[0] == -1 else many, c // d, *spatial)))
    if -1 in (x.shape[0], n):  # the run checks that there is one offset for each image
        first = reshape_as(first, x.builder.emit("roll_positions", positions[0], shift=0, axis=0))
    taps_read = interpolate_rows(rows, first, positions, spatial)  # [n * d, points, c / d]
    if mask is not None:
        taps_read = taps_read * reshape(mask, shape=(many, points, 1))
    taps_read = transpose(reshape(taps_read, shape=(n, d, points, c // d)), axes=(0, 1, 3, 2))
    taps_read = reshape(taps_read, shape=(n, groups, each * taps, math.prod(counts)))
    out = matmul(reshape(filter, shape=(groups, o // groups, each * taps)), taps_read)
    out = reshape(out, shape=(n, o, *counts))
    return out if bias is None else out + unsqueeze(bias, axes=(1, 2))


def _fitting(value, wanted: tuple[int, ...], what: str):
    """`value`, whose open sizes the run checks. Raises ProgramError (shape_mismatch) if a known size differs."""
    if not matches(value.type, TensorType(wanted, value.dtype)):
        raise ProgramError(f"the {what} must be {list(wanted)}, not {value.type}", "shape_mismatch")
    return value if value.shape == wanted else value.builder.emit("check_shape", value, shape=wanted)


def _tap_positions(x, axis: int, kernel, counts, stride: int, dilation: int, before: int):
    """Positions of the taps along `axis` before the offsets, [taps, height, width]."""
    emit, at = x.builder.emit, kernel[axis]
    tap = emit("range", start=0.0, end=float(at * dilation), step=float(dilation), dtype="float64")
    tap = unsqueeze(tap, axes=(1,) if axis == 0 else (0,))
    tap = reshape(expand(tap, shape=tuple(kernel)), shape=(math.prod(kernel), 1, 1))
    window = emit("range", start=float(-before), end=float(-before + counts[axis] * stride), step=float(stride),
                  dtype="float64")  # fmt: skip
    window = unsqueeze(window, axes=(1,) if axis == 0 else (0,))
    return cast(tap + window, dtype=x.dtype)


def _by_definition(x, offset, filter, mask=None, bias=None, stride=1, pad=0, dilation=1, groups=1, d=1):
    """The op by its definition, one output at a time."""
    (n, c, h, w), (o, each, ki, kj) = x.shape, filter.shape
    height, width = offset.shape[2:]
    out = np.zeros((n, o, height, width))
    for b, f, y, z, e, i, j in np.ndindex(n, o, height, width, each, ki, kj):
        channel = f // (o // groups) * each + e
        tap = channel // (c // d) * ki * kj + i * kj + j
        v = y * stride - pad + i * dilation + offset[b, 2 * tap, y, z]
        u = z * stride - pad + j * dilation + offset[b, 2 * tap + 1, y, z]
        value = sum(
            x[b, channel, r, s] * (1 - abs(v - r)) * (1 - abs(u - s))
            for r in (math.floor(v), math.floor(v) + 1)
            for s in (math.floor(u), math.floor(u) + 1)
            if 0 <= r < h and 0 <= s < w
        )
        out[b, f, y, z] += filter[f, e, i, j] * value * (1 if mask is None else mask[b, tap, y, z])
    return out if bias is None else out + bias[:, None, None]


def _numbers(*shape, factor=3.0):
    return np.sin(np.arange(float(math.prod(shape))) * factor + 0.3).reshape(shape)


_X, _F = _numbers(1, 2, 3, 4), _numbers(2, 2, 2, 2, factor=5.0)
_O, _M = _numbers(1, 8, 2, 3, factor=7.0), _numbers(1, 4, 2, 3, factor=2.0)
_F1, _B = _numbers(4, 1, 1, 2, factor=5.0), np.array([0.1, -0.2, 0.3, 0.7])
_O2, _M2 = 1.7 * _numbers(1, 8, 3, 3, factor=7.0), _numbers(1, 4, 3, 3, factor=2.0)
_FAR = {"strides": (2,), "paddings": (1,), "dilations": (2,), "groups": 2, "deformable_groups": 2}
deformable_conv2d.example(
    lambda: [
        Example((_X, _O, _F), (_by_definition(_X, _O, _F),)),
        Example((_X, _O, _F, _M), (_by_definition(_X, _O, _F, _M),)),
        Example((_X, _O2[:, :, :, :2], _F1, _M2[:, :, :, :2], _B),
                (_by_definition(_X, _O2[:, :, :, :2], _F1, _M2[:, :, :, :2], _B, 2, 1, 2, 2, 2),), _FAR),
        Example((_X[:0], _O[:0], _F), (np.zeros((0, 2, 2, 3)),)),
    ]
)  # fmt: skip
