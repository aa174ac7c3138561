"""The adjoint of a convolution to its filters, with output channels in the lanes (see `core.plan.filter_sums`).

The cotangent of some pixels is transposed, so that the output channels of a pixel are vectors. A tile is some elements
of the filter by some of these vectors. For each pixel, it multiplies each vector by the number of the image that the
filter's element meets there. So images are read in place at any stride, and no lane is lost at the ends of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from core.codegen.convolution import image_count
from core.codegen.cpus import cpu
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.module import Module
from core.codegen.transpose import transpose_square
from core.codegen.vector_slices import even_blocks, lanes_for, move, unravel
from core.plan.filter_sums import FilterSums, FilterTotal

__all__ = ["filter_sums", "filter_total", "scratch_bytes", "sum_units", "tile_of", "total_scratch", "total_units"]

PIXELS = 192
"""Most pixels whose cotangents are transposed at a time. They stay in the nearest cache."""

BLOCK = 288
"""Filter elements for which one transposition of the cotangent is used, at least: it takes as long as some ten."""

LATENCY = 4
"""Cycles between two additions to the same register.

A pixel takes at least as many, and a third of a cycle for each sum: rows of pixels are short, and when one ends, the
sums of the next wait for its last ones. So tiles of more than about 20 sums are the fastest, as measured."""

LOADS = 1.5
"""Vectors and numbers that are loaded in a cycle, as measured."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Sums in registers: of `channels` by `taps` filter elements, `vectors` vectors each."""

    channels: int
    taps: int
    vectors: int


