"""Ops that move elements between channels and space, and between images and columns of windows."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np

from core.ir import TensorType
from core.ir.bounds import Bounds
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.ranges import Count, Reach, Size, Span
from core.ops.common.windows import pads_of
from core.ops.common.windows import sizes as each_axis
from core.ops.indexing.gather import gather, scatter_add_like, slice_
from core.ops.shape.creation import fill_constant_batch_size_like
from core.ops.shape.pad import pad
from core.ops.shape.reshape import divided, merged, rearranged
from core.ops.vision.window_columns import columns_of, columns_of_tiles, counts_of, image_of, image_of_tiles, tiles_of

__all__: list[str] = []

Kernel = Annotated[tuple[Span, ...], Bounds(min_length=1, max_length=3)]
_INTEGER = "its result is an integer"


def _image(x, what: str) -> tuple[int, int, int, int]:
    if x.rank != 4:
        raise ProgramError(f"{what} takes [batch, channels, height, width], not {x.type}", "shape_mismatch")
    return x.shape


def _apart(size: int, factor: int) -> bool:
    """Whether a known size is not a multiple of `factor`. The run checks an unknown one."""
    return size != -1 and size % factor != 0


def _blocks_to_channels(x, f: int, order: tuple[int, ...]):
    """The positions in each f by f square of x [n, c, h f, w f] as channels: [n, c f f, h, w].

    order: of the axes [n, c, h, f, w, f]; the last two are height and width.
    """
    return rearranged(x, ((-1,), (-1,), (-1, f), (-1, f)), order, (1, 3, 1, 1))


def _channels_to_blocks(x, sizes: tuple[int, ...], order: tuple[int, ...]):
    """The inverse of `_blocks_to_channels`: the channels are divided into `sizes`, `order` is [n, c, h, f, w, f]."""
    return rearranged(x, ((-1,), sizes, (-1,), (-1,)), order, (1, 1, 2, 2))


@composite
def pixel_shuffle(x, *, factor: Span):
    """[n, c f f, h, w] rearranged to [n, c, h f, w f], where f is `factor`.

    Channel c f f + i f + j becomes row i, column j of each f by f square.
    """
    _, c, _, _ = _image(x, "pixel_shuffle")
    if _apart(c, factor**2):
        raise ProgramError(f"{c} channels are not a multiple of the square of factor {factor}", "bad_attr")
    return _channels_to_blocks(x, (-1, factor, factor), (0, 1, 4, 2, 5, 3))


@composite
def pixel_unshuffle(x, *, factor: Span):
    """[n, c, h f, w f] rearranged to [n, c f f, h, w]: the inverse of `pixel_shuffle`."""
    _, _, h, w = _image(x, "pixel_unshuffle")
    if _apart(h, factor) or _apart(w, factor):
        raise ProgramError(f"{h} by {w} is not a multiple of factor {factor}", "bad_attr")
    return _blocks_to_channels(x, factor, (0, 1, 3, 5, 2, 4))


@composite
def space_to_depth(x, *, block_size: Span):
    """[n, c, h b, w b] rearranged to [n, b b c, h, w], where b is `block_size`.

    The position inside each b by b square becomes the slower-varying part of the channel index.
    """
    _, _, h, w = _image(x, "space_to_depth")
    if _apart(h, block_size) or _apart(w, block_size):
        raise ProgramError(f"{h} by {w} is not a multiple of block_size {block_size}", "bad_attr")
    return _blocks_to_channels(x, block_size, (0, 3, 5, 1, 2, 4))


@composite
def depth_to_space(x, *, block_size: Span):
    """[n, b b c, h, w] rearranged to [n, c, h b, w b]: the inverse of `space_to_depth`."""
    _, c, _, _ = _image(x, "depth_to_space")
    if _apart(c, block_size**2):
        raise ProgramError(f"{c} channels are not a multiple of the square of block_size {block_size}", "bad_attr")
    return _channels_to_blocks(x, (block_size, block_size, -1), (0, 3, 4, 1, 5, 2))


@composite
def channel_shuffle(x, *, groups: Count):
    """Channels of [n, c, h, w] shuffled (Zhang et al. 2018): viewed as [groups, c / groups] and transposed."""
    _, c, _, _ = _image(x, "channel_shuffle")
    if _apart(c, groups):
        raise ProgramError(f"{c} channels are not a multiple of {groups} groups", "bad_attr")
    return rearranged(x, ((-1,), (groups, -1), (-1,), (-1,)), (0, 2, 1, 3, 4), (1, 2, 1, 1))


def _image_cases(f, attr: str, deep: bool):
    images = [np.arange(16.0).reshape(1, 4, 2, 2), np.arange(16.0).reshape(2, 4, 1, 2), np.zeros((0, 4, 2, 2))]
    if not deep:
        images = [np.arange(16.0).reshape(1, 1, 4, 4), np.arange(16.0).reshape(2, 2, 2, 2), np.zeros((0, 1, 2, 2))]
    return lambda: [Example((x,), (f(x),), {attr: 2}) for x in images]


def _shuffled(x):
    n, c, h, w = x.shape
    out = np.zeros((n, c // 4, h * 2, w * 2))
    for k, i, j in np.ndindex(c // 4, 2, 2):
        out[:, k, i::2, j::2] = x[:, 4 * k + 2 * i + j]
    return out


def _unshuffled(x):
    return np.concatenate([x[:, k : k + 1, i::2, j::2] for k in range(x.shape[1]) for i in (0, 1) for j in (0, 1)], 1)


def _deepened(x):
    return np.concatenate([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)], 1)


def _spaced(x):
    n, c, h, w = x.shape
    out = np.zeros((n, c // 4, h * 2, w * 2))
    for i, j in np.ndindex(2, 2):
        first = (2 * i + j) * (c // 4)
        out[:, :, i::2, j::2] = x[:, first : first + c // 4]
    return out


pixel_shuffle.example(_image_cases(_shuffled, "factor", deep=True))
pixel_unshuffle.example(_image_cases(_unshuffled, "factor", deep=False))
space_to_depth.example(_image_cases(_deepened, "block_size", deep=False))
depth_to_space.example(_image_cases(_spaced, "block_size", deep=True))
channel_shuffle.example(_image_cases(lambda x: x[:, [0, 2, 1, 3]], "groups", deep=True))


# --- windows as columns ----------------------------------------------------------------------------------------


@op(no_gradient=_INTEGER)
def window_positions(
    xp,
    *,
    sizes: tuple[Size, ...],
    kernel: tuple[Span, ...],
    strides: tuple[Span, ...],
    dilations: tuple[Span, ...],
):
    """Row-major position of each element of each window over axes of `sizes`, as int64 [elements, windows]."""
    n = len(sizes)
    out = np.zeros((1,) * (2 * n), "int64")
    for axis, (size, k, s, d) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        along = np.add.outer(np.arange(k) * d, np.arange(0, size - d * (k - 1), s)) * math.prod(sizes[axis + 1 :])
        out = out + along.reshape(*(m if i == axis else 1 for m in along.shape for i in range(n)))
    return xp.asarray(out.reshape(math.prod(kernel), -1))


def _starts(size: int, kernel: int, stride: int, dilation: int) -> range:
    return range(0, size - dilation * (kernel - 1), stride)


@window_positions.infer
def window_positions_infer(*, sizes, kernel, strides, dilations):
    if not len(sizes) == len(kernel) == len(strides) == len(dilations) > 0:
        raise ProgramError("sizes, kernel, strides and dilations must have one number for each axis", "bad_attr")
    counts = [len(_starts(*each)) for each in zip(sizes, kernel, strides, dilations, strict=True)]
    if min(counts) < 1:
        raise ProgramError(f"a window of {list(kernel)} does not fit into {list(sizes)}", "shape_mismatch")
    return TensorType((math.prod(kernel), math.prod(counts)), "int64")


window_positions.example(
    lambda: [
        Example((), (np.array([[0, 2], [6, 8]]),),
                {"sizes": (3, 3), "kernel": (2, 1), "strides": (1, 2), "dilations": (2, 1)}),
        Example((), (np.array([[0, 1, 2], [2, 3, 4]]),),
                {"sizes": (5,), "kernel": (2,), "strides": (1,), "dilations": (2,)}),
    ]
)  # fmt: skip


def _window(rank: int, kernel, strides, paddings, dilations):
    """Kernel, strides and dilations of each axis, and its padding (before, after)."""
    each = (kernel, "kernel"), (strides, "strides"), (dilations, "dilations")
    return *(each_axis(values, rank, what, 1) for values, what in each), pads_of(paddings, rank)


@composite
def unfold(
    x,
    *,
    kernel: Kernel,
    strides: tuple[Span, ...] = (1,),
    paddings: tuple[Reach, ...] = (0,),
    dilations: tuple[Span, ...] = (1,),
):
    """Windows of x [n, c, *spatial] as columns [n, c * elements of a window, windows], both in row-major order.

    There are one to three spatial axes. Each attribute has one number for all axes or one for each; `paddings` may also
    have two for each, before and after it.
    """
    rank = x.rank - 2
    if not 1 <= rank <= 3:
        raise ProgramError(f"unfold takes [batch, channels, *spatial] with 1 to 3 spatial axes, not {x.type}",
                           "shape_mismatch")  # fmt: skip
    n, c, *spatial = x.shape
    if -1 in spatial or (n, c).count(-1) > 1:
        raise ProgramError(f"unfold needs known spatial sizes, not {x.type}", "shape_mismatch")
    kernel, strides, dilations, pads = _window(rank, kernel, strides, paddings, dilations)
    x = pad(x, paddings=(0, 0, 0, 0, *(p for pair in pads for p in pair)))
    padded = tuple(m + sum(p) for m, p in zip(spatial, pads, strict=True))
    if (counts := counts_of(padded, kernel, strides, dilations)) is not None:
        return columns_of(x, kernel, dilations, counts)
    if (counts := tiles_of(padded, kernel, strides, dilations)) is not None:
        return columns_of_tiles(x, kernel, counts)
    at = x.builder.emit("window_positions", sizes=padded, kernel=kernel, strides=strides, dilations=dilations)
    columns = gather(merged(x, 2, x.rank), at, axis=2)
    return merged(columns, 1, 3)


@composite
def fold(
    x,
    *,
    output_size: Annotated[tuple[Reach, ...], Bounds(min_length=1, max_length=3)],
    kernel: Kernel,
    strides: tuple[Span, ...] = (1,),
    paddings: tuple[Reach, ...] = (0,),
    dilations: tuple[Span, ...] = (1,),
):
    """Columns [n, c * elements of a window, windows] summed into [n, c, *output_size]: the transpose of `unfold`."""
    if x.rank != 3 or -1 in x.shape[1:]:
        raise ProgramError(
            f"fold takes [batch, elements, windows] with known elements and windows, not {x.type}", "shape_mismatch"
        )
    rank = len(output_size)
    kernel, strides, dilations, pads = _window(rank, kernel, strides, paddings, dilations)
    padded = tuple(m + sum(p) for m, p in zip(output_size, pads, strict=True))
    at = x.builder.emit("window_positions", sizes=padded, kernel=kernel, strides=strides, dilations=dilations)
    n, deep, count = x.shape
    if deep % at.shape[0] or count != at.shape[1]:
        raise ProgramError(
            f"fold needs {at.shape[1]} windows of {at.shape[0]} elements per channel, not {x.type}", "shape_mismatch"
        )
    if (counts := counts_of(padded, kernel, strides, dilations)) is not None:
        image = image_of(x, padded, kernel, dilations, counts)
    elif (counts := tiles_of(padded, kernel, strides, dilations)) is not None:
        image = image_of_tiles(x, kernel, counts)
    else:
        c = deep // at.shape[0]
        like = fill_constant_batch_size_like(x, shape=(n, c, math.prod(padded)), dtype=x.dtype)
        flat = scatter_add_like(divided(x, 1, (c, at.shape[0])), at, like, axis=2)
        image = divided(flat, 2, padded)
    starts = tuple(before for before, _ in pads)
    ends = tuple(before + m for (before, _), m in zip(pads, output_size, strict=True))
    return slice_(image, axes=tuple(range(2, 2 + rank)), starts=starts, ends=ends)


def _columns(x, kernel, strides=(1, 1), paddings=(0, 0), dilations=(1, 1)):
    x = np.pad(x, ((0, 0), (0, 0), (paddings[0],) * 2, (paddings[1],) * 2))
    rows = range(0, x.shape[2] - dilations[0] * (kernel[0] - 1), strides[0])
    columns = range(0, x.shape[3] - dilations[1] * (kernel[1] - 1), strides[1])
    out = [
        x[:, :, r : r + dilations[0] * (kernel[0] - 1) + 1 : dilations[0],
          c : c + dilations[1] * (kernel[1] - 1) + 1 : dilations[1]].reshape(x.shape[0], -1)
        for r in rows for c in columns
    ]  # fmt: skip
    return np.stack(out, -1)


_IMAGE = np.arange(18.0).reshape(1, 2, 3, 3)
_WIDE = np.arange(12.0).reshape(2, 1, 2, 3)
_UNFOLD = [
    {"kernel": (2, 2)},
    {"kernel": (2, 1), "strides": (2, 1), "paddings": (1, 0)},
    {"kernel": (2, 2), "dilations": (2, 1)},
]
_LINE = np.arange(10.0).reshape(1, 2, 5) + 1
_LINE_COLUMNS = np.array([[[0.0, 2, 4], [1, 3, 5], [0, 7, 9], [6, 8, 10]]])
_BOX = np.arange(12.0).reshape(1, 1, 2, 2, 3)
unfold.example(
    lambda: [*(Example((_IMAGE,), (_columns(_IMAGE, **a),), a) for a in _UNFOLD),
             Example((_WIDE,), (_columns(_WIDE, (1, 2)),), {"kernel": (1, 2)}),
             Example((_IMAGE[:0],), (np.zeros((0, 8, 4)),), {"kernel": (2, 2)}),
             Example((_LINE,), (_LINE_COLUMNS,), {"kernel": (2,), "strides": (2,), "paddings": (1, 0)}),
             Example((_BOX,), (_BOX.reshape(1, 1, 2, 6).swapaxes(1, 2).reshape(1, 2, 6),), {"kernel": (2, 1, 1)})]
)  # fmt: skip
fold.example(
    lambda: [
        Example((np.ones((1, 4, 4)),), (np.array([[[[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]]]),),
                {"output_size": (3, 3), "kernel": (2, 2)}),
        Example((np.ones((2, 4, 2)),), (np.array([[1.0, 1], [1, 1]]) + np.zeros((2, 2, 2, 2)),),
                {"output_size": (2, 2), "kernel": (1, 2), "strides": (1, 2)}),
        Example((np.zeros((0, 4, 4)),), (np.zeros((0, 1, 3, 3)),), {"output_size": (3, 3), "kernel": (2, 2)}),
        Example((_LINE_COLUMNS,), (_LINE,),
                {"output_size": (5,), "kernel": (2,), "strides": (2,), "paddings": (1, 0)}),
        Example((_BOX.reshape(1, 2, 6),), (_BOX,), {"output_size": (2, 2, 3), "kernel": (2, 1, 1)}),
    ]
)  # fmt: skip
