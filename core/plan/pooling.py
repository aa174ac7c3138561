"""Pooling and its adjoints. Where windows overlap, the adjoint of a sum is the adjoint of a convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.ir import Op
from core.ops.common.windows import few_windows
from core.plan.convolution import correlation, to_input
from core.plan.covering import Covering
from core.plan.entries import Entry, Uniform
from core.plan.geometry import Pool, Scattered, Tiles
from core.plan.instructions import Kernel
from core.plan.lowering import Lowering, lowers
from core.plan.memory import View, contiguous
from core.plan.target import PoolLimits
from core.plan.unsupported import Unsupported
from core.plan.windows import Windows, padded, triple, windows_of

__all__: list[str] = []


def _pooling(low: Lowering, op: Op, x: str, out: str) -> Windows:
    attrs = op.attrs
    if max(attrs["dilations"]) > 1:
        raise Unsupported("elements of a window lie apart, by dilations above 1")
    strides = attrs["strides"] or attrs["kernel_size"]
    return windows_of(low.type(x).shape, low.type(out).shape, attrs["kernel_size"], strides, (1,), attrs["paddings"])


def _pool(low: Lowering, op: Op, windows: Windows, pool: Pool, fill: float, targets: Sequence[View]) -> None:
    """Append a reduction of each window of the op's input. fill: the number in the padding."""
    entry = low.entry(op.inputs[0])
    height, width = windows.size[1:]
    if low.target.pools.gathers:
        image, plane = low.dense(entry), math.prod(windows.size)
        pool = replace(pool, size=windows.size, before=windows.before)
    elif windows.inside:
        image = low.dense(entry)
        plane = math.prod(windows.size)
    else:
        padding = windows.padding(pool.dtype, pool.planes, 1, fill)
        image = padded(low, op, entry, padding)
        (_, height), width, plane = padding.rows, padding.row, padding.plane
    pool = replace(pool, plane=plane, steps=(height * width, width))
    low.add(Kernel("pool", pool, (image, *targets), written=len(targets), location=op.location))


@dataclass(frozen=True, slots=True)
class Chosen:
    """Positions stored as the number of each element within its window: only `unpool_like` reads them."""

    numbers: View
    windows: Windows


def _tiling(windows: Windows, limits: PoolLimits) -> bool:
    """Whether the windows lie side by side within the planes, and are small enough to unroll."""
    small = math.prod(windows.kernel) <= limits.window and windows.kernel[2] <= limits.window_row
    return small and windows.inside and windows.strides == windows.kernel


@lowers("max_pool")
def lower_max_pool(low: Lowering, op: Op) -> None:
    out, index = op.outputs
    type = low.type(out)
    low.type(index)
    (x,) = op.inputs
    if math.prod(low.type(x).shape[2:]) >= low.target.pools.positions:
        raise Unsupported("positions beyond the range of the vector code")
    windows = _pooling(low, op, x, out)
    kernel, counts = windows.kernel, windows.counts
    shape = low.type(x).shape
    pool = Pool(
        "max", type.dtype, math.prod(type.shape[:2]), 0, (0, 0), kernel, windows.strides, counts,
        before=windows.before, last=not few_windows(kernel, counts),
    )  # fmt: skip
    readers = low.uses.readers(index)
    target = low.destination(out)
    if not readers:
        _pool(low, op, windows, pool, -math.inf, [target])
        low.define(out, target)
        return
    unpools = all(r and r.type == "unpool_like" and r.inputs[1] == index and index not in (r.inputs[0], r.inputs[2]) and
                  low.type(r.inputs[2]).shape == shape for r in readers)  # fmt: skip
    if unpools and (low.target.pools.gathers or _tiling(windows, low.target.pools)):
        number = "uint8" if math.prod(kernel) <= 256 else "int32"
        numbers = low.allocate(type.shape, number)
        steps = (kernel[1] * kernel[2], kernel[2], 1)
        _pool(low, op, windows, replace(pool, numbers=steps, index=number), -math.inf, [target, numbers])
        low.define(index, Chosen(numbers, windows))
    else:
        positions = low.destination(index)
        steps = triple(contiguous(windows.size), 1)
        corner = triple([s * n for s, n in zip(windows.strides, steps, strict=True)], 1)
        first = -sum(b * n for b, n in zip(windows.before, steps, strict=True))
        pool = replace(pool, numbers=steps, corner=corner, first=first, index="int64")
        _pool(low, op, windows, pool, -math.inf, [target, positions])
        low.define(index, positions)
    low.define(out, target)


