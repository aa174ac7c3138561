"""Ops that move elements without reading their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.beside_torch.installed import F, torch
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def pad(x: Any, paddings: tuple[int, ...], value: float, mode: str) -> Any:
    if mode == "constant":
        backwards = [paddings[2 * axis + side] for axis in reversed(range(x.ndim)) for side in (0, 1)]
        return F.pad(x, backwards, "constant", value)
    for axis in range(x.ndim):  # torch pads at most three axes, and by less than their size
        before, after = paddings[2 * axis : 2 * axis + 2]
        n = x.shape[axis]
        if before or after:
            x = torch.index_select(x, axis, torch.tensor([mirrored(i, n, mode) for i in range(-before, n + after)]))
    return x


def mirrored(i: int, n: int, mode: str) -> int:
    """The source of the element at position i of a padded axis of n elements."""
    if mode == "replicate":
        return min(max(i, 0), n - 1)
    if mode == "circular" or n == 1:
        return i % n
    i %= 2 * (n - 1)
    return min(i, 2 * (n - 1) - i)


def expand(x: Any, shape: tuple[int, ...]) -> Any:
    return x.expand(shape)


def cut(x: Any, axes: Any, starts: Any, ends: Any, steps: Any) -> Any:
    """A slice. torch has no negative steps: they become reads by position."""
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(axes), strict=True):
        end = None if step < 0 and end <= -(2**31) else end
        x = torch.index_select(x, axis, torch.arange(x.shape[axis])[[*range(x.shape[axis])[start:end:step]]])
    return x


def slice_into(x: Any, like: Any, axes: Any, starts: Any, ends: Any, steps: Any) -> Any:
    flat = cut(torch.arange(like.numel()).reshape(like.shape), axes, starts, ends, steps)
    return torch.zeros(like.numel(), dtype=x.dtype).index_add(0, flat.reshape(-1), x.reshape(-1)).reshape(like.shape)


def dynamic_slice(x: Any, starts: Any, ends: Any, steps: Any, axes: Any, shape: Any) -> Any:
    return cut(x, axes, starts.tolist(), ends.tolist(), steps.tolist())


def dynamic_slice_into(x: Any, like: Any, starts: Any, ends: Any, steps: Any, axes: Any) -> Any:
    return slice_into(x, like, axes, starts.tolist(), ends.tolist(), steps.tolist())


def split(x: Any, num: int, sections: Any, axis: int) -> Any:
    return tuple(torch.split(x, list(sections), axis) if sections else torch.chunk(x, num, axis))


def repeat(x: Any, counts: Any, repeats: int, axis: int) -> Any:
    return torch.repeat_interleave(x, repeats if counts is None else counts, axis)


def shift(x: Any, axis: int, steps: int) -> Any:
    n = x.shape[axis]
    kept = max(n - abs(steps), 0)
    gap = torch.zeros_like(x.narrow(axis, 0, n - kept))
    return torch.cat([gap, x.narrow(axis, 0, kept)] if steps > 0 else [x.narrow(axis, n - kept, kept), gap], axis)


def temporal_shift(x: Any, segments: int, shift_ratio: float) -> Any:
    video = x.reshape(x.shape[0] // segments, segments, *x.shape[1:])
    part = int(x.shape[1] * shift_ratio)
    back, ahead, still = video[:, :, :part], video[:, :, part : 2 * part], video[:, :, 2 * part :]
    return torch.cat([shift(back, 1, 1), shift(ahead, 1, -1), still], 2).reshape(x.shape)


def space_to_depth(x: Any, block_size: int) -> Any:
    n, c, h, w = x.shape
    b = block_size
    return x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4).reshape(n, b * b * c, h // b, w // b)


def depth_to_space(x: Any, block_size: int) -> Any:
    n, c, h, w = x.shape
    b = block_size
    return x.reshape(n, b, b, c // b // b, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // b // b, h * b, w * b)


def sum_tiles(x: Any, like: Any, repeats: tuple[int, ...]) -> Any:
    """torch.tile pulled back once: linear in x, so that this is the transpose."""
    shape = [1] * (len(repeats) - like.ndim) + list(like.shape)
    repeats = (*[1] * (len(shape) - len(repeats)), *repeats)
    both = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    return x.reshape(both).sum(tuple(range(0, 2 * len(shape), 2))).reshape(like.shape)


def diagonal_into(x: Any, like: Any, offset: int, axis1: int, axis2: int) -> Any:
    return torch.diagonal_scatter(torch.zeros_like(like), x, offset, axis1, axis2)


def diagonals_into(x: Any, like: Any, letters: str) -> Any:
    flat = torch.einsum(f"{letters}->{''.join(dict.fromkeys(letters))}", torch.arange(like.numel()).reshape(like.shape))
    return torch.zeros(like.numel(), dtype=x.dtype).index_add(0, flat.reshape(-1), x.reshape(-1)).reshape(like.shape)


def squeeze(x: Any, axes: Any) -> Any:
    return torch.squeeze(x) if axes is None else torch.squeeze(x, axes)


def unsqueeze(x: Any, axes: tuple[int, ...]) -> Any:
    for axis in sorted(a % (x.ndim + len(axes)) for a in axes):
        x = torch.unsqueeze(x, axis)
    return x


def crop(x: Any, offsets: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    for axis, (start, n) in enumerate(zip(offsets, shape, strict=True)):
        x = torch.narrow(x, axis, start, x.shape[axis] - start if n == -1 else n)
    return x


def flatten(x: Any, axis: int) -> Any:
    rows = 1
    for n in x.shape[:axis]:
        rows *= n
    return x.reshape(rows, x.numel() // rows if rows else torch.zeros(x.shape[axis:]).numel())


OPS: dict[str, Callable[..., Any]] = {
    "broadcast_to": lambda x, shape: torch.broadcast_to(x, shape),
    "channel_shuffle": lambda x, groups: F.channel_shuffle(x, groups) if x.numel() else x.clone(),
    "concat": lambda *x, axis: torch.cat(x, axis),
    "crop": crop,
    "depth_to_space": depth_to_space,
    "diag": lambda x, offset: torch.diag(x, offset),
    "diagonal": lambda x, offset, axis1, axis2: torch.diagonal(x, offset, axis1, axis2),
    "diagonal_into": diagonal_into,
    "diagonals_into": diagonals_into,
    "dynamic_expand": lambda x, sizes, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(sizes.tolist()))),
    "dynamic_reshape": lambda x, sizes, shape: torch.reshape(x, tuple(sizes.tolist())),
    "dynamic_slice": dynamic_slice,
    "dynamic_slice_into": dynamic_slice_into,
    "expand": expand,
    "expand_as": lambda x, like: x.expand_as(like),
    "flatten": flatten,
    "merge_axes": lambda x, start, end: torch.flatten(x, start, end - 1),
    "unflatten": lambda x, axis, sizes: torch.unflatten(x, axis, sizes),
    "flatten_contiguous_range": lambda x, start_axis, stop_axis: torch.flatten(x, start_axis, stop_axis),
    "flip": lambda x, axes: torch.flip(x, axes),
    "meshgrid": lambda *x: tuple(torch.meshgrid(*x, indexing="ij")),
    "pad": pad,
    "pad_constant": lambda x, paddings, value: pad(x, paddings, value, "constant"),
    "pixel_shuffle": lambda x, factor: F.pixel_shuffle(x, factor),
    "pixel_unshuffle": lambda x, factor: F.pixel_unshuffle(x, factor),
    "repeat": repeat,
    "reshape": lambda x, shape: torch.reshape(x, shape),
    "reshape_as": lambda x, like: x.reshape_as(like),
    "roll": lambda x, shifts, axes: torch.roll(x, shifts, axes),
    "shift": shift,
    "slice": cut,
    "slice_into": slice_into,
    "space_to_depth": space_to_depth,
    "split": split,
    "split_like": lambda x, *like, axis: tuple(torch.split(x, [y.shape[axis] for y in like], axis)),
    "squeeze": squeeze,
    "stack": lambda *x, axis: torch.stack(x, axis),
    "strided_slice": lambda x, axes, starts, ends, strides: cut(x, axes, starts, ends, strides),
    "sum_tiles_like": sum_tiles,
    "temporal_shift": temporal_shift,
    "tile": lambda x, repeats: torch.tile(x, repeats),
    "trace": lambda x, offset, axis1, axis2: torch.diagonal(x, offset, axis1, axis2).sum(-1),
    "transpose": lambda x, axes: torch.permute(x, axes if axes is not None else tuple(reversed(range(x.ndim)))),
    "tril": lambda x, diagonal: torch.tril(x, diagonal),
    "triu": lambda x, diagonal: torch.triu(x, diagonal),
    "unsqueeze": unsqueeze,
    "unstack": lambda x, axis: tuple(torch.unbind(x, axis)),
}

DIAGONALS = [case((3, 4), offset=k) for k in (-2, -1, 0, 1, 3)]

MORE: dict[str, list[Inputs]] = {
    "broadcast_to": [case((2, 1, 4), shape=(3, 2, 5, 4)), case((), shape=()), case((1,), shape=(4,))],
    "channel_shuffle": [case((2, 6, 3, 2), groups=g) for g in (1, 2, 3, 6)],
    "concat": [case((2, 3, 4), (2, 1, 4), (2, 2, 4), axis=1), case((3,)), case((2, 2), (0, 2), axis=0)],
    "crop": [case((4, 5, 6), offsets=(1, 2, 0), shape=(2, -1, 6))],
    "depth_to_space": [case((2, 18, 2, 3), block_size=3)],
    "diag": [*DIAGONALS, case((4,), offset=2), case((4,))],
    "diagonal": [*DIAGONALS, case((2, 3, 4), axis1=0, axis2=2), case((2, 3, 4), offset=-1, axis1=2, axis2=1)],
    "diagonal_into": [case((2, 3), (3, 2, 4), axis1=0, axis2=2, offset=1)],
    "expand": [case((2, 1, 4), shape=(3, -1, 5, 4))],
    "expand_as": [case((2, 1, 4), (3, 2, 5, 4))],
    "flatten": [case((2, 3, 4), axis=a) for a in (0, 1, 2, 3)],
    "flatten_contiguous_range": [case((2, 3, 4, 2), start_axis=1, stop_axis=2), case((2, 3, 4))],
    "flip": [case((2, 3, 4), axes=a) for a in ((0,), (1, 2), (-1, 0, 1))],
    "meshgrid": [case((2,), (3,), (4,))],
    "pad": [
        *[case((3, 4), paddings=(2, 1, 0, 3), mode=m) for m in ("reflect", "replicate", "circular")],
        case((2, 3, 4), paddings=(1, 0, 0, 2, 3, 1), value=-0.5),
    ],
    "pad_constant": [case((2, 3, 4), paddings=(1, 0, 0, 2, 3, 1), value=-0.5)],
    "pixel_shuffle": [case((2, 18, 2, 3), factor=3)],
    "pixel_unshuffle": [case((2, 2, 6, 3), factor=3)],
    "repeat": [case((2, 3, 4), repeats=3, axis=a) for a in (0, 1, 2)],
    "reshape": [case((2, 3, 4), shape=s) for s in ((4, 6), (-1, 2), (24,), (2, 1, 3, 4))],
    "reshape_as": [case((2, 3, 4), (6, 4))],
    "roll": [case((2, 3, 4), shifts=(2, -1), axes=(1, 2)), case((5,), shifts=(13,), axes=(0,))],
    "shift": [case((2, 3, 4), axis=a, steps=s) for a in (0, 1, 2) for s in (-2, -1, 1, 2, 9)],
    "slice": [
        case((4, 5, 6), axes=(0, 2), starts=(-3, 5), ends=(9, 0), steps=(2, -2)),
        case((6,), axes=(0,), starts=(1,), ends=(-1,)),
    ],
    "slice_into": [case((2, 5, 3), (4, 5, 6), axes=(0, 2), starts=(-3, 5), ends=(9, 0), steps=(2, -2))],
    "space_to_depth": [case((2, 2, 6, 3), block_size=3)],
    "split": [case((6, 4), num=3), case((2, 6, 3), sections=(1, 0, 5), axis=1), case((4, 2), num=1, axis=-1)],
    "split_like": [case((2, 6, 3), (2, 1, 3), (2, 5, 3), axis=1)],
    "squeeze": [case((1, 3, 1, 2), axes=a) for a in (None, (0,), (0, 2), (-2,))],
    "stack": [case((2, 3), (2, 3), (2, 3), axis=a) for a in (0, 1, 2, -1, -3)],
    "strided_slice": [case((4, 5, 6), axes=(0, 2), starts=(3, 1), ends=(-9, 6), strides=(-2, 3))],
    "sum_tiles_like": [case((4, 9, 4), (2, 3, 4), repeats=(2, 3, 1)), case((2, 6), (3,), repeats=(2, 2))],
    "temporal_shift": [case((6, 5, 2, 2), segments=3, shift_ratio=s) for s in (0.2, 0.4, 0.5)],
    "tile": [case((2, 3, 4), repeats=r) for r in ((2,), (1, 3), (2, 1, 3), (2, 1, 1, 2))],
    "trace": [*DIAGONALS, case((2, 3, 4), axis1=0, axis2=2)],
    "transpose": [case((2, 3, 4), axes=a) for a in ((0, 2, 1), (1, 2, 0), (-1, -2, -3), None)],
    "tril": [*[case((3, 4), diagonal=k) for k in (-2, 0, 1, 5)], case((2, 3, 3))],
    "triu": [*[case((3, 4), diagonal=k) for k in (-2, 0, 1, 5)], case((2, 3, 3))],
    "unsqueeze": [case((2, 3), axes=a) for a in ((0,), (-1,), (0, 2), (1, 2, -1))],
    "unstack": [case((2, 3, 4), axis=a) for a in (0, 1, 2)],
}
