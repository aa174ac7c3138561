"""Dropout, and the shift of channels along time."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np

from core.ir.bounds import Bounds
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.common.ranges import Count, Probability
from core.ops.common.types import axes_of
from core.ops.elementwise.arithmetic import assign, stop_gradient
from core.ops.elementwise.logic import greater_equal, where, where_or_zero
from core.ops.elementwise.rounding import isnan
from core.ops.indexing.gather import slice_
from core.ops.random.like import uniform_random_like
from core.ops.reduction.sums import reduce_sum
from core.ops.shape.concat_split import concat, split
from core.ops.shape.creation import full_like
from core.ops.shape.pad import pad
from core.ops.shape.reshape import divided, merged

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])


LEVEL = -1.7580993408473766
"""Limit of `selu` for large negative x: minus its scale times its alpha."""


def _keep_mask(x, key, p: float, axes: tuple[int, ...] | None, seed: int, stream: int):
    """Bool mask, true with probability 1 - p, drawn per element of x, or per position along `axes` if given."""
    if axes is not None:
        shared_axes = tuple(i for i in range(x.rank) if i not in axes_of(axes, x.rank))
        if shared_axes:
            x = reduce_sum(x, axes=shared_axes, keepdims=True)  # for its shape: nothing reads its values
    uniform = uniform_random_like(stop_gradient(x), key, seed=seed, stream=stream)
    return greater_equal(uniform, full_like(uniform, value=p))


def _zeros(x):
    """Zeros like x, with gradient 0."""
    return where_or_zero(full_like(isnan(x), value=0.0), x)


@composite
def dropout(
    x,
    key=None,
    *,
    p: Probability = 0.5,
    is_test: bool = False,
    mode: Literal["upscale_in_train", "downscale_in_infer"] = "upscale_in_train",
    axes: tuple[int, ...] | None = None,
    seed: int = 0,
    stream: int = 0,
):
    """Set each element to 0 with probability `p` (Srivastava et al. 2014).

    - `mode`: with `upscale_in_train`, training divides the kept elements by ``1 - p`` and a test changes nothing. With
      `downscale_in_infer`, training leaves the kept elements as they are and a test multiplies by ``1 - p``.
    - `axes`: axes along which the mask is drawn; it is constant along the others. (0, 1) drops whole channels of [n, c,
      *spatial], known as dropout2d. Null means all axes.

    ``p = 1`` gives zeros. The gradient uses the same mask.
    """
    upscale = mode == "upscale_in_train"
    if axes is not None:
        axes = axes_of(axes, x.rank)
    if is_test:
        return assign(x) if upscale else x * (1.0 - p)
    if p == 1:
        return _zeros(x)
    keep = _keep_mask(x, key, p, axes, seed, stream)
    return where_or_zero(keep, x / (1.0 - p) if upscale else x)


dropout.example(
    lambda: [
        Example((X, np.array(3)), (), {"p": 0.4}),
        Example((X, np.array(3)), (0 * X,), {"p": 1.0}),
        Example((X,), (X,), {"is_test": True}),
        Example((X,), (X * 0.75,), {"is_test": True, "p": 0.25, "mode": "downscale_in_infer"}),
        Example((X[None], np.array(3)), (), {"p": 0.4, "axes": (0, -1)}),
        Example((X[:, :0], np.array(3)), (X[:, :0],), {"axes": (0,)}),
    ]
)


@composite
def alpha_dropout(x, key=None, *, p: Probability = 0.5, is_test: bool = False, seed: int = 0, stream: int = 0):
    """Dropout that keeps mean 0 and variance 1, for use with `selu` (Klambauer et al. 2017).

    With probability `p` an element is set to -1.7580993, the limit of `selu` for large negative x. A scale and a shift
    then restore mean and variance. ``p = 1`` gives zeros. A test changes nothing.
    """
    if is_test or p == 0:
        return assign(x)
    if p == 1:
        return _zeros(x)
    scale = 1.0 / math.sqrt((1.0 - p) * (1.0 + p * LEVEL**2))
    keep = _keep_mask(x, key, p, None, seed, stream)
    # kept: scale * x + shift; dropped: scale * LEVEL + shift; with shift = -scale * LEVEL * p
    return where(keep, x, x.builder.constant(LEVEL, x.dtype)) * scale - scale * LEVEL * p


alpha_dropout.example(
    lambda: [
        Example((X, np.array(3)), (), {"p": 0.4}),
        Example((X, np.array(3)), (0 * X,), {"p": 1.0}),
        Example((X,), (X,), {"is_test": True}),
        Example((X[:0], np.array(3)), (X[:0],)),
    ]
)


@composite
def temporal_shift(x, *, segments: Count, shift_ratio: Annotated[float, Bounds(ge=0, le=0.5)] = 0.25):
    """Temporal shift of channels of [n * segments, c, h, w], the consecutive frames of n videos (Lin et al. 2019).

    The first ``floor(c * shift_ratio)`` channels come from the frame before, the next as many from the frame after, and
    the others stay. Before the first and after the last frame there are zeros.
    """
    if x.rank != 4 or x.shape[1] == -1:
        raise ProgramError(f"needs [frames, c, h, w] with a known number c of channels, not {x.type}", "shape_mismatch")
    frames, c = x.shape[:2]
    if frames % segments and frames != -1:
        raise ProgramError(f"{frames} frames are not a multiple of {segments} segments", "bad_attr")
    shifted_count = int(c * shift_ratio)
    videos_apart = divided(x, 0, (-1, segments))
    from_previous, from_next, rest = split(
        videos_apart, sections=(shifted_count, shifted_count, c - 2 * shifted_count), axis=2
    )

    def shifted(part, before: int):
        padded = pad(part, paddings=(0, 0, before, 1 - before, *(0,) * 6))
        return slice_(padded, axes=(1,), starts=(1 - before,), ends=(1 - before + segments,))

    out = concat(shifted(from_previous, 1), shifted(from_next, 0), rest, axis=2)
    return merged(out, 0, 2)


def _shifted(x, segments, shifted_count):
    out = x.copy()
    out[:, : 2 * shifted_count] = 0
    for i in range(len(x)):
        if i % segments > 0:
            out[i, :shifted_count] = x[i - 1, :shifted_count]
        if i % segments < segments - 1:
            out[i, shifted_count : 2 * shifted_count] = x[i + 1, shifted_count : 2 * shifted_count]
    return out


FRAMES = np.arange(24.0).reshape(6, 4, 1, 1)
temporal_shift.example(
    lambda: [
        Example((FRAMES,), (_shifted(FRAMES, 3, 1),), {"segments": 3}),
        Example((FRAMES,), (_shifted(FRAMES, 2, 2),), {"segments": 2, "shift_ratio": 0.5}),
        Example((FRAMES.reshape(2, 4, 1, 3),), (_shifted(FRAMES.reshape(2, 4, 1, 3), 1, 1),), {"segments": 1}),
        Example((FRAMES[:0],), (FRAMES[:0],), {"segments": 2}),
    ]
)
