"""Images read at other positions: resized, sampled, and as patches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.beside_torch.installed import F, torch
from tests.beside_torch.pools import bordered, each, pads
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def keys(d: Any, a: float) -> Any:
    """Keys' cubic kernel at distances d."""
    inner = (a + 2) * d**3 - (a + 3) * d**2 + 1
    return torch.where(d <= 1, inner, torch.where(d < 2, a * (d**3 - 5 * d**2 + 8 * d - 4), torch.zeros_like(d)))


def resize(
    x: Any, sizes: Any, scales: Any, axes: Any, mode: str, coordinates: str, nearest_mode: str,
    cubic_coefficient: float, exclude_outside: bool, antialias: bool, roi: Any, extrapolation_value: float,
    keep_aspect_ratio: str,
) -> Any:  # fmt: skip
    """Each axis as a product with the matrix of the kernel at the distances of all elements, borders repeated."""
    axes = [a % x.ndim for a in (range(x.ndim) if axes is None else axes)]
    lengths = [x.shape[a] for a in axes]
    factors = scales or [n / m for m, n in zip(lengths, sizes, strict=True)]
    if keep_aspect_ratio != "stretch":
        factors = [(min if keep_aspect_ratio == "not_larger" else max)(factors)] * len(axes)
        sizes = [int(m * s + 0.5) for m, s in zip(lengths, factors, strict=True)]
    for k, (axis, m, s) in enumerate(zip(axes, lengths, factors, strict=True)):
        out = int(m * s) if scales else sizes[k]
        i, length = torch.arange(out, dtype=torch.float64), m * s
        start, end = (roi[k], roi[len(axes) + k]) if roi else (0.0, 1.0)
        at = {
            "align_corners": i * (m - 1) / max(length - 1, 1e-9),
            "asymmetric": i / s,
            "tf_half_pixel_for_nn": (i + 0.5) / s,
            "tf_crop_and_resize": start * (m - 1) + i * (end - start) * (m - 1) / max(length - 1, 1e-9),
            "half_pixel_symmetric": m / 2 * (1 - out / length) + (i + 0.5) / s - 0.5,
        }.get(coordinates, (i + 0.5) / s - 0.5)
        if coordinates == "pytorch_half_pixel" and length == 1:
            at = at * 0 - 0.5
        if mode == "nearest":
            rules = {
                "round_prefer_floor": lambda v: torch.ceil(v - 0.5),
                "round_prefer_ceil": lambda v: (v + 0.5).floor(),
            }
            at = rules.get(nearest_mode, torch.floor if nearest_mode == "floor" else torch.ceil)(at)
            x = x.index_select(axis, at.long().clamp(0, m - 1))
            continue
        places = torch.arange(-20 - m, 2 * m + 20, dtype=torch.float64)[:, None]
        d = (places - at).abs() * (min(s, 1.0) if antialias else 1.0)
        weight = (1 - d).clamp(min=0) if mode == "linear" else keys(d, cubic_coefficient)
        if exclude_outside:
            weight = weight * ((places >= 0) & (places < m))
        weight = weight / weight.sum(0)
        matrix = torch.zeros(m, out, dtype=torch.float64).index_add(0, places[:, 0].long().clamp(0, m - 1), weight)
        x = torch.tensordot(x, matrix.to(x.dtype), ([axis], [0])).movedim(-1, axis)
        if coordinates == "tf_crop_and_resize":
            inside = ((at >= 0) & (at <= m - 1)).reshape(-1, *[1] * (x.ndim - 1 - axis))
            x = torch.where(inside, x, extrapolation_value)
    return x


def interpolate(
    x: Any, size: Any, scale_factor: Any, mode: str, align_corners: bool, align_mode: int, antialias: bool,
    cubic_coefficient: float, exact_scale: bool,
) -> Any:  # fmt: skip
    n = x.ndim - 2
    names = {"linear": ("linear", "bilinear", "trilinear")[n - 1], "cubic": "bicubic", "nearest_exact": "nearest-exact"}
    if exact_scale:
        return F.interpolate(x, None, tuple(scale_factor), names.get(mode, mode), align_corners or None)
    if antialias and n == 1:  # an image with equal rows
        image = x.unsqueeze(2).expand(-1, -1, 4, -1)
        return F.interpolate(image, (4, *size), mode="bilinear", antialias=True)[:, :, 1]
    if antialias or mode == "nearest_exact":
        return F.interpolate(x, each(size, n), mode=names[mode], antialias=antialias)
    out = each(size, n) if size else tuple(int(m * f) for m, f in zip(x.shape[2:], each(scale_factor, n), strict=True))
    if mode == "nearest":
        return F.interpolate(x, out, mode="nearest")
    if mode == "linear" and (align_corners or align_mode == 0):
        return F.interpolate(x, out, mode=("linear", "bilinear", "trilinear")[n - 1], align_corners=align_corners)
    if mode == "cubic" and n == 2:
        return F.interpolate(x, out, mode="bicubic", align_corners=align_corners)
    if mode == "cubic" and n == 1:  # an image with equal rows
        image = F.interpolate(
            x.unsqueeze(2).expand(-1, -1, 4, -1), (4, *out), mode="bicubic", align_corners=align_corners
        )
        return image[:, :, 1]
    for axis, (m, o) in enumerate(zip(x.shape[2:], out, strict=True), start=2):  # linear, the first elements coincide
        at = torch.arange(o, dtype=x.dtype) * m / o
        low = at.floor().long().clamp(max=m - 1)
        part = (at - low).reshape(-1, *[1] * (x.ndim - 1 - axis))
        x = x.index_select(axis, low) * (1 - part) + x.index_select(axis, (low + 1).clamp(max=m - 1)) * part
    return x


