"""Convolution, pooling and their adjoints: which kernels they become.

What is padded, or moves by more than one element along a row, is first copied into a room (`core.plan.geometry`), where
every window lies inside its image and neighbouring windows meet neighbouring elements. An adjoint leaves such a room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from core.ir import Op
from core.ops.windows import few_windows, pads_of, sizes
from core.plan.data import Kernel, View, contiguous
from core.plan.geometry import Correlation, Pool, Room, Scattered, Tiles, Triple
from core.plan.lowering import Entry, Lowering, Uniform, Unsupported, lowers

__all__: list[str] = []


def _triple(values: Sequence[int], missing: int) -> Triple:
    """The values of one to three spatial axes as those of three."""
    a, b, c = (*(missing,) * (3 - len(values)), *values)
    return a, b, c


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over planes of `size`; all on three axes."""

    size: Triple
    kernel: Triple
    strides: Triple
    dilations: Triple
    before: Triple
    counts: Triple

    @property
    def reach(self) -> Triple:
        """Elements that windows meet along each axis, padding included."""
        axes = zip(self.counts, self.strides, self.kernel, self.dilations, strict=True)
        a, b, c = ((n - 1) * s + (k - 1) * d + 1 for n, s, k, d in axes)
        return a, b, c

    @property
    def inside(self) -> bool:
        """Whether no window meets padding."""
        return not any(self.before) and all(r <= n for r, n in zip(self.reach, self.size, strict=True))

    def room(self, dtype: str, planes: int, phases: int, fill: float = 0.0) -> Room:
        depth, height, width = self.reach
        return Room(dtype, planes, self.size, self.before, (depth, height), width, phases, fill)


def _windows(
    shape: Sequence[int], result: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], paddings: Sequence[int],
) -> Windows:  # fmt: skip
    """The windows over `shape` that give `result`, both with batch and channels, by an op's attributes."""
    k = len(shape) - 2
    kernel, strides, dilations, paddings = map(tuple, (kernel, strides, dilations, paddings))
    return Windows(
        _triple(shape[2:], 1),
        _triple(sizes(kernel, k, "kernel_size", 1), 1),
        _triple(sizes(strides, k, "strides", 1), 1),
        _triple(sizes(dilations, k, "dilations", 1), 1),
        _triple([before for before, _ in pads_of(paddings, k)], 0),
        _triple(result[2:], 1),
    )


# --- convolution -------------------------------------------------------------------------------------------------


