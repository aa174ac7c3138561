"""Types of convolutions, poolings and resampling."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, prod
from typing import Any, TypeVar

from backpass_client.builder.inference.rules import rule
from backpass_client.builder.inference.sizes import changed, floats, product, same_dtype, same_size
from backpass_client.builder.types import InvalidOp, NotKnown, Size, Type

__all__: list[str] = []

N = TypeVar("N", int, float)


def _each(given: Sequence[N], rank: int) -> list[N]:
    """One number for each spatial axis."""
    return list(given) * rank if len(given) == 1 else list(given)


def _margins(paddings: Sequence[int], rank: int) -> list[int]:
    """The zeros added to each spatial axis, on both sides together."""
    if len(paddings) == 2 * rank:
        return [before + after for before, after in zip(paddings[::2], paddings[1::2], strict=True)]
    return [2 * n for n in _each(paddings, rank)]


def _windows(size: Size, kernel: Size, stride: int, margin: int, dilation: int = 1, up: bool = False) -> Size:
    if not isinstance(kernel, int):
        return None
    span = dilation * (kernel - 1) + 1
    if stride == 1 and margin == span - 1:
        return size
    if not isinstance(size, int):
        return None
    rest = size + margin - span
    if rest < 0:
        raise InvalidOp(f"a window of {span} does not fit into {size + margin}")
    return (-(-rest // stride) if up else rest // stride) + 1


def _channels_last(data_format: str) -> bool:
    return data_format.endswith("C")


@rule("conv1d", "conv2d", "conv3d", "depthwise_conv2d")
def conv(
    x: Type,
    filter: Type,
    bias: Type | None,
    strides: list[int],
    paddings: list[int],
    dilations: list[int],
    padding: str,
    data_format: str,
    groups: int | None = None,
    **attrs: Any,
) -> Type:
    floats(x)
    dtype = same_dtype(x, filter, *(t for t in (bias,) if t is not None))
    if x.rank != filter.rank or x.rank < 3:
        raise InvalidOp("x and filter must have the same rank, of at least 3")
    last, rank = _channels_last(data_format), x.rank - 2
    channels = x.dims[-1] if last else x.dims[1]
    spatial = x.dims[1:-1] if last else x.dims[2:]
    if groups is None:
        groups = channels if isinstance(channels, int) else None
    per_group = filter.dims[1]
    if isinstance(channels, int) and isinstance(per_group, int) and groups and channels != per_group * groups:
        each = f" for each of {groups} groups" if groups > 1 else ""
        raise InvalidOp(f"x has {channels} channels, but the filter needs {per_group}{each}")
    if bias is not None and bias.rank == 1:
        same_size(bias.dims[0], filter.dims[0], "one bias for each output channel")
    steps, apart = _each(strides, rank), _each(dilations, rank)
    if padding == "same":
        out = [
            n if s == 1 else changed(n, lambda size, s=s: -(-size // s)) for n, s in zip(spatial, steps, strict=True)
        ]
    else:
        margins = [0] * rank if padding == "valid" else _margins(paddings, rank)
        sizes = zip(spatial, filter.dims[2:], steps, margins, apart, strict=True)
        out = [_windows(*each) for each in sizes]
    return Type(dtype, (x.dims[0], *out, filter.dims[0]) if last else (x.dims[0], filter.dims[0], *out))


@rule("correlate")
def correlate(x: Type, filter: Type, strides: Any, paddings: Any, dilations: Any, groups: int, **attrs: Any) -> Type:
    return conv(x, filter, None, strides, paddings, dilations, "explicit", "NCX", groups)


@rule("conv1d_transpose", "conv2d_transpose", "conv3d_transpose")
def conv_transpose(
    x: Type,
    filter: Type,
    bias: Type | None,
    strides: list[int],
    paddings: list[int],
    dilations: list[int],
    output_padding: list[int],
    padding: str,
    data_format: str,
    groups: int,
    **attrs: Any,
) -> Type:
    floats(x)
    last, rank = _channels_last(data_format), x.rank - 2
    spatial = x.dims[1:-1] if last else x.dims[2:]
    same_size(x.dims[-1] if last else x.dims[1], filter.dims[0], "channels of x and filter differ")
    channels = changed(filter.dims[1], lambda n: n * groups)
    out = []
    margins = _margins(paddings, rank) if padding == "explicit" else [0] * rank
    lists = (_each(strides, rank), margins, _each(dilations, rank), _each(output_padding, rank))
    for n, k, step, margin, apart, more in zip(spatial, filter.dims[2:], *lists, strict=True):
        if not isinstance(k, int):
            raise NotKnown
        grown = step if padding == "same" else apart * (k - 1) + 1 + more - margin
        out.append(n if (step, grown) == (1, 1) else changed(n, lambda n, by, more: (n - 1) * by + more, step, grown))
    return Type(same_dtype(x, filter), (x.dims[0], *out, channels) if last else (x.dims[0], channels, *out))


def _pooled(
    x: Type,
    kernel_size: list[int],
    strides: list[int] | None,
    paddings: list[int],
    ceil_mode: bool,
    dilations: list[int],
) -> tuple[Size, ...]:
    rank = x.rank - 2
    kernel = _each(kernel_size, rank)
    steps = kernel if strides is None else _each(strides, rank)
    if ceil_mode:  # a last window that begins behind the end is left out
        raise NotKnown
    sizes = zip(x.dims[2:], kernel, steps, _margins(paddings, rank), _each(dilations, rank), strict=True)
    return (*x.dims[:2], *(_windows(*each) for each in sizes))


@rule("max_pool", "max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(
    x: Type, kernel_size: Any, strides: Any, paddings: Any, ceil_mode: bool, dilations: Any, **attrs: Any
) -> tuple[Type, Type]:
    sizes = _pooled(x, kernel_size, strides, paddings, ceil_mode, dilations)
    return Type(x.kind, sizes), Type("int64", sizes)


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "lp_pool", "window_sum")
def avg_pool(
    x: Type, kernel_size: Any, strides: Any, paddings: Any, ceil_mode: bool, dilations: Any, **attrs: Any
) -> Type:
    floats(x)
    return Type(x.kind, _pooled(x, kernel_size, strides, paddings, ceil_mode, dilations))


@rule("global_avg_pool", "global_max_pool")
def global_pool(x: Type, **attrs: Any) -> Type:
    return Type(x.kind, (*x.dims[:2], *(1,) * (x.rank - 2)))


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(x: Type, output_size: list[int], **attrs: Any) -> Type:
    return Type(x.kind, (*x.dims[:2], *_each(output_size, x.rank - 2)))


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(x: Type, output_size: list[int], **attrs: Any) -> tuple[Type, Type]:
    sizes = (*x.dims[:2], *_each(output_size, x.rank - 2))
    return Type(x.kind, sizes), Type("int64", sizes)


@rule("max_unpool", "fold")
def of_output_size(x: Type, *others: Type, output_size: list[int], kernel: list[int] | None = None, **a: Any) -> Type:
    if kernel is None:
        return Type(x.kind, (*x.dims[:2], *_each(output_size, x.rank - 2)))
    area = prod(_each(kernel, len(output_size)))
    return Type(x.kind, (x.dims[0], changed(x.dims[1], lambda n: n // area), *output_size))


@rule("interpolate")
def interpolate(x: Type, size: list[int] | None, scale_factor: list[float] | None, **attrs: Any) -> Type:
    rank = x.rank - 2
    if not 1 <= rank <= 3 or not all(isinstance(n, int) for n in x.dims[2:]):
        raise InvalidOp("needs 1 to 3 spatial axes whose sizes are numbers")
    if (size is None) == (scale_factor is None):
        raise InvalidOp("give either size or scale_factor")
    if size is not None:
        return Type(x.kind, (*x.dims[:2], *_each(size, rank)))
    scaled = zip(x.dims[2:], _each(scale_factor or [], rank), strict=True)
    return Type(x.kind, (*x.dims[:2], *(changed(n, lambda n, by: floor(n * by), by) for n, by in scaled)))


@rule("unfold")
def unfold(
    x: Type, kernel: list[int], strides: list[int], paddings: list[int], dilations: list[int], **attrs: Any
) -> Type:
    rank = x.rank - 2
    if not 1 <= rank <= 3 or not all(isinstance(n, int) for n in x.dims[2:]):
        raise InvalidOp("needs 1 to 3 spatial axes whose sizes are numbers")
    sizes = _each(kernel, rank)
    lists = (_each(strides, rank), _margins(paddings, rank), _each(dilations, rank))
    windows = [_windows(*each) for each in zip(x.dims[2:], sizes, *lists, strict=True)]
    return Type(x.kind, (x.dims[0], changed(x.dims[1], lambda n: n * prod(sizes)), product(windows)))


@rule("grid_sample")
def grid_sample(x: Type, grid: Type, **attrs: Any) -> Type:
    return Type(x.kind, (*x.dims[:2], *grid.dims[1:-1]))


@rule("affine_grid")
def affine_grid(theta: Type, size: list[int], **attrs: Any) -> Type:
    return Type(theta.kind, (theta.dims[0], *size, len(size)))


@rule("roi_align", "roi_pool")
def of_regions(x: Type, boxes: Type, image: Type, output_size: list[int], **attrs: Any) -> Type:
    return Type(x.kind, (boxes.dims[0], x.dims[1], *_each(output_size, 2)))
