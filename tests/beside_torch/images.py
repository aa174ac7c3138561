"""Images read at other positions: resized, sampled, and as patches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.beside_torch.installed import F, torch
from tests.beside_torch.pools import each
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def interpolate(x: Any, size: Any, scale_factor: Any, mode: str, align_corners: bool, align_mode: int) -> Any:
    n = x.ndim - 2
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
    return F.unfold(x, kernel, dilations, paddings, strides)


def fold(x: Any, output_size: Any, kernel: Any, strides: Any, paddings: Any, dilations: Any) -> Any:
    return F.fold(x, output_size, kernel, dilations, paddings, strides)


OPS: dict[str, Callable[..., Any]] = {
    "affine_grid": affine_grid,
    "fold": fold,
    "grid_sample": grid_sample,
    "interpolate": interpolate,
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
    + [case((2, 2, 4, 5), size=(7, 3), mode="linear", align_mode=1)],
    "fold": [
        case((2, 12, 6), output_size=(4, 5), kernel=(2, 3), strides=(2, 1)),
        case((1, 4, 12), output_size=(4, 3), kernel=(2, 2), paddings=(1, 1), dilations=(2, 2)),
    ],
    "unfold": [
        case((2, 2, 5, 6), kernel=(2, 3), strides=(2, 1), paddings=(1, 0)),
        case((2, 2, 5, 6), kernel=(2, 2), dilations=(2, 3)),
    ],
}
