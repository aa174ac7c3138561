"""Reads between elements at positions from data: deformable convolution and regions of interest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.beside_torch.convolution import correlate
from tests.beside_torch.installed import torch
from tests.beside_torch.pools import each, pads
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def hats(at: Any, size: int) -> Any:
    """[..., size]: the weight of each element at a position between two elements; all are 0 far outside."""
    return torch.clamp(1 - torch.abs(at.unsqueeze(-1) - torch.arange(size, dtype=at.dtype)), min=0)


def deformable(
    x: Any,
    offset: Any,
    filter: Any,
    mask: Any,
    bias: Any,
    strides: Any,
    paddings: Any,
    dilations: Any,
    groups: int,
    deformable_groups: int,
) -> Any:
    """Read every tap into an image [h * i, w * j], then convolve it with strides equal to the filter size."""
    (i, j), (height, width) = filter.shape[2:], offset.shape[2:]
    (sy, sx), (dy, dx) = each(strides, 2), each(dilations, 2)
    (top, _), (left, _) = pads(paddings, 2)
    moves = offset.reshape(offset.shape[0], deformable_groups, i, j, 2, height, width)
    rows = torch.arange(height).reshape(-1, 1) * sy - top + (torch.arange(i) * dy).reshape(-1, 1, 1, 1)
    columns = torch.arange(width) * sx - left + (torch.arange(j) * dx).reshape(-1, 1, 1)
    down, right = hats(rows + moves[..., 0, :, :], x.shape[2]), hats(columns + moves[..., 1, :, :], x.shape[3])
    parts = x.unflatten(1, (deformable_groups, x.shape[1] // deformable_groups))
    read = torch.einsum("ndcyx,ndijhwy,ndijhwx->ndcijhw", parts, down, right)
    if mask is not None:
        read = read * mask.reshape(mask.shape[0], deformable_groups, 1, i, j, height, width)
    taps = read.permute(0, 1, 2, 5, 3, 6, 4).reshape(x.shape[0], x.shape[1], height * i, width * j)
    out = correlate(taps, filter, (i, j), (0,), (1,), groups)
    return out if bias is None else out + bias.reshape(-1, 1, 1)


def along(low: Any, length: Any, bins: int, points: int, size: int) -> Any:
    """[boxes, bins, size]: the weights of one axis, the mean over the points of each bin."""
    at = low.unsqueeze(1) + (torch.arange(bins * points, dtype=low.dtype) + 0.5) / (bins * points) * length.unsqueeze(1)
    inside = ((at >= -1) & (at <= size)).to(low.dtype).unsqueeze(-1)
    weights = hats(torch.clamp(at, 0, size - 1), size) * inside
    return weights.reshape(-1, bins, points, size).mean(2)


def line(low: Any, length: Any, bins: int, points: int, size: int) -> Any:
    """[bins, points, size]: the weights of one axis of one box; those of a point outside are 0."""
    at = low + (torch.arange(bins * points, dtype=low.dtype) + 0.5) / max(bins * points, 1) * length
    inside = ((at >= -1) & (at <= size)).to(low.dtype).unsqueeze(-1)
    return (hats(torch.clamp(at, 0, size - 1), size) * inside).reshape(bins, points, size)


def by_box(x: Any, corners: Any, output_size: Any, sampling_ratio: int, mode: str) -> Any:
    """Boxes one after another, as their numbers of points differ. An element without weight counts as 0 at a border."""
    out = []
    for image, low, length in corners:
        rows, columns = (
            line(low[k], length[k], n, sampling_ratio or max(math.ceil(float(length[k]) / n), 0), x.shape[2 + k])
            for k, n in enumerate(output_size)
        )
        points = rows.shape[1] * columns.shape[1]
        if mode == "avg" or not points:
            out.append(torch.einsum("cyx,hpy,wqx->chw", x[image], rows, columns) / max(points, 1))
            continue
        weight = torch.einsum("hpy,wqx->hwpqyx", rows, columns)
        found = torch.where(weight > 0, x[image][:, None, None, None, None] * weight, -torch.inf)
        border = (weight > 0).sum((-1, -2)) < 4
        found = torch.maximum(found.amax((-1, -2)), torch.where(border, 0.0, -torch.inf))
        out.append(found.amax((-1, -2)))
    return torch.stack(out)


def roi_align(
    x: Any,
    boxes: Any,
    image: Any,
    output_size: Any,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    mode: str,
) -> Any:
    output_size = each(output_size, 2)
    left, top, right, bottom = (boxes * spatial_scale - (0.5 if aligned else 0.0)).unbind(1)
    wide, high = right - left, bottom - top
    if not aligned:
        wide, high = wide.clamp(min=1), high.clamp(min=1)
    if mode == "max" or sampling_ratio == 0:
        lows, lengths = torch.stack([top, left], 1), torch.stack([high, wide], 1)
        return by_box(x, zip(image, lows, lengths, strict=True), output_size, sampling_ratio, mode)
    rows = along(top, high, output_size[0], sampling_ratio, x.shape[2])
    columns = along(left, wide, output_size[1], sampling_ratio, x.shape[3])
    return torch.einsum("rcyx,rhy,rwx->rchw", x[image], rows, columns)


def roi_pool(x: Any, boxes: Any, image: Any, output_size: Any, spatial_scale: float) -> Any:
    output_size, out = each(output_size, 2), []
    for k, box in zip(image.tolist(), (boxes.detach() * spatial_scale).numpy(), strict=True):
        left, top, right, bottom = np.floor(box + 0.5).astype(int).tolist()
        spans = []
        for low, high, bins, size in (
            (top, bottom, output_size[0], x.shape[2]),
            (left, right, output_size[1], x.shape[3]),
        ):
            n = max(high - low + 1, 1)
            ends = [(low + b * n // bins, low - (-(b + 1) * n // bins)) for b in range(bins)]
            spans.append([(min(max(a, 0), size), min(max(e, 0), size)) for a, e in ends])
        for a, e in spans[0]:
            for s, t in spans[1]:
                part = x[k, :, a:e, s:t].flatten(1)
                out.append(part.gather(1, part.argmax(1, True)).squeeze(1) if part.shape[1] else 0 * x[k, :, 0, 0])
    shape = (boxes.shape[0], *output_size, x.shape[1])
    return (torch.stack(out) if out else x.new_zeros(0)).reshape(shape).permute(0, 3, 1, 2)


OPS: dict[str, Callable[..., Any]] = {
    "deformable_conv2d": deformable,
    "roi_align": roi_align,
    "roi_pool": roi_pool,
}

BOXES = np.array([[0.31, 0.72, 4.13, 3.94], [1.22, 0.17, 3.36, 5.29], [-0.61, 2.43, 2.94, 4.67]])
WHICH = np.array([0, 1, 1])

MORE: dict[str, list[Inputs]] = {
    "deformable_conv2d": [
        case(
            (2, 4, 5, 6),
            (2, 16, 2, 5),
            (3, 4, 2, 2),
            (2, 8, 2, 5),
            (3,),
            span=(-1.7, 1.9),
            deformable_groups=2,
            strides=(2, 1),
        ),
        case((1, 4, 4, 4), (1, 8, 5, 5), (2, 2, 2, 2), span=(-1.7, 1.9), groups=2, paddings=(1,)),
        case((1, 2, 5, 5), (1, 8, 3, 3), (2, 2, 2, 2), (1, 4, 3, 3), span=(-1.7, 1.9), dilations=(2,)),
    ],
    "roi_align": [
        case((2, 3, 6, 5), BOXES, WHICH, output_size=s, aligned=a, sampling_ratio=r)
        for s in ((1, 1), (2, 3))
        for a in (True, False)
        for r in (1, 2, 3)
    ],
    "roi_pool": [
        case((2, 3, 6, 5), BOXES, WHICH, output_size=s, spatial_scale=f) for s in ((1, 1), (3, 2)) for f in (1.0, 0.5)
    ],
}
