"""Convolution with output channels in the lanes of vectors.

A tile is some pixels of the result by some vectors of output channels. For each element of the filter, the code loads
these vectors and multiplies each by one number of the image for each pixel. So no lane is lost at the ends of rows, and
no vector that is loaded lies across two cache lines. The finished tile is transposed in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain

from core.codegen.cpus import cpu
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.transpose import transpose_square, transposed_square
from core.codegen.vector_slices import for_each_block, mask, move, unravel
from core.plan.channel_lanes import ChannelLanes, FilterPanels
from core.plan.geometry import Correlation

__all__ = ["channel_panel", "correlate_lanes", "filter_panels", "lane_units", "panel_units"]

TERMS = 512
"""Terms of a long sum that have a register of their own: small terms would get lost in a large sum."""


def channel_panel(dtype: str, out: int) -> int:
    """Output channels of the vectors of a tile, for `out` output channels; 0 if they do not fill whole vectors."""
    width = lanes(dtype)
    return next((n * width for n in ((2, 3, 1) if cpu().vector_bytes == 64 else (2, 1)) if out % (n * width) == 0), 0)


def lane_units(spec: ChannelLanes) -> int:
    """Units of work: (image, group, panel of output channels), in this order."""
    return spec.conv.units * (spec.conv.out // spec.panel)


def _most_pixels(spec: ChannelLanes) -> int:
    """Pixels of a tile, whose sums and vectors the registers hold; each is one row of a square to be transposed."""
    registers, vectors = 32 if cpu().vector_bytes == 64 else 16, spec.panel // lanes(spec.conv.dtype)
    return min((registers - 2 - vectors) // vectors, 16)


def correlate_lanes(module: Module, f: Function, spec: ChannelLanes) -> None:
    """``(x, filter, out)``; units as in `lane_units`."""
    conv, dtype = spec.conv, spec.conv.dtype
    panels = conv.out // spec.panel
    depth, height, width = conv.counts
    most = _most_pixels(spec)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        image, group, panel = unravel(f, unit, (conv.batch, conv.groups, panels))
        x = move(f, f.param("x"), dtype, (image, conv.groups * conv.channels * conv.plane),
                 (group, conv.channels * conv.plane))  # fmt: skip
        filters = move(f, f.param("filter"), dtype, (group, conv.out * conv.depth), (panel, spec.panel * conv.depth))
        out = move(f, f.param("out"), dtype, (image, conv.groups * conv.out * conv.pixels),
                   (group, conv.out * conv.pixels), (panel, spec.panel * conv.pixels))  # fmt: skip

        def tile(z: IRValue, y: IRValue, at: IRValue, rows: int, columns: int) -> None:
            corner = move(f, x, dtype, (z, conv.moves[0]), (y, conv.moves[1]), (at, 1))
            place = move(f, out, dtype, (z, height * width), (y, width), (at, 1))
            _tile(module, f, spec, corner, filters, place, rows, columns)

        with f.loop(I64(0), I64(depth), polls=True) as z:
            for_each_block(
                f, height, max(1, most // width),
                lambda y, rows: _along(f, width, most, lambda at, n: tile(z, y, at, rows, n)),
            )  # fmt: skip


def _along(f: Function, length: int, most: int, body: Callable[[IRValue, int], None]) -> None:
    """``body(start, count)`` for blocks of one length that cover `length`. The last one may overlap the one before."""
    number = -(-length // most)
    count = -(-length // number)
    if number == 1:
        body(I64(0), count)
        return
    with f.loop(I64(0), I64(length), count, polls=True) as at:
        body(f.intrinsic("smin", at, I64(length - count)), count)


def _tile(
    module: Module,
    f: Function,
    spec: ChannelLanes,
    image: IRValue,
    filters: IRValue,
    out: IRValue,
    rows: int,
    columns: int,
) -> None:
    """`rows` by `columns` pixels of the result, which are adjacent in memory, for the output channels of a panel."""
    conv, dtype, width = spec.conv, spec.conv.dtype, lanes(spec.conv.dtype)
    depth, height, row = conv.kernel
    vectors = spec.panel // width
    pixels = [r * conv.moves[1] + i for r in range(rows) for i in range(columns)]
    sums, totals = _zeros(f, spec, len(pixels)), _zeros(f, spec, len(pixels)) if conv.depth > TERMS else None
    block = conv.channels if totals is None else max(1, TERMS // conv.size)

    def add(c: IRValue, a: IRValue, b: IRValue) -> None:
        """Add the products of one row of the filter."""
        here = move(f, image, dtype, (c, conv.plane), (a, conv.taps[0]), (b, conv.taps[1]))
        there = move(f, filters, dtype, (c, conv.size * spec.panel), (a, height * row * spec.panel),
                     (b, row * spec.panel))  # fmt: skip
        for number, met in _taps(module, f, conv, here):
            weights = move(f, there, dtype, (number, spec.panel))
            loaded = [f.load(f.at(weights, I64(v * width), dtype), dtype, width) for v in range(vectors)]
            for pixel, slots in zip(pixels, sums, strict=True):
                one = f.splat(f.load(f.at(met, I64(pixel), dtype), dtype), width)
                for vector, slot in zip(loaded, slots, strict=True):
                    f.write(f.fma(vector, one, f.read(slot, dtype, width)), slot)

    with f.loop(I64(0), I64(conv.channels), block) as first:
        end = f.intrinsic("smin", f.binary("add", first, I64(block)), I64(conv.channels))
        with f.loop(first, end) as c, f.loop(I64(0), I64(depth)) as a, f.loop(I64(0), I64(height)) as b:
            add(c, a, b)
        if totals is not None:
            zero = f.splat(literal(0, dtype), width)
            for slot, total in zip(chain(*sums), chain(*totals), strict=True):
                f.write(f.binary("fadd", f.read(total, dtype, width), f.read(slot, dtype, width)), total)
                f.write(zero, slot)
    _store(f, spec, totals or sums, out)


def _zeros(f: Function, spec: ChannelLanes, pixels: int) -> list[list[IRValue]]:
    """Slots of zeros: the vectors of a panel for each pixel."""
    dtype, width = spec.conv.dtype, lanes(spec.conv.dtype)
    slots = [[f.slot(dtype, width) for _ in range(spec.panel // width)] for _ in range(pixels)]
    for slot in chain(*slots):
        f.write(f.splat(literal(0, dtype), width), slot)
    return slots


def _taps(module: Module, f: Function, conv: Correlation, image: IRValue) -> Iterator[tuple[IRValue, IRValue]]:
    """(number, address of its element of the image) for the elements of a filter's row: a loop.

    In straight code LLVM keeps numbers of the image in registers for the next element, until it has none left.
    """
    if len(conv.along) == 1:
        yield I64(0), move(f, image, conv.dtype, by=conv.along[0])
        return
    offsets = module.table(conv.along)
    with f.loop(I64(0), I64(len(conv.along))) as t:
        yield t, f.at(image, f.load(f.at(offsets, t, "int64"), "int64"), conv.dtype)


def _store(f: Function, spec: ChannelLanes, sums: list[list[IRValue]], out: IRValue) -> None:
    """Store the sums of a tile, which are vectors for each pixel, by output channel."""
    conv, dtype, width = spec.conv, spec.conv.dtype, lanes(spec.conv.dtype)
    squares, vectors = math.ceil(len(sums) / width), len(sums[0])
    for v in range(vectors):
        for s in range(squares):
            mine = sums[s * width : (s + 1) * width]
            lines = transposed_square(f, [f.read(slots[v], dtype, width) for slots in mine])
            for o, line in enumerate(lines):
                place = f.at(out, I64((v * width + o) * conv.pixels + s * width), dtype)
                f.store(line, place, mask(len(mine), width))


# --- filters -----------------------------------------------------------------------------------------------------


def panel_units(spec: FilterPanels) -> int:
    """Units of work: (group, vector of output channels), in this order."""
    return spec.lanes.conv.groups * (spec.lanes.conv.out // lanes(spec.lanes.conv.dtype))


def filter_panels(module: Module, f: Function, spec: FilterPanels) -> None:
    """``(filter, out)``; units as in `panel_units`."""
    conv, panel, dtype = spec.lanes.conv, spec.lanes.panel, spec.lanes.conv.dtype
    width = lanes(dtype)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        group, vector = unravel(f, unit, (conv.groups, conv.out // width))
        start = f.op(f"mul nsw {vector}, {width}", "int64")
        which, within = f.op(f"udiv {start}, {panel}", "int64"), f.op(f"urem {start}, {panel}", "int64")
        given = move(f, f.param("filter"), dtype, (group, conv.out * conv.depth))
        target = move(f, f.param("out"), dtype, (group, conv.out * conv.depth), (which, panel * conv.depth),
                      (within, 1))  # fmt: skip
        if spec.flipped:
            _flip(module, f, spec, move(f, given, dtype, (start, conv.size)), target)
        else:
            _turn(module, f, spec, move(f, given, dtype, (start, conv.depth)), target)


def _turn(module: Module, f: Function, spec: FilterPanels, given: IRValue, target: IRValue) -> None:
    """The filters of one vector of output channels, whose elements are adjacent."""
    conv, panel, dtype = spec.lanes.conv, spec.lanes.panel, spec.lanes.conv.dtype
    width = lanes(dtype)
    with f.loop(I64(0), I64(conv.depth), width, polls=True) as at:
        source, place = (f.at(given, at, dtype), I64(conv.depth)), (move(f, target, dtype, (at, panel)), I64(panel))
        transpose_square(module, f, dtype, source, place, I64(width), f.binary("sub", I64(conv.depth), at), width)


def _flip(module: Module, f: Function, spec: FilterPanels, given: IRValue, target: IRValue) -> None:
    """The filters [channel, out, kernel] of one vector of output channels, with the kernel in reversed order."""
    conv, panel, dtype = spec.lanes.conv, spec.lanes.panel, spec.lanes.conv.dtype
    width = lanes(dtype)
    with f.loop(I64(0), I64(conv.channels), polls=True) as c:
        here = move(f, given, dtype, (c, conv.out * conv.size))
        there = move(f, target, dtype, (c, conv.size * panel))
        if conv.size == 1:
            f.store(f.load(here, dtype, width), there)
        else:
            with f.loop(I64(0), I64(conv.size), width) as at:
                last = f.binary("sub", I64(conv.size - 1), at)
                source, place = (
                    (f.at(here, at, dtype), I64(conv.size)),
                    (move(f, there, dtype, (last, panel)), I64(-panel)),
                )
                left = f.binary("sub", I64(conv.size), at)
                transpose_square(module, f, dtype, source, place, I64(width), left, width)