@lowers("unpool_like")
def lower_unpool(low: Lowering, op: Op) -> None:
    x, index, _ = op.inputs
    name = op.outputs[0]
    type = low.type(name)
    entry = low.entry(index)
    given = low.dense(low.entry(x))
    planes = math.prod(type.shape[:2])
    if isinstance(entry, Chosen):
        windows = entry.windows
        target = low.destination(name)
        views = (given, entry.numbers, target)
        if low.target.pools.gathers:
            cover = Covering(type.dtype, planes, windows, entry.numbers.dtype)
            low.add(Kernel("chosen_cover", cover, views, location=op.location))
        else:
            spec = Tiles(type.dtype, planes, windows.size, windows.kernel, windows.counts, True)
            low.add(Kernel("chosen_tiles", spec, views, location=op.location))
    else:
        target = _scattered(low, op, "unpool", given, entry, type.shape, low.type(x).shape)
    low.define(name, target)


@lowers("pick")
def lower_pick(low: Lowering, op: Op) -> None:
    x, index = op.inputs
    given = low.dense(low.entry(x))
    picked = _scattered(low, op, "pick", given, low.entry(index), low.type(x).shape, low.type(index).shape)
    low.define(op.outputs[0], picked)


def _scattered(
    low: Lowering, op: Op, kind: str, given: View, index: Entry, plane: tuple[int, ...], elements: tuple[int, ...]
) -> View:
    """Append a kernel that reads from or adds to planes, at positions that are data.

    plane, elements: shapes of the planes and of the positions, with batch and channels.
    """
    at = low.dense(index)
    size, count = math.prod(plane[2:]), math.prod(elements[2:])
    message = f"an index is out of range for an axis of size {size}"
    number = low.shared.check("index_out_of_range", message, op.location)
    spec = Scattered(given.dtype, at.dtype, math.prod(plane[:2]), size, count)
    target = low.destination(op.outputs[0])
    low.add(Kernel(kind, spec, (given, at, target), check=number, location=op.location))
    return target


@lowers("window_sum")
def lower_window_sum(low: Lowering, op: Op) -> None:
    (x,), (out,) = op.inputs, op.outputs
    type = low.type(out)
    windows = _pooling(low, op, x, out)
    pool = Pool(
        "sum", type.dtype, math.prod(type.shape[:2]), 0, (0, 0), windows.kernel, windows.strides, windows.counts
    )
    target = low.destination(out)
    _pool(low, op, windows, pool, 0.0, [target])
    low.define(out, target)


@lowers("window_sum_adjoint")
def lower_window_sum_adjoint(low: Lowering, op: Op) -> None:
    """If windows overlap, the adjoint of a convolution with a filter of ones."""
    ct, like = op.inputs
    name = op.outputs[0]
    type = low.type(name)
    windows = _pooling(low, op, like, ct)
    planes = math.prod(type.shape[:2])
    given = low.dense(low.entry(ct))
    if low.target.pools.gathers:
        target = low.destination(name)
        low.add(Kernel("cover", Covering(type.dtype, planes, windows), (given, target), location=op.location))
        low.define(name, target)
        return
    if _tiling(windows, low.target.pools):
        target = low.destination(name)
        tiles = Tiles(type.dtype, planes, windows.size, windows.kernel, windows.counts, False)
        low.add(Kernel("tiles", tiles, (given, target), location=op.location))
        low.define(op.outputs[0], target)
        return
    spec = correlation(windows, type.dtype, planes, 1, 1, 1)
    ones = low.dense(Uniform(1.0, type.dtype, (math.prod(windows.kernel),)))
    to_input(low, op, windows, spec, given, ones)