def tile_of(spec: FilterSums, lanes: int) -> Tile:
    """The tile that takes the least time. One register is added to in each half cycle."""
    conv, registers = spec.conv, 32 if cpu().vector_bytes == 64 else 16
    vectors = -(-conv.out // lanes)

    def time(tile: Tile) -> float:
        total = 0.0
        for _, v, panels in even_blocks(vectors, tile.vectors):
            for _, t, rows in even_blocks(conv.kernel[2], tile.taps):
                whole, rest = divmod(conv.channels, tile.channels)
                for m, count in ((tile.channels, whole), (rest, int(rest > 0))):
                    total += panels * rows * count * _cycles(m * t * v, m * t + v)
        return total

    fitting = [
        Tile(m, t, v)
        for v in range(1, min(vectors, 4) + 1)
        for t in range(1, min(conv.kernel[2], 27) + 1)
        for m in range(1, min(conv.channels, 27) + 1)
        if m * t * v + v + 1 <= registers
    ]
    return min(fitting, key=lambda each: (time(each), each.channels * each.taps * each.vectors))


def _cycles(sums: int, loads: int) -> float:
    """Cycles of one pixel."""
    return max(sums / 2, loads / LOADS, LATENCY + sums / 3)


def _panels(spec: FilterSums, lanes: int, tile: Tile) -> list[tuple[int, int, int]]:
    """(first vector, vectors of each, number) of the panels: parts of the output channels, one tile wide."""
    return even_blocks(-(-spec.conv.out // lanes), tile.vectors)


def _channel_block(spec: FilterSums, tile: Tile) -> int:
    """Channels of the image in one unit: whole tiles, and enough to be worth a transposition."""
    wanted = -(-BLOCK // spec.conv.size)
    return max(1, round(wanted / tile.channels)) * tile.channels


def _unit_sizes(spec: FilterSums) -> tuple[int, int, int, int]:
    lanes = lanes_for(spec.conv.dtype, spec.conv.out)
    tile = tile_of(spec, lanes)
    panels = sum(number for *_, number in _panels(spec, lanes, tile))
    return spec.shares, spec.conv.groups, panels, -(-spec.conv.channels // _channel_block(spec, tile))


def sum_units(spec: FilterSums) -> int:
    """Units of work: (share, group, panel of output channels, block of channels of the image), in this order."""
    return math.prod(_unit_sizes(spec))


def scratch_bytes(spec: FilterSums) -> int:
    """Bytes for the transposed cotangents of some pixels."""
    lanes = lanes_for(spec.conv.dtype, spec.conv.out)
    return (_blocking(spec).most + lanes) * tile_of(spec, lanes).vectors * lanes * itemsize(spec.conv.dtype)


def filter_sums(module: Module, f: Function, spec: FilterSums) -> None:
    """``(ct, x[, images], sums)``; units as in `sum_units`."""
    conv, dtype = spec.conv, spec.conv.dtype
    lanes = lanes_for(dtype, conv.out)
    tile = tile_of(spec, lanes)
    panels, block = _panels(spec, lanes, tile), _channel_block(spec, tile)
    images = image_count(f, conv)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        share, group, panel, which = unravel(f, unit, _unit_sizes(spec))
        start, end = (
            f.op(f"udiv {f.op(f'mul nuw {s}, {images.name}', 'int64')}, {spec.shares}", "int64")
            for s in (share, f.binary("add", share, I64(1)))
        )
        first = f.op(f"mul nsw {which}, {block}", "int64")
        last = f.intrinsic("smin", f.binary("add", first, I64(block)), I64(conv.channels))
        before = 0
        for vector, size, number in panels:
            within = f.op(f"sub nsw {panel}, {before}", "int64")
            with f.when(f.compare("icmp ult", within, I64(number))):
                out = f.binary("add", f.op(f"mul nsw {within}, {size * lanes}", "int64"), I64(vector * lanes))
                sums = move(f, f.param("sums"), dtype, (share, math.prod(spec.shape[1:])),
                            (group, conv.depth * spec.padded), (out, 1))  # fmt: skip
                each = _Unit(module, f, spec, lanes, tile, size, group, out, first, last, sums)
                each.clear()
                each.add(start, end)
            before += number


@dataclass(frozen=True, slots=True)
class _Blocking:
    """Pixels of a block: `step` positions of the loop axis `axis` (image, plane, row, pixel), and all of later axes."""

    axis: int
    step: int
    most: int


def _blocking(spec: FilterSums) -> _Blocking:
    conv, inner = spec.conv, 1
    sizes = (-(-conv.batch // spec.shares), *conv.counts)
    for axis in (3, 2, 1, 0):
        if inner * sizes[axis] > PIXELS:
            parts = -(-sizes[axis] // max(1, PIXELS // inner))
            step = -(-sizes[axis] // parts)
            return _Blocking(axis, step, inner * step)
        inner *= sizes[axis]
    return _Blocking(0, sizes[0], inner)


@dataclass(frozen=True, slots=True)
class _Unit:
    """The sums of one unit: channels `first` to `last` of the image, `size` vectors of output channels from `out`."""

    module: Module
    f: Function
    spec: FilterSums
    lanes: int
    tile: Tile
    size: int
    group: IRValue
    out: IRValue
    first: IRValue
    last: IRValue
    sums: IRValue

    def clear(self) -> None:
        f, conv = self.f, self.spec.conv
        zero = f.splat(literal(0, conv.dtype), self.lanes)
        begin, end = (f.op(f"mul nsw {c}, {conv.size}", "int64") for c in (self.first, self.last))
        with f.loop(begin, end) as row:
            here = move(f, self.sums, conv.dtype, (row, self.spec.padded))
            for v in range(self.size):
                f.store(zero, f.at(here, I64(v * self.lanes), conv.dtype))

    def add(self, start: IRValue, end: IRValue) -> None:
        """Add the products of the images from `start` to `end`."""
        f, conv = self.f, self.spec.conv
        blocks = _blocking(self.spec)
        bounds = [(start, end), *((I64(0), I64(n)) for n in conv.counts)]
        with _nest(f, bounds[: blocks.axis]) as outer, f.loop(*bounds[blocks.axis], blocks.step, polls=True) as at:
            left = f.binary("sub", bounds[blocks.axis][1], at)
            count = f.intrinsic("smin", left, I64(blocks.step))
            corner = [*outer, at, *[I64(0)] * (3 - blocks.axis)]
            counts = [*[I64(1)] * blocks.axis, count, *(I64(n) for n in conv.counts[blocks.axis :])]
            self._pack(corner, counts, blocks)
            self._tiles(corner, counts, blocks)

    def _strides(self, blocks: _Blocking) -> tuple[int, int, int, int]:
        """Distances of packed pixels along the four axes. Axes before that of the blocks have one position."""
        _, height, width = self.spec.conv.counts
        steps = (self.spec.conv.pixels, height * width, width, 1)
        return tuple(s if i >= blocks.axis else 0 for i, s in enumerate(steps))  # type: ignore[return-value]

    # --- the cotangent ---------------------------------------------------------------------------------------------

    def _pack(self, corner: list[IRValue], counts: list[IRValue], blocks: _Blocking) -> None:
        """Transpose the cotangents of a block. The pixels of one image are adjacent."""
        f, conv, dtype = self.f, self.spec.conv, self.spec.conv.dtype
        _, height, width = conv.counts
        n, z, y, x = corner
        plane = move(f, f.param("ct"), dtype, (n, conv.groups * conv.out * conv.pixels),
                     (self.group, conv.out * conv.pixels), (z, height * width), (y, width), (x, 1))  # fmt: skip
        together = counts[0] if blocks.axis == 0 else I64(1)
        inner = math.prod(conv.counts[blocks.axis :])
        pixels = I64(conv.pixels) if blocks.axis == 0 else f.op(f"mul nsw {counts[blocks.axis]}, {inner}", "int64")
        length = self.size * self.lanes
        with f.loop(I64(0), together) as image, f.loop(I64(0), I64(length), self.lanes) as row:
            first = f.binary("add", self.out, row)
            rows = f.binary("sub", I64(conv.out), first)
            here = move(f, plane, dtype, (image, conv.groups * conv.out * conv.pixels), (first, conv.pixels))
            there = move(f, f.param("scratch"), dtype, (image, conv.pixels * length), (row, 1))
            with f.loop(I64(0), pixels, self.lanes) as at, f.when(f.compare("icmp slt", I64(0), rows)):
                source, target = f.at(here, at, dtype), move(f, there, dtype, (at, length))
                left = f.binary("sub", pixels, at)
                transpose_square(self.module, f, dtype, (source, I64(conv.pixels)), (target, I64(length)), rows, left,
                                 self.lanes, pads=True)  # fmt: skip

    # --- sums ------------------------------------------------------------------------------------------------------

    def _tiles(self, corner: list[IRValue], counts: list[IRValue], blocks: _Blocking) -> None:
        f, conv, dtype = self.f, self.spec.conv, self.spec.conv.dtype
        depth, height, row = conv.kernel
        n, z, y, x = corner
        image = move(f, f.param("x"), dtype, (n, conv.groups * conv.channels * conv.plane),
                     (self.group, conv.channels * conv.plane), (z, conv.moves[0]), (y, conv.moves[1]),
                     (x, 1))  # fmt: skip
        left = f.op(f"srem {f.binary('sub', self.last, self.first)}, {self.tile.channels}", "int64")
        whole = f.binary("sub", self.last, left)

        def tiles(c: IRValue, channels: int) -> None:
            with f.loop(I64(0), I64(depth)) as a, f.loop(I64(0), I64(height)) as b:
                here = move(f, image, dtype, (c, conv.plane), (a, conv.taps[0]), (b, conv.taps[1]))
                target = move(f, self.sums, dtype, (c, conv.size * self.spec.padded),
                              (a, height * row * self.spec.padded), (b, row * self.spec.padded))  # fmt: skip
                for first, count, times in even_blocks(row, self.tile.taps):
                    for i in range(times):
                        taps = range(first + i * count, first + (i + 1) * count)
                        self._tile(here, target, channels, taps, counts, blocks)

        with f.loop(self.first, whole, self.tile.channels, polls=True) as c:
            tiles(c, self.tile.channels)
        rest = conv.channels % self.tile.channels
        if rest:  # only the last block of channels ends in less than a tile
            with f.when(f.compare("icmp slt", whole, self.last)):
                tiles(whole, rest)

    def _tile(
        self, image: IRValue, target: IRValue, channels: int, taps: range, counts: list[IRValue], blocks: _Blocking
    ) -> None:
        """Add the sums of `channels` by `taps` filter elements over the pixels of a block to `target`."""
        f, conv, dtype, lanes = self.f, self.spec.conv, self.spec.conv.dtype, self.lanes
        zero = f.splat(literal(0, dtype), lanes)
        elements = [(m, t) for m in range(channels) for t in taps]
        sums = [[f.slot(dtype, lanes) for _ in range(self.size)] for _ in elements]
        for slots in sums:
            for slot in slots:
                f.write(zero, slot)
        length = self.size * lanes
        steps = self._strides(blocks)
        moves = (conv.groups * conv.channels * conv.plane, *conv.moves, 1)
        with _nest(f, [(I64(0), count) for count in counts]) as at:
            met = move(f, image, dtype, *zip(at, moves, strict=True))
            packed = move(f, f.param("scratch"), dtype, *((i, s * length) for i, s in zip(at, steps, strict=True)))
            vectors = [f.load(f.at(packed, I64(v * lanes), dtype), dtype, lanes) for v in range(self.size)]
            for (m, t), slots in zip(elements, sums, strict=True):
                number = f.load(f.at(met, I64(m * conv.plane + conv.along[t]), dtype), dtype)
                spread = f.splat(number, lanes)
                for vector, slot in zip(vectors, slots, strict=True):
                    f.write(f.fma(vector, spread, f.read(slot, dtype, lanes)), slot)
        for (m, t), slots in zip(elements, sums, strict=True):
            for v, slot in enumerate(slots):
                place = f.at(target, I64((m * conv.size + t) * self.spec.padded + v * lanes), dtype)
                f.store(f.binary("fadd", f.load(place, dtype, lanes), f.read(slot, dtype, lanes)), place)


@contextmanager
def _nest(f: Function, bounds: list[tuple[IRValue, IRValue]]) -> Iterator[list[IRValue]]:
    """Nested loops, those of one position left out; the context's value is the list of counters."""
    if not bounds:
        yield []
        return
    (start, end), rest = bounds[0], bounds[1:]
    if start.name == "0" and end.name == "1":
        with _nest(f, rest) as inner:
            yield [I64(0), *inner]
    else:
        with f.loop(start, end) as i, _nest(f, rest) as inner:
            yield [i, *inner]


# --- the total ---------------------------------------------------------------------------------------------------


def total_units(spec: FilterTotal) -> int:
    """Units of work: (group, vector of output channels)."""
    conv = spec.sums.conv
    return conv.groups * -(-conv.out // lanes_for(conv.dtype, conv.out))


def total_scratch(spec: FilterTotal) -> int:
    """Bytes for the total of one square."""
    conv = spec.sums.conv
    return int(lanes_for(conv.dtype, conv.out) ** 2 * itemsize(conv.dtype))


def filter_total(module: Module, f: Function, spec: FilterTotal) -> None:
    """``(sums, out)``; units as in `total_units`."""
    conv, dtype = spec.sums.conv, spec.sums.conv.dtype
    lanes = lanes_for(dtype, conv.out)
    share = conv.groups * conv.depth * spec.sums.padded
    square = f.param("scratch")
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        group, vector = unravel(f, unit, (conv.groups, -(-conv.out // lanes)))
        first = f.op(f"mul nsw {vector}, {lanes}", "int64")
        given = move(f, f.param("sums"), dtype, (group, conv.depth * spec.sums.padded), (first, 1))
        target = move(f, f.param("out"), dtype, (group, conv.out * conv.depth), (first, conv.depth))
        channels = f.binary("sub", I64(conv.out), first)
        with f.loop(I64(0), I64(conv.depth), lanes, polls=True) as start:
            left = f.intrinsic("smin", f.binary("sub", I64(conv.depth), start), I64(lanes))
            with f.loop(I64(0), left) as i:
                here = move(f, given, dtype, (f.binary("add", start, i), spec.sums.padded))
                each = [f.load(move(f, here, dtype, by=s * share), dtype, lanes) for s in range(spec.sums.shares)]
                while len(each) > 1:
                    each = [f.binary("fadd", a, b) for a, b in zip(each[::2], each[1::2], strict=True)]
                f.store(each[0], move(f, square, dtype, (i, lanes)))
            place = (f.at(target, start, dtype), I64(conv.depth))
            transpose_square(module, f, dtype, (square, I64(lanes)), place, left, channels, lanes)
