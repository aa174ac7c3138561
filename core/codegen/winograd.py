"""Convolution by the algorithm of Winograd (see `core.plan.winograd`), with squares in the lanes of vectors.

A unit transforms some rows of squares of all channels, multiplies them by the transformed filters and transforms the
sums back; all of that stays in the cache. The image is read without padding: masks leave out columns outside of it, and
a row of zeros stands for rows outside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from core.codegen.convolution import sum_tile
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.vector_slices import even_blocks, fill_zeros, lanes_for, load_strided, move, store_lanes, unravel
from core.plan.winograd import Winograd, WinogradFilters

__all__ = [
    "LINE",
    "blocks_of",
    "filter_units",
    "scratch_bytes",
    "square_order",
    "square_vectors",
    "square_width",
    "transform_image",
    "winograd",
    "winograd_filters",
    "winograd_units",
]

Kind = TypeVar("Kind")

LINE = 64
"""Bytes between the arrays of two of the 16 numbers, beyond their size: else all of them are in the same cache set."""


def square_width(spec: Winograd) -> int:
    return lanes_for(spec.conv.dtype, spec.squares[1])


def square_vectors(spec: Winograd) -> int:
    """Vectors of squares in a row of the result."""
    return -(-spec.squares[1] // square_width(spec))


def winograd_units(spec: Winograd) -> int:
    """Units of work: (image, group, block of rows of squares), in this order."""
    return spec.conv.units * -(-spec.squares[0] // spec.rows)


def _step(spec: Winograd, channels: int) -> int:
    """Elements from one of the 16 numbers to the next, in an array of all channels of the squares of a unit."""
    return channels * _Layout.of(spec, spec.rows).apart + LINE // itemsize(spec.conv.dtype)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The squares of some rows, of one channel: several short rows share the lanes of a vector in products.

    used:  elements of the rows, each of whole vectors of `square_width`.
    apart: elements from one channel to the next: whole vectors of `lanes`.
    """

    used: int
    lanes: int

    @classmethod
    def of(cls, spec: Winograd, rows: int) -> _Layout:
        used = rows * square_vectors(spec) * square_width(spec)
        return cls(used, lanes_for(spec.conv.dtype, used))

    @property
    def apart(self) -> int:
        return -(-self.used // self.lanes) * self.lanes


def _zeros(spec: Winograd) -> int:
    """Elements of the row of zeros; whole cache lines."""
    line = LINE // itemsize(spec.conv.dtype)
    return -(-spec.size[1] // line) * line


def scratch_bytes(spec: Winograd) -> int:
    """Bytes for the row of zeros, the transformed image, and the sums of products."""
    conv = spec.conv
    return (_zeros(spec) + 16 * (_step(spec, conv.channels) + _step(spec, conv.out))) * itemsize(conv.dtype)


def winograd(_: Module, f: Function, spec: Winograd) -> None:
    """``(x, filters, out)``; units as in `winograd_units`."""
    conv, dtype = spec.conv, spec.conv.dtype
    blocks = even_blocks(spec.squares[0], spec.rows)
    zeros = f.param("scratch")
    image = f.at(zeros, I64(_zeros(spec)), dtype)
    sums = f.at(image, I64(16 * _step(spec, conv.channels)), dtype)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        number, group, block = unravel(f, unit, (conv.batch, conv.groups, sum(count for *_, count in blocks)))
        at = f.binary("add", f.op(f"mul nsw {number}, {conv.groups}", "int64"), group)
        x = move(f, f.param("x"), dtype, (at, conv.channels * conv.plane))
        filters = move(f, f.param("filters"), dtype, (group, 16 * conv.channels * conv.out))
        out = move(f, f.param("out"), dtype, (at, conv.out * conv.pixels))
        fill_zeros(f, zeros, spec.size[1], dtype)
        before = 0
        for start, rows, count in blocks:
            within = f.op(f"sub nsw {block}, {before}", "int64")
            with f.when(f.compare("icmp ult", within, I64(count))):
                first = f.binary("add", f.op(f"mul nsw {within}, {rows}", "int64"), I64(start))
                layout = _Layout.of(spec, rows)
                places = _step(spec, conv.channels), layout.apart
                transform_image(f, spec, rows, first, zeros, x, image, conv.channels, places)
                each = _Block(f, spec, rows, first, image, sums, layout)
                each.clear_rest()
                each.multiply(filters)
                each.transform_sums(out)
            before += count


@dataclass(frozen=True, slots=True)
class _Block:
    """`rows` rows of squares from the row `first`.

    image, sums: addresses of the transformed image and of the sums of products.
    """

    f: Function
    spec: Winograd
    rows: int
    first: IRValue
    image: IRValue
    sums: IRValue
    layout: _Layout

    def clear_rest(self) -> None:
        """Write zeros behind the squares of each channel, up to a whole vector: an old denormal number costs time."""
        f, conv, dtype = self.f, self.spec.conv, self.spec.conv.dtype
        rest = self.layout.apart - self.layout.used
        if not rest:
            return
        with f.loop(I64(0), I64(16)) as number, f.loop(I64(0), I64(conv.channels)) as channel:
            step = _step(self.spec, conv.channels)
            place = move(f, self.image, dtype, (number, step), (channel, self.layout.apart), by=self.layout.used)
            f.store(f.splat(literal(0, dtype), rest), place)

    def multiply(self, filters: IRValue) -> None:
        """Sums over the channels of the image, for each of the 16 numbers of each square and output channel."""
        f, conv, dtype = self.f, self.spec.conv, self.spec.conv.dtype
        lanes, apart = self.layout.lanes, self.layout.apart
        vectors = apart // lanes
        tile = sum_tile(conv.out, vectors)
        with f.loop(I64(0), I64(16), polls=True) as number:
            image = move(f, self.image, dtype, (number, _step(self.spec, conv.channels)))
            sums = move(f, self.sums, dtype, (number, _step(self.spec, conv.out)))
            weights = move(f, filters, dtype, (number, conv.channels * conv.out))

            def tiles(out: IRValue, m: int) -> None:
                def one(vector: IRValue, n: int) -> None:
                    slots = [[f.slot(dtype, lanes) for _ in range(n)] for _ in range(m)]
                    for row in slots:
                        for slot in row:
                            f.write(f.splat(literal(0, dtype), lanes), slot)
                    with f.loop(I64(0), I64(conv.channels)) as channel:
                        here = move(f, image, dtype, (channel, apart), (vector, lanes))
                        there = move(f, weights, dtype, (channel, conv.out), (out, 1))
                        loaded = [f.load(f.at(here, I64(v * lanes), dtype), dtype, lanes) for v in range(n)]
                        for o, row in enumerate(slots):
                            weight = f.splat(f.load(f.at(there, I64(o), dtype), dtype), lanes)
                            for value, slot in zip(loaded, row, strict=True):
                                f.write(f.fma(value, weight, f.read(slot, dtype, lanes)), slot)
                    target = move(f, sums, dtype, (out, apart), (vector, lanes))
                    for o, row in enumerate(slots):
                        for v, slot in enumerate(row):
                            f.store(f.read(slot, dtype, lanes), move(f, target, dtype, by=o * apart + v * lanes))

                blocks_of(f, vectors, tile.vectors, one)

            blocks_of(f, conv.out, tile.channels, tiles)

    def transform_sums(self, out: IRValue) -> None:
        """Store the 2 x 2 pixels of each square."""
        f, spec, dtype = self.f, self.spec, self.spec.conv.dtype
        _, height, width = spec.conv.counts
        lanes, vectors = square_width(spec), square_vectors(spec)
        with f.loop(I64(0), I64(spec.conv.out)) as channel, f.loop(I64(0), I64(self.rows)) as row:
            top = f.op(f"shl nsw {f.binary('add', self.first, row)}, 1", "int64")
            place = move(f, out, dtype, (channel, spec.conv.pixels), (top, width))
            here = move(f, self.sums, dtype, (channel, self.layout.apart), (row, vectors * lanes))

            def pixels(vector: IRValue, count: int, place: IRValue = place, top: IRValue = top) -> None:
                source = move(f, here, dtype, (vector, lanes))
                step = _step(spec, spec.conv.out)
                columns = []
                for i in range(4):
                    met = [f.load(move(f, source, dtype, by=(4 * i + j) * step), dtype, lanes) for j in range(4)]
                    columns.append(_summed(f, met))
                (upper_left, lower_left), (upper_right, lower_right) = (
                    _summed(f, [column[j] for column in columns]) for j in range(2)
                )
                target = move(f, place, dtype, (vector, 2 * lanes))
                _store_pairs(f, upper_left, upper_right, target, count)
                if height % 2 == 0:
                    _store_pairs(f, lower_left, lower_right, move(f, target, dtype, by=width), count)
                else:
                    with f.when(f.compare("icmp slt", top, I64(height - 1))):
                        _store_pairs(f, lower_left, lower_right, move(f, target, dtype, by=width), count)

            _for_each_vector(f, vectors, lambda v: min(2 * lanes, width - 2 * lanes * v), pixels)


def transform_image(
    f: Function, spec: Winograd, rows: int, first: IRValue, zeros: IRValue, x: IRValue, target: IRValue,
    channels: int, places: tuple[int, int],
) -> None:  # fmt: skip
    """Transform the squares of 4 x 4 pixels of `rows` rows of squares from the row `first`, of channels from `x`.

    zeros:  the address of a row of zeros.
    places: elements at `target` from one of the 16 numbers to the next, and from one channel to the next, whose squares
            are [row, vector].
    """
    dtype = spec.conv.dtype
    height, width = spec.size
    step, apart = places
    lanes, vectors = square_width(spec), square_vectors(spec)
    with f.loop(I64(0), I64(channels)) as channel, f.loop(I64(0), I64(rows)) as row:
        plane = move(f, x, dtype, (channel, spec.conv.plane))
        top = f.op(f"shl nsw {f.binary('add', first, row)}, 1", "int64")
        starts = []
        for i in range(4):
            y = f.binary("add", top, I64(i - spec.before[0]))
            inside = f.compare("icmp ult", y, I64(height))
            starts.append(f.select(inside, move(f, plane, dtype, (y, width)), zeros))
        there = move(f, target, dtype, (channel, apart), (row, vectors * lanes))

        def squares(vector: IRValue, masks: Sequence[IRValue | None]) -> None:
            found = []
            for start in starts:
                here = move(f, start, dtype, (vector, 2 * lanes), by=-spec.before[1])
                loaded = [
                    f.load(f.at(here, I64(by), dtype), dtype, lanes, mask)
                    for by, mask in zip(_loads(lanes), masks, strict=True)
                ]
                found.append([*_apart(f, *loaded[:2]), *_apart(f, *loaded[2:])])
            place = move(f, there, dtype, (vector, lanes))
            for i in range(4):
                numbers = _transformed(f, *(_mixed(f, i, [line[j] for line in found]) for j in range(4)))
                for j, number in enumerate(numbers):
                    f.store(number, move(f, place, dtype, by=(4 * i + j) * step))

        _for_each_vector(f, vectors, lambda v: _masks(spec, lanes, v), squares)


def blocks_of(f: Function, total: int, most: int, body: Callable[[IRValue, int], None]) -> None:
    """``body(start, size)`` for each block of `even_blocks`."""
    for start, size, number in even_blocks(total, most):
        if number == 1:
            body(I64(start), size)
        else:
            with f.loop(I64(start), I64(start + size * number), size) as at:
                body(at, size)


def _for_each_vector(
    f: Function, vectors: int, kind: Callable[[int], Kind], body: Callable[[IRValue, Kind], None]
) -> None:
    """``body(number, kind(number))`` for the vectors of a row; those of one kind that follow each other are a loop."""
    for found, same in groupby(range(vectors), kind):
        numbers = list(same)
        if len(numbers) == 1:
            body(I64(numbers[0]), found)
        else:
            with f.loop(I64(numbers[0]), I64(numbers[-1] + 1)) as vector:
                body(vector, found)


# --- transformations ----------------------------------------------------------------------------------------------


def _loads(lanes: int) -> tuple[int, int, int, int]:
    """The first elements of the vectors that hold a row of the squares of one vector."""
    return 0, lanes, 2, lanes + 2


def _masks(spec: Winograd, lanes: int, vector: int) -> tuple[IRValue | None, ...]:
    """The masks of the loads of `_loads`: only elements inside a row are read."""
    return tuple(_inside(2 * lanes * vector - spec.before[1] + by, spec.size[1], lanes) for by in _loads(lanes))


def _inside(start: int, end: int, lanes: int) -> IRValue | None:
    """The mask of the positions from `start` that are in a row of `end` elements; None if all of them are."""
    inside = [0 <= start + i < end for i in range(lanes)]
    if all(inside):
        return None
    return IRValue(f"<{', '.join(f'i1 {str(each).lower()}' for each in inside)}>", "bool", lanes)


def _transformed(f: Function, a: IRValue, b: IRValue, c: IRValue, d: IRValue) -> list[IRValue]:
    """The transformation of four numbers of an image."""
    return [f.binary("fsub", a, c), f.binary("fadd", b, c), f.binary("fsub", c, b), f.binary("fsub", b, d)]


def _mixed(f: Function, which: int, numbers: Sequence[IRValue]) -> IRValue:
    """Element `which` of `_transformed`."""
    a, b, c, d = numbers
    opcode, first, second = (("fsub", a, c), ("fadd", b, c), ("fsub", c, b), ("fsub", b, d))[which]
    return f.binary(opcode, first, second)


def _summed(f: Function, numbers: Sequence[IRValue]) -> tuple[IRValue, IRValue]:
    """The transformation of four sums to two pixels."""
    a, b, c, d = numbers
    return f.binary("fadd", f.binary("fadd", a, b), c), f.binary("fsub", f.binary("fsub", b, c), d)


def _part(dtype: str, lanes: int) -> int:
    """Elements of the parts of a vector inside which shuffles cost least: 16 bytes."""
    return min(lanes, 16 // itemsize(dtype))


def square_order(dtype: str, lanes: int) -> list[int]:
    """The number of the square in each lane: the order in which squares are in a vector."""
    part = _part(dtype, lanes)
    starts = [start + vector for start in range(0, lanes, part) for vector in (0, lanes)]
    return [p // 2 for start in starts for p in range(start, start + part, 2)] if lanes > 1 else [0]


def _apart(f: Function, a: IRValue, b: IRValue) -> tuple[IRValue, IRValue]:
    """The elements of two vectors at even and at odd positions, in the order `square_order`."""
    if a.lanes == 1:
        return a, b
    even = [2 * number for number in square_order(a.dtype, a.lanes)]
    return _shuffled(f, a, b, even), _shuffled(f, a, b, [p + 1 for p in even])


def _store_pairs(f: Function, left: IRValue, right: IRValue, address: IRValue, count: int) -> None:
    """Store `count` pixels, which are the elements of `left` and `right` in turn."""
    lanes, part = left.lanes, _part(left.dtype, left.lanes)
    half = max(1, part // 2)
    for number in range(2):
        here = count - number * lanes
        if here <= 0:
            return
        if lanes == 1:
            value = (left, right)[number]
        else:
            places = [
                p for start in range(0, lanes, part) for i in range(half)
                for p in (start + number * half + i, lanes + start + number * half + i)
            ]  # fmt: skip
            value = _shuffled(f, left, right, places)
        store_lanes(f, value, move(f, address, left.dtype, by=number * lanes), here)


def _shuffled(f: Function, a: IRValue, b: IRValue, places: list[int]) -> IRValue:
    text = ", ".join(f"i32 {p}" for p in places)
    return f.op(f"shufflevector {a}, {b}, <{len(places)} x i32> <{text}>", a.dtype, len(places))


# --- filters ------------------------------------------------------------------------------------------------------


def filter_units(spec: WinogradFilters) -> int:
    """Units of work: (group, channel of the image), in this order."""
    return spec.conv.groups * spec.conv.channels


def winograd_filters(_: Module, f: Function, spec: WinogradFilters) -> None:
    """``(filter, out)``; units as in `filter_units`."""
    conv, dtype = spec.conv, spec.conv.dtype
    width = lanes(dtype)
    across, down = (conv.size, conv.out * conv.size) if spec.flipped else (conv.depth, conv.size)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        group, channel = unravel(f, unit, (conv.groups, conv.channels))
        given = move(f, f.param("filter"), dtype, (group, conv.out * conv.depth), (channel, down))
        target = move(f, f.param("out"), dtype, (group, 16 * conv.channels * conv.out), (channel, conv.out))

        def some(first: IRValue, count: int) -> None:
            here = move(f, given, dtype, (first, across))
            taps = [load_strided(f, f.at(here, I64(t), dtype), dtype, across, width, count) for t in range(conv.size)]
            taps = taps[::-1] if spec.flipped else taps
            rows = [_spread(f, taps[i::3]) for i in range(3)]  # along the first axis, for each column
            for i in range(4):
                for j, number in enumerate(_spread(f, [rows[column][i] for column in range(3)])):
                    place = move(f, target, dtype, (first, 1), by=(4 * i + j) * conv.channels * conv.out)
                    store_lanes(f, number, place, count)

        for start, size, number in _vectors_of(conv.out, width):
            if number == 1:
                some(I64(start), size)
            else:
                with f.loop(I64(start), I64(start + size * number), size) as first:
                    some(first, size)


def _vectors_of(total: int, width: int) -> list[tuple[int, int, int]]:
    """(start, size, number) of whole vectors, and of the rest."""
    whole, rest = divmod(total, width)
    return [each for each in ((0, width, whole), (whole * width, rest, int(rest > 0))) if each[2]]


def _spread(f: Function, taps: Sequence[IRValue]) -> list[IRValue]:
    """The transformation of three numbers of a filter."""
    a, b, c = taps
    half = f.constant(0.5, a)
    outer = f.binary("fadd", a, c)
    return [
        a,
        f.binary("fmul", half, f.binary("fadd", outer, b)),
        f.binary("fmul", half, f.binary("fsub", outer, b)),
        c,
    ]
