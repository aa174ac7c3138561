"""Direct convolution and its two adjoints: the sum of each output element stays in a register.

A tile is some output channels by some vectors of pixels. For each element of the filter, the code loads a vector of the
image for each vector of pixels and a number of the filter for each channel, and adds all their products to the tile.
Images contain their padding (see `core.plan.geometry`), so no load needs a bounds test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from core.codegen.cpus import cpu
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.module import Module
from core.codegen.reductions import reduce_lanes
from core.codegen.row_convolution import correlate_rows, is_by_rows
from core.codegen.vector_slices import (
    VectorSlice,
    even_blocks,
    fill_zeros,
    for_each_block,
    for_each_slice,
    lanes_for,
    mask,
    move,
    slices_of,
    store_lanes,
    unravel,
)
from core.plan.geometry import Correlation

__all__ = ["correlate", "filter_adjoint", "filter_units", "image_count", "input_adjoint", "sum_tile"]

LATENCY = 4
"""Cycles between two additions to the same register."""

WHOLE = 6
"""Most vectors of a row for which a tile holds whole rows."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Sums in registers: `channels` by `vectors`."""

    channels: int
    vectors: int


def sum_tile(channels: int, vectors: int, step: int = 1) -> Tile:
    """The tile that covers `channels` by `vectors` in the least time. Its vectors are a multiple of `step`."""

    def time(tile: Tile) -> float:
        total = 0.0
        for _, m, count in even_blocks(channels, tile.channels):
            for _, n, times in even_blocks(vectors // step, tile.vectors // step):
                total += count * times * max(m * n * step / 2, (m + n * step) / 2, LATENCY)
        return total

    registers = cpu().registers
    fitting = [
        Tile(m, n)
        for m in range(1, min(channels, 12) + 1)
        for n in range(step, min(vectors, 12) + 1, step)
        if m * n + n + 1 <= registers
    ]
    return min(fitting, key=lambda t: (time(t), t.channels + t.vectors))


def _pixel_tile(channels: int, spec: Correlation, lanes: int) -> Tile:
    """A tile of whole rows if rows are short, else of a part of one row."""
    width = len(slices_of(spec.counts[2], lanes))
    if width <= WHOLE:
        return sum_tile(channels, width * spec.counts[1], width)
    return sum_tile(channels, width)


def _rows(
    f: Function, counts: tuple[int, int, int], lanes: int, vectors: int,
    body: Callable[[IRValue, IRValue, IRValue, list[tuple[int, VectorSlice]]], None],
) -> None:  # fmt: skip
    """``body(z, y, x, pieces)`` for tiles of at most `vectors` vectors of pixels.

    pieces: (row, slice) pairs; rows count from y, and the starts of slices count from x.
    """
    depth, height, width = counts
    pieces = slices_of(width, lanes)
    with f.loop(I64(0), I64(depth), polls=True) as z:
        if len(pieces) <= vectors:
            for_each_block(
                f, height, vectors // len(pieces),
                lambda y, n: body(z, y, I64(0), [(row, piece) for row in range(n) for piece in pieces]),
            )  # fmt: skip
            return
        with f.loop(I64(0), I64(height), polls=True) as y:
            *_, (start, size, count) = even_blocks(len(pieces), vectors)
            last = start + size * (count - 1)  # the last block, which may end in less than a vector
            for first, n, number in even_blocks(len(pieces), vectors):
                number = number - (first == start)
                full = [(0, VectorSlice(i * lanes, lanes, lanes)) for i in range(n)]
                with f.loop(I64(first * lanes), I64((first + n * number) * lanes), n * lanes) as x:
                    body(z, y, x, full)
            rest = slices_of(width - last * lanes, lanes)
            body(z, y, I64(last * lanes), [(0, piece) for piece in rest])


# --- the convolution itself --------------------------------------------------------------------------------------


def correlate(module: Module, f: Function, spec: Correlation) -> None:
    """``(x, filter, out)``; a unit is one group of one image."""
    if is_by_rows(spec):
        correlate_rows(module, f, spec)
        return
    dtype, lanes = spec.dtype, lanes_for(spec.dtype, spec.counts[2])
    tile = _pixel_tile(spec.out, spec, lanes)
    depth, height, row = spec.kernel
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        group = f.op(f"urem {unit}, {spec.groups}", "int64")
        image = move(f, f.param("x"), dtype, (unit, spec.channels * spec.plane))
        result = move(f, f.param("out"), dtype, (unit, spec.out * spec.pixels))
        filters = move(f, f.param("filter"), dtype, (group, spec.out * spec.depth))

        def channels(first: IRValue, number: int) -> None:
            mine = move(f, filters, dtype, (first, spec.depth))
            target = move(f, result, dtype, (first, spec.pixels))

            def pixels(z: IRValue, y: IRValue, x: IRValue, pieces: list[tuple[int, VectorSlice]]) -> None:
                sums = _sums(f, dtype, lanes, number, len(pieces))
                corner = move(f, image, dtype, (z, spec.moves[0]), (y, spec.moves[1]), (x, 1))
                with (
                    f.loop(I64(0), I64(spec.channels)) as c,
                    f.loop(I64(0), I64(depth)) as a,
                    f.loop(I64(0), I64(height)) as b,
                ):
                    here = move(f, corner, dtype, (c, spec.plane), (a, spec.taps[0]), (b, spec.taps[1]))
                    there = move(f, mine, dtype, (c, spec.size), (a, height * row), (b, row))
                    for t, offset in enumerate(spec.along):
                        _add_products(
                            f, dtype, sums,
                            [move(f, there, dtype, by=m * spec.depth + t) for m in range(number)],
                            [move(f, here, dtype, by=offset + r * spec.moves[1] + p.start) for r, p in pieces],
                            [p for _, p in pieces],
                        )  # fmt: skip
                place = move(f, target, dtype, (z, spec.counts[1] * spec.counts[2]), (y, spec.counts[2]), (x, 1))
                for m in range(number):
                    for (r, p), slot in zip(pieces, sums[m], strict=True):
                        at = move(f, place, dtype, by=m * spec.pixels + r * spec.counts[2] + p.start)
                        store_lanes(f, f.read(slot, dtype, lanes), at, p.count)

            _rows(f, spec.counts, lanes, tile.vectors, pixels)

        for_each_block(f, spec.out, tile.channels, channels)


def _sums(f: Function, dtype: str, lanes: int, channels: int, vectors: int) -> list[list[IRValue]]:
    """Slots for sums, set to zero."""
    sums = [[f.slot(dtype, lanes) for _ in range(vectors)] for _ in range(channels)]
    for row in sums:
        for slot in row:
            f.write(f.splat(literal(0, dtype), lanes), slot)
    return sums


def _add_products(
    f: Function, dtype: str, sums: list[list[IRValue]],
    numbers: Sequence[IRValue], vectors: Sequence[IRValue], pieces: Sequence[VectorSlice],
) -> None:  # fmt: skip
    """``sums[m][v] += number m * vector v``; numbers and vectors are given by their addresses."""
    loaded = [f.load(at, dtype, p.lanes, mask(p.count, p.lanes)) for at, p in zip(vectors, pieces, strict=True)]
    for address, row in zip(numbers, sums, strict=True):
        number = f.splat(f.load(address, dtype), loaded[0].lanes)
        for slot, vector in zip(row, loaded, strict=True):
            f.write(f.fma(vector, number, f.read(slot, dtype, vector.lanes)), slot)


# --- the adjoint of the input ------------------------------------------------------------------------------------


def input_adjoint(module: Module, f: Function, spec: Correlation) -> None:
    """``(ct, filter, out)``; a unit is one group of one image. Each sum is added to the element under its window.

    The filter is given as [group, kernel, channel, out]; sums run along its last axis. The pixels of a tile stay in the
    first-level cache during the loop over all elements of the filter.
    """
    dtype, lanes = spec.dtype, lanes_for(spec.dtype, spec.counts[2])
    tile = _pixel_tile(spec.channels, spec, lanes)
    offsets = module.table(spec.along)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        group = f.op(f"urem {unit}, {spec.groups}", "int64")
        image = move(f, f.param("out"), dtype, (unit, spec.channels * spec.plane))
        given = move(f, f.param("ct"), dtype, (unit, spec.out * spec.pixels))
        filters = move(f, f.param("filter"), dtype, (group, spec.out * spec.depth))
        fill_zeros(f, image, spec.channels * spec.plane, dtype)

        def pixels(z: IRValue, y: IRValue, x: IRValue, pieces: list[tuple[int, VectorSlice]], at: _Element) -> None:
            place = move(f, given, dtype, (z, spec.counts[1] * spec.counts[2]), (y, spec.counts[2]), (x, 1))
            corner = move(f, image, dtype, (z, spec.moves[0]), (y, spec.moves[1]), (x, 1), *at.image)
            for_each_block(
                f, spec.channels, tile.channels,
                lambda first, number: _add_sums(
                    f, spec, place, move(f, filters, dtype, *at.filters, (first, spec.out)),
                    move(f, corner, dtype, (first, spec.plane)), number, pieces,
                ),
            )  # fmt: skip

        if spec.out < FEW:  # an element just stored is not loaded again at once, which would stall
            with _elements(f, spec, offsets) as at:
                _rows(f, spec.counts, lanes, tile.vectors, lambda z, y, x, pieces: pixels(z, y, x, pieces, at))
        else:

            def elements(z: IRValue, y: IRValue, x: IRValue, pieces: list[tuple[int, VectorSlice]]) -> None:
                with _elements(f, spec, offsets) as at:
                    pixels(z, y, x, pieces, at)

            _rows(f, spec.counts, lanes, tile.vectors, elements)


FEW = 8
"""Output channels below which sums are so short that most time goes to adding them to the image."""


@dataclass(frozen=True, slots=True)
class _Element:
    """One element of a filter: its offset in the filters, and the offset of its element of the image."""

    filters: tuple[tuple[IRValue, int], ...]
    image: tuple[tuple[IRValue, int], ...]


@contextmanager
def _elements(f: Function, spec: Correlation, offsets: IRValue) -> Iterator[_Element]:
    """A loop over the elements of a filter."""
    depth, height, row = spec.kernel
    step = spec.channels * spec.out
    with f.loop(I64(0), I64(depth)) as a, f.loop(I64(0), I64(height)) as b, f.loop(I64(0), I64(row)) as t:
        offset = f.load(f.at(offsets, t, "int64"), "int64")
        filters = ((a, height * row * step), (b, row * step), (t, step))
        yield _Element(filters, ((a, spec.taps[0]), (b, spec.taps[1]), (offset, 1)))


def _add_sums(
    f: Function, spec: Correlation, ct: IRValue, filters: IRValue, image: IRValue, channels: int,
    pieces: list[tuple[int, VectorSlice]],
) -> None:  # fmt: skip
    """Add the products of one filter element, summed over the output channels, to some channels of the image."""
    dtype, lanes = spec.dtype, pieces[0][1].lanes
    sums = _sums(f, dtype, lanes, channels, len(pieces))
    with f.loop(I64(0), I64(spec.out)) as o:
        here = move(f, ct, dtype, (o, spec.pixels))
        there = move(f, filters, dtype, (o, 1))
        _add_products(
            f, dtype, sums,
            [move(f, there, dtype, by=m * spec.out) for m in range(channels)],
            [move(f, here, dtype, by=r * spec.counts[2] + p.start) for r, p in pieces],
            [p for _, p in pieces],
        )  # fmt: skip
    for m, slots in enumerate(sums):
        for (r, p), slot in zip(pieces, slots, strict=True):
            at = move(f, image, dtype, by=m * spec.plane + r * spec.moves[1] + p.start)
            held = f.load(at, dtype, lanes, mask(p.count, lanes))
            store_lanes(f, f.binary("fadd", held, f.read(slot, dtype, lanes)), at, p.count)


# --- the adjoint of the filter -----------------------------------------------------------------------------------


def _filter_tile(spec: Correlation) -> Tile:
    """A tile of output channels by elements of a filter's row."""
    return sum_tile(spec.out, spec.kernel[2])


def image_count(f: Function, spec: Correlation) -> IRValue:
    """The number of the images that a kernel sums over: that in its array `images`, if it has one."""
    return f.load(f.param("images"), "int64") if f.has_param("images") else I64(spec.batch)


def filter_units(spec: Correlation) -> int:
    """Units of work: (group, block of output channels, input channel, row of the filter), in this order."""
    number = -(-spec.out // _filter_tile(spec).channels)
    return spec.groups * number * spec.channels * spec.kernel[0] * spec.kernel[1]


LONG = 64
"""Vectors of an image above which its sum has a register of its own: small terms would get lost in a large sum."""


def filter_adjoint(_: Module, f: Function, spec: Correlation) -> None:
    """``(ct, x[, images], out)``; units as in `filter_units`. Sums run over images and pixels, and over lanes at the
    end.
    """
    dtype, lanes = spec.dtype, lanes_for(spec.dtype, spec.counts[2])
    depth, height, row = spec.kernel
    tile = _filter_tile(spec)
    classes = even_blocks(spec.out, tile.channels)
    number = sum(count for *_, count in classes)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        group, block, c, a, b = unravel(f, unit, (spec.groups, number, spec.channels, depth, height))
        before = 0
        for start, size, count in classes:
            within = f.op(f"sub nsw {block}, {before}", "int64")
            with f.when(f.compare("icmp ult", within, I64(count))):
                first = f.op(f"mul nsw {within}, {size}", "int64")
                channel = f.op(f"add nsw {first}, {start}", "int64")
                given = move(f, f.param("ct"), dtype, (group, spec.out * spec.pixels), (channel, spec.pixels))
                image = move(f, f.param("x"), dtype, (group, spec.channels * spec.plane), (c, spec.plane),
                             (a, spec.taps[0]), (b, spec.taps[1]))  # fmt: skip
                target = move(f, f.param("out"), dtype, (group, spec.out * spec.depth), (channel, spec.depth),
                              (c, spec.size), (a, height * row), (b, row))  # fmt: skip
                for begin, n, times in even_blocks(row, tile.vectors):
                    for i in range(times):
                        _filter_row(f, spec, lanes, size, begin + i * n, n, given, image, target)
            before += count


def _filter_row(
    f: Function, spec: Correlation, lanes: int, channels: int, begin: int, length: int,
    given: IRValue, image: IRValue, target: IRValue,
) -> None:  # fmt: skip
    """`length` elements from `begin` of a filter row, for some channels."""
    dtype = spec.dtype
    sums = _sums(f, dtype, lanes, channels, length)
    height, width = spec.counts[1:]
    long = spec.counts[0] * height * len(slices_of(width, lanes)) > LONG
    with f.loop(I64(0), image_count(f, spec), polls=True) as n:
        these = _sums(f, dtype, lanes, channels, length) if long else sums
        ct = move(f, given, dtype, (n, spec.groups * spec.out * spec.pixels))
        x = move(f, image, dtype, (n, spec.groups * spec.channels * spec.plane))
        with f.loop(I64(0), I64(spec.counts[0]), polls=True) as z, f.loop(I64(0), I64(height)) as y:
            ct_row = move(f, ct, dtype, (z, height * width), (y, width))
            x_row = move(f, x, dtype, (z, spec.moves[0]), (y, spec.moves[1]))

            def piece(at: IRValue, count: int) -> None:
                met = [
                    f.load(move(f, x_row, dtype, (at, 1), by=offset), dtype, lanes, mask(count, lanes))
                    for offset in spec.along[begin : begin + length]
                ]
                for m, slots in enumerate(these):
                    one = f.load(move(f, ct_row, dtype, (at, 1), by=m * spec.pixels), dtype, lanes, mask(count, lanes))
                    for slot, vector in zip(slots, met, strict=True):
                        f.write(f.fma(one, vector, f.read(slot, dtype, lanes)), slot)

            for_each_slice(f, width, lanes, piece)
        if long:
            for totals, slots in zip(sums, these, strict=True):
                for total, slot in zip(totals, slots, strict=True):
                    f.write(f.binary("fadd", f.read(total, dtype, lanes), f.read(slot, dtype, lanes)), total)
    for m, slots in enumerate(sums):
        for t, slot in enumerate(slots):
            f.store(
                reduce_lanes(f, "sum", f.read(slot, dtype, lanes)),
                move(f, target, dtype, by=m * spec.depth + begin + t),
            )