def grid_sample(x: Any, grid: Any, mode: str, padding_mode: str, align_corners: bool) -> Any:
    return F.grid_sample(x, grid, mode, padding_mode, align_corners)


def affine_grid(theta: Any, size: Any, align_corners: bool) -> Any:
    return F.affine_grid(theta, [theta.shape[0], 1, *size], align_corners)


def unfold(x: Any, kernel: Any, strides: Any, paddings: Any, dilations: Any) -> Any:
    """F.unfold takes images only: of other ranks the windows are taken axis after axis."""
    n = x.ndim - 2
    if n == 2 and len(paddings) < 4:
        return F.unfold(x, each(kernel, 2), each(dilations, 2), each(paddings, 2), each(strides, 2))
    x = bordered(x, pads(paddings, n))
    lists = zip(each(kernel, n), each(strides, n), each(dilations, n), strict=True)
    for axis, (k, s, d) in enumerate(lists, start=2):
        x = x.unfold(axis, d * (k - 1) + 1, s)[..., ::d]
    order = (0, 1, *range(n + 2, 2 * n + 2), *range(2, n + 2))
    return x.permute(order).flatten(n + 2).flatten(1, n + 1)


def fold(x: Any, output_size: Any, kernel: Any, strides: Any, paddings: Any, dilations: Any) -> Any:
    n = len(output_size)
    if n == 2 and len(paddings) < 4:
        return F.fold(x, output_size, each(kernel, 2), each(dilations, 2), each(paddings, 2), each(strides, 2))
    channels = x.shape[1] // int(np.prod(each(kernel, n)))
    image = torch.zeros(x.shape[0], channels, *output_size, dtype=x.dtype, requires_grad=True)
    columns = unfold(image, kernel, strides, paddings, dilations)
    return torch.autograd.grad(columns, image, x, create_graph=True)[0]


OPS: dict[str, Callable[..., Any]] = {
    "affine_grid": affine_grid,
    "fold": fold,
    "grid_sample": grid_sample,
    "interpolate": interpolate,
    "resize": resize,
    "unfold": unfold,
}


MORE: dict[str, list[Inputs]] = {
    "affine_grid": [case((2, 2, 3), size=(3, 4), align_corners=a) for a in (True, False)]
    + [case((2, 3, 4), size=(2, 3, 4), align_corners=a) for a in (True, False)],
    "grid_sample": [
        case((2, 3, 4, 5), (2, 3, 4, 2), span=(-1.3, 1.3), mode=m, padding_mode=p, align_corners=a)
        for m in ("bilinear", "nearest", "bicubic")
        for p in ("zeros", "border", "reflection")
        for a in (True, False)
    ]
    + [
        case((2, 2, 3, 4, 3), (2, 2, 3, 2, 3), span=(-1.3, 1.3), mode=m, padding_mode=p, align_corners=a)
        for m in ("bilinear", "nearest")
        for p in ("zeros", "border", "reflection")
        for a in (True, False)
    ],
    "interpolate": [
        case((2, 2, 4, 5), size=s, mode=m, align_corners=a)
        for s in ((7, 3), (4, 9), (1, 1))
        for m, a in (("nearest", False), ("linear", False), ("linear", True), ("cubic", False), ("cubic", True))
    ]
    + [
        case((2, 2, 5), size=(s,), mode=m, align_corners=a)
        for s in (3, 8)
        for m, a in (("nearest", False), ("linear", False), ("linear", True), ("cubic", False), ("cubic", True))
    ]
    + [
        case((1, 2, 3, 2, 4), size=(5, 3, 2), mode=m, align_corners=a)
        for m, a in (("nearest", False), ("linear", False), ("linear", True))
    ]
    + [case((2, 2, 4, 5), size=(7, 3), mode="linear", align_mode=1)]
    + [case((2, 2, 5, 6), size=(3, 4), mode="linear", antialias=True)]
    + [case((2, 2, 5, 6), size=(3, 4), mode="cubic", antialias=True, cubic_coefficient=-0.5)]
    + [case((2, 2, 5, 6), size=s, mode="nearest_exact") for s in ((3, 8), (7, 4))]
    + [case((2, 2, 5), scale_factor=(s,), mode=m, exact_scale=True) for s in (1.3, 0.7) for m in ("nearest", "linear")],
    "fold": [
        case((2, 12, 6), output_size=(4, 5), kernel=(2, 3), strides=(2, 1)),
        case((1, 4, 12), output_size=(4, 3), kernel=(2, 2), paddings=(1, 1), dilations=(2, 2)),
    ],
    "unfold": [
        case((2, 2, 5, 6), kernel=(2, 3), strides=(2, 1), paddings=(1, 0)),
        case((2, 2, 5, 6), kernel=(2, 2), dilations=(2, 3)),
        case((2, 2, 5, 6), kernel=(2,), paddings=(1, 0, 2, 1), strides=(2,)),
        case((2, 2, 3, 4, 3), kernel=(2, 1, 3), paddings=(1,), dilations=(1, 2, 1)),
    ],
}