def _convolution(low: Lowering, op: Op, x: str, filter: str, out: str) -> tuple[Windows, Correlation]:
    """The windows of a convolution of `x` with `filter` to `out`, and its kernel's spec."""
    image, weights, result = low.type(x), low.type(filter), low.type(out)
    attrs = op.attrs
    windows = _windows(
        image.shape, result.shape, weights.shape[2:], attrs["strides"], attrs["dilations"], attrs["paddings"]
    )
    groups = attrs["groups"]
    spec = _correlation(windows, image.dtype, image.shape[0], groups, weights.shape[1], weights.shape[0] // groups)
    return windows, spec


def _correlation(windows: Windows, dtype: str, batch: int, groups: int, channels: int, out: int) -> Correlation:
    """The spec of a convolution; channels in and out are those of each group."""
    room = _room(windows, dtype, batch * groups * channels)
    height, row = (room.rows[1], room.row) if room else windows.size[1:]
    taps = range(0, windows.kernel[2] * windows.dilations[2], windows.dilations[2])
    return Correlation(
        dtype,
        batch,
        groups,
        channels,
        out,
        windows.kernel,
        windows.counts,
        room.plane if room else math.prod(windows.size),
        (windows.strides[0] * height * row, windows.strides[1] * row),
        (windows.dilations[0] * height * row, windows.dilations[1] * row),
        tuple(room.along(t) if room else t for t in taps),
    )


def _room(windows: Windows, dtype: str, planes: int) -> Room | None:
    """The room that images need for a convolution; None where windows can meet them as they are."""
    phases = windows.strides[2] if windows.counts[2] > 1 else 1
    return None if windows.inside and phases == 1 else windows.room(dtype, planes, phases)


def _image_room(windows: Windows, spec: Correlation) -> Room | None:
    return _room(windows, spec.dtype, spec.batch * spec.groups * spec.channels)


def _in_room(low: Lowering, op: Op, entry: Entry, room: Room | None) -> View:
    """`entry`, in a room where one is needed."""
    view = low.dense(entry)
    if room is None:
        return view
    target = low.room((room.planes, room.plane), room.dtype)
    low.add(Kernel("fill_room", room, (view, target), location=op.location))
    return target


def _to_input(low: Lowering, op: Op, windows: Windows, spec: Correlation, given: View, weights: View) -> None:
    """The adjoint of a convolution to its input, left in a room where the input needs one, and then brought out."""
    name, room = op.outputs[0], _image_room(windows, spec)
    if not _by_columns("input_adjoint", spec):
        weights = _by_element(low, spec, weights)
    target = low.place(name)
    inside = low.room((room.planes, room.plane), room.dtype) if room else target
    _correlated(low, op, "input_adjoint", spec, given, weights, inside)
    if room:
        low.add(Kernel("leave_room", room, (inside, target), location=op.location))
    low.define(name, target)


def _by_element(low: Lowering, spec: Correlation, weights: View) -> View:
    """Filters as [group, kernel, channel, out]."""
    shape = (spec.groups, spec.size, spec.channels, spec.out)
    strides = (spec.out * spec.depth, 1, spec.size, spec.depth)
    return low.dense(View(weights.root, weights.dtype, shape, strides, weights.offset))


def _correlated(low: Lowering, op: Op, kind: str, spec: Correlation, first: View, second: View, out: View) -> None:
    """One kernel, of one of the two forms."""
    if _by_columns(kind, spec):
        spec, kind = _parted(spec, kind), f"{kind}_columns"
    low.add(Kernel(kind, spec, (first, second, out), location=op.location))


MANY = {"correlate": 2**12, "input_adjoint": 2**12, "filter_adjoint": 2**15}
"""Channels in times channels out from which products of matrices are faster."""

LONGEST = 16
"""Elements of a filter's row that are straight code."""


def _by_columns(kind: str, spec: Correlation) -> bool:
    """Whether products of matrices are faster than the direct form: measured, with rows of 1 to 7 elements."""
    row = spec.counts[2] * np.dtype(spec.dtype).itemsize
    channels = spec.out * spec.channels
    return (
        channels >= MANY[kind]
        or (channels >= 64 and row <= 16)  # a register would be half empty
        or (channels >= 256 and kind == "filter_adjoint" and spec.kernel[2] == 1)  # nothing loaded is used twice
        or (spec.kernel[2] > LONGEST and kind != "input_adjoint")
    )


WIDE = {"correlate": 64, "input_adjoint": 64, "filter_adjoint": 256}
"""Pixels that a product of matrices has at least, where there are so many."""

SHARE = 256
"""Elements of a filter that a share of them has at least."""

NEAR = 2**18
"""Elements of columns made at once, where that leaves so many pixels."""


def _parted(spec: Correlation, kind: str) -> Correlation:
    """`spec` with the windows, and the filters, that one product takes."""
    wide = WIDE[kind]
    if kind == "filter_adjoint":
        shares = (n for n in (16, 8, 4, 2) if spec.channels % n == 0 and spec.depth >= n * SHARE)
        spec = replace(spec, shares=next(shares, 1))
    if spec.pixels < wide:
        wanted = -(-wide // spec.pixels)
        fitting = (n for n in range(wanted, spec.batch) if spec.batch % n == 0)
        return replace(spec, together=next(fitting, spec.batch))
    count = max(wide, NEAR // spec.depth)
    if count >= spec.pixels:
        return spec
    return replace(spec, rows=min(spec.counts[1], -(-count // spec.counts[2])))


@lowers("correlate")
def lower_correlate(low: Lowering, op: Op) -> None:
    x, filter = op.inputs
    windows, spec = _convolution(low, op, x, filter, op.outputs[0])
    image, weights = _in_room(low, op, low.entry(x), _image_room(windows, spec)), low.dense(low.entry(filter))
    out = low.place(op.outputs[0])
    _correlated(low, op, "correlate", spec, image, weights, out)
    low.define(op.outputs[0], out)


@lowers("correlate_input_adjoint")
def lower_input_adjoint(low: Lowering, op: Op) -> None:
    """Windows that move by 1 give a convolution again, of the padded cotangent with the filters turned round."""
    ct, filter, like = op.inputs
    windows, spec = _convolution(low, op, like, filter, ct)
    given, weights = low.dense(low.entry(ct)), low.dense(low.entry(filter))
    back = _turned_round(windows)
    if back is None or _vectors(back) > _vectors(windows) * (1 + ADDING / spec.out):
        _to_input(low, op, windows, spec, given, weights)
        return
    spec = _correlation(back, spec.dtype, spec.batch, spec.groups, spec.out, spec.channels)
    image = _in_room(low, op, given, _image_room(back, spec))
    out = low.place(op.outputs[0])
    _correlated(low, op, "correlate", spec, image, _filters_turned_round(low, spec, weights), out)
    low.define(op.outputs[0], out)


ADDING = 4
"""Multiplications that take as long as adding a sum to what memory holds."""


def _vectors(windows: Windows) -> int:
    """A measure of the time that the elements of a result take in registers."""
    *rows, width = windows.counts
    return math.prod(rows) * -(-width // 8)


def _turned_round(windows: Windows) -> Windows | None:
    """The windows over the result, padded, whose convolution is the adjoint; None if there are none."""
    before = [(k - 1) * d - b for k, d, b in zip(windows.kernel, windows.dilations, windows.before, strict=True)]
    if windows.strides != (1, 1, 1) or min(before) < 0:
        return None
    return replace(windows, size=windows.counts, before=_triple(before, 0), counts=windows.size)


def _filters_turned_round(low: Lowering, spec: Correlation, weights: View) -> View:
    """The filters [group, in, out, kernel] for those that are given as [group, out, in, kernel], each back to front."""
    steps = contiguous((spec.groups, spec.channels, spec.out, *spec.kernel))
    shape = (spec.groups, spec.out, spec.channels, *spec.kernel)
    strides = (steps[0], steps[2], steps[1], *(-n for n in steps[3:]))
    return low.dense(View(weights.root, weights.dtype, shape, strides, weights.offset + spec.size - 1))


@lowers("correlate_filter_adjoint")
def lower_filter_adjoint(low: Lowering, op: Op) -> None:
    ct, x, like = op.inputs
    windows, spec = _convolution(low, op, x, like, ct)
    given, image = low.dense(low.entry(ct)), _in_room(low, op, low.entry(x), _image_room(windows, spec))
    out = low.place(op.outputs[0])
    _correlated(low, op, "filter_adjoint", spec, given, image, out)
    low.define(op.outputs[0], out)


# --- pooling -----------------------------------------------------------------------------------------------------


def _pooling(low: Lowering, op: Op, x: str, out: str) -> Windows:
    attrs = op.attrs
    strides = attrs["strides"] or attrs["kernel_size"]
    return _windows(low.type(x).shape, low.type(out).shape, attrs["kernel_size"], strides, (1,), attrs["paddings"])


def _pool(low: Lowering, op: Op, windows: Windows, pool: Pool, fill: float, targets: Sequence[View]) -> None:
    """One reduction of the windows of the op's input."""
    entry = low.entry(op.inputs[0])
    height, width = windows.size[1:]
    if windows.inside:
        image = low.dense(entry)
        plane = math.prod(windows.size)
    else:
        room = windows.room(pool.dtype, pool.planes, 1, fill)
        image = _in_room(low, op, entry, room)
        (_, height), width, plane = room.rows, room.row, room.plane
    pool = replace(pool, plane=plane, steps=(height * width, width))
    low.add(Kernel("pool", pool, (image, *targets), written=len(targets), location=op.location))


@dataclass(frozen=True, slots=True)
class Chosen:
    """Positions that a pooling never wrote, because those who read them want the number of each within its window."""

    numbers: View
    windows: Windows


LARGEST_TILE = 64
"""Elements of a window that straight code visits."""


def _tiling(windows: Windows) -> bool:
    """Whether the windows lie side by side within the planes."""
    small = math.prod(windows.kernel) <= LARGEST_TILE and windows.kernel[2] <= 4
    return small and windows.inside and windows.strides == windows.kernel


@lowers("max_pool")
def lower_max_pool(low: Lowering, op: Op) -> None:
    out, index = op.outputs
    type = low.type(out)
    low.type(index)
    (x,) = op.inputs
    if math.prod(low.type(x).shape[2:]) >= 2**31:
        raise Unsupported("positions beyond 32 bits")
    windows = _pooling(low, op, x, out)
    kernel, counts = windows.kernel, windows.counts
    shape = low.type(x).shape
    pool = Pool(
        "max", type.dtype, math.prod(type.shape[:2]), 0, (0, 0), kernel, windows.strides, counts,
        before=windows.before, last=not few_windows(kernel, counts),
    )  # fmt: skip
    readers = low.readers(index)
    target = low.place(out)
    if not readers:
        _pool(low, op, windows, pool, -math.inf, [target])
        low.define(out, target)
        return
    unpools = all(r and r.type == "unpool_like" and r.inputs[1] == index and index not in (r.inputs[0], r.inputs[2]) and
                  low.type(r.inputs[2]).shape == shape for r in readers)  # fmt: skip
    if unpools and _tiling(windows):
        numbers = low.room(type.shape, "uint8")
        steps = (kernel[1] * kernel[2], kernel[2], 1)
        _pool(low, op, windows, replace(pool, numbers=steps, index="uint8"), -math.inf, [target, numbers])
        low.define(index, Chosen(numbers, windows))
    else:
        positions = low.place(index)
        steps = _triple(contiguous(windows.size), 1)
        corner = _triple([s * n for s, n in zip(windows.strides, steps, strict=True)], 1)
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
        target = low.place(name)
        spec = Tiles(type.dtype, planes, windows.size, windows.kernel, windows.counts, True)
        low.add(Kernel("chosen_tiles", spec, (given, entry.numbers, target), location=op.location))
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
    """A kernel that reads or adds to planes like those of the shape `plane`, at as many positions as `elements`."""
    at = low.dense(index)
    size, count = math.prod(plane[2:]), math.prod(elements[2:])
    message = f"an index is out of range for an axis of size {size}"
    number = low.shared.check("index_out_of_range", message, op.location)
    spec = Scattered(given.dtype, at.dtype, math.prod(plane[:2]), size, count)
    target = low.place(op.outputs[0])
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
    target = low.place(out)
    _pool(low, op, windows, pool, 0.0, [target])
    low.define(out, target)


@lowers("window_sum_adjoint")
def lower_window_sum_adjoint(low: Lowering, op: Op) -> None:
    """Where windows overlap, a convolution's adjoint with a filter of ones."""
    ct, like = op.inputs
    name = op.outputs[0]
    type = low.type(name)
    windows = _pooling(low, op, like, ct)
    planes = math.prod(type.shape[:2])
    given = low.dense(low.entry(ct))
    if _tiling(windows):
        target = low.place(name)
        tiles = Tiles(type.dtype, planes, windows.size, windows.kernel, windows.counts, False)
        low.add(Kernel("tiles", tiles, (given, target), location=op.location))
        low.define(op.outputs[0], target)
        return
    spec = _correlation(windows, type.dtype, planes, 1, 1, 1)
    ones = low.dense(Uniform(1.0, type.dtype, (math.prod(windows.kernel),)))
    _to_input(low, op, windows, spec, given, ones)
