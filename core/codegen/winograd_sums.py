"""The adjoint of a convolution to its filters by the algorithm of Winograd (see `core.plan.winograd`).

Images are transformed as for the convolution, with squares next to each other. Cotangents are transposed and
transformed with output channels in the lanes, so that each number of the image multiplies vectors of output channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.codegen.convolution import image_count, sum_tile
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.module import Module
from core.codegen.transpose import transpose_square
from core.codegen.vector_slices import even_blocks, fill_zeros, lanes_for, move, unravel
from core.codegen.winograd import LINE, blocks_of, square_order, square_vectors, square_width, transform_image
from core.plan.winograd import WinogradSums, WinogradTotal

__all__ = ["scratch_bytes", "sum_units", "total_units", "winograd_sums", "winograd_total"]


def sum_units(spec: WinogradSums) -> int:
    """Units of work: (share, group, block of channels of the image), in this order."""
    return spec.shares * spec.squares.conv.groups * spec.blocks


def _lanes(spec: WinogradSums) -> int:
    return lanes_for(spec.squares.conv.dtype, spec.squares.conv.out)


def _vectors(spec: WinogradSums) -> int:
    """Vectors of output channels."""
    return -(-spec.squares.conv.out // _lanes(spec))


@dataclass(frozen=True, slots=True)
class _Layout:
    """Elements of the parts of the scratch memory, in this order.

    zeros:  a row of zeros of an image, and one of transposed cotangents.
    image:  from one of the 16 numbers of the transformed image to the next.
    ct:     from one of the 16 numbers of the transformed cotangents to the next.
    packed: of the transposed cotangents.
    """

    zeros: tuple[int, int]
    image: int
    ct: int
    packed: int


def _layout(spec: WinogradSums) -> _Layout:
    squares, conv = spec.squares, spec.squares.conv
    line = LINE // itemsize(conv.dtype)
    row = square_vectors(squares) * square_width(squares)
    width = conv.counts[2]
    return _Layout(
        (-(-squares.size[1] // line) * line, width * spec.padded),
        conv.channels // spec.blocks * squares.rows * row + line,
        squares.rows * squares.squares[1] * spec.padded + line,
        2 * squares.rows * width * spec.padded,
    )


def scratch_bytes(spec: WinogradSums) -> int:
    """Bytes for rows of zeros, the transformed image and cotangents, and the transposed cotangents."""
    layout = _layout(spec)
    return (sum(layout.zeros) + 16 * (layout.image + layout.ct) + layout.packed) * itemsize(spec.squares.conv.dtype)


def winograd_sums(module: Module, f: Function, spec: WinogradSums) -> None:
    """``(ct, x[, images], sums)``; units as in `sum_units`."""
    squares, conv, dtype = spec.squares, spec.squares.conv, spec.squares.conv.dtype
    layout, block = _layout(spec), conv.channels // spec.blocks
    blocks = even_blocks(squares.squares[0], squares.rows)
    number = sum(count for *_, count in blocks)
    zeros = f.param("scratch")
    zero_row = f.at(zeros, I64(layout.zeros[0]), dtype)
    image = f.at(zero_row, I64(layout.zeros[1]), dtype)
    ct = f.at(image, I64(16 * layout.image), dtype)
    squares_in_all = f.binary("mul", image_count(f, conv), I64(number))
    packed = f.at(ct, I64(16 * layout.ct), dtype)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        share, group, part = unravel(f, unit, (spec.shares, conv.groups, spec.blocks))
        fill_zeros(f, zeros, sum(layout.zeros), dtype)
        sums = move(f, f.param("sums"), dtype, (share, spec.share), (group, 16 * conv.channels * spec.padded),
                    (part, block * spec.padded))  # fmt: skip
        with f.loop(I64(0), I64(16)) as each:
            fill_zeros(f, move(f, sums, dtype, (each, conv.channels * spec.padded)), block * spec.padded, dtype)
        start, end = (
            f.op(f"udiv {f.op(f'mul nuw {s}, {squares_in_all.name}', 'int64')}, {spec.shares}", "int64")
            for s in (share, f.binary("add", share, I64(1)))
        )
        with f.loop(start, end, polls=True) as at:
            n, which = unravel(f, at, (conv.batch, number))
            source = move(f, f.param("x"), dtype, (n, conv.groups * conv.channels * conv.plane),
                          (group, conv.channels * conv.plane), (part, block * conv.plane))  # fmt: skip
            given = move(f, f.param("ct"), dtype, (n, conv.groups * conv.out * conv.pixels),
                         (group, conv.out * conv.pixels))  # fmt: skip
            before = 0
            for begin, rows, count in blocks:
                within = f.op(f"sub nsw {which}, {before}", "int64")
                with f.when(f.compare("icmp ult", within, I64(count))):
                    first = f.binary("add", f.op(f"mul nsw {within}, {rows}", "int64"), I64(begin))
                    places = layout.image, rows * square_vectors(squares) * square_width(squares)
                    transform_image(f, squares, rows, first, zeros, source, image, block, places)
                    part_of = _Block(module, f, spec, rows, first, layout)
                    part_of.transpose(given, packed)
                    part_of.transform(packed, zero_row, ct)
                    part_of.multiply(image, ct, sums, block)
                before += count


@dataclass(frozen=True, slots=True)
class _Block:
    """`rows` rows of squares from the row `first`."""

    module: Module
    f: Function
    spec: WinogradSums
    rows: int
    first: IRValue
    layout: _Layout

    def transpose(self, given: IRValue, packed: IRValue) -> None:
        """Store the cotangents of the rows as [pixel, output channel]."""
        f, conv, dtype, lanes = self.f, self.spec.squares.conv, self.spec.squares.conv.dtype, _lanes(self.spec)
        width = conv.counts[2]
        start = f.op(f"mul nsw {self.first}, {2 * width}", "int64")
        pixels = f.intrinsic("smin", f.binary("sub", I64(conv.pixels), start), I64(2 * self.rows * width))
        with f.loop(I64(0), I64(conv.out), lanes) as channel:
            here = move(f, given, dtype, (channel, conv.pixels), (start, 1))
            there = f.at(packed, channel, dtype)
            rows = f.binary("sub", I64(conv.out), channel)
            with f.loop(I64(0), pixels, lanes) as at:
                source = (f.at(here, at, dtype), I64(conv.pixels))
                target = (move(f, there, dtype, (at, self.spec.padded)), I64(self.spec.padded))
                left = f.binary("sub", pixels, at)
                transpose_square(self.module, f, dtype, source, target, rows, left, lanes, pads=True)

    def transform(self, packed: IRValue, zero_row: IRValue, ct: IRValue) -> None:
        """Transform the 2 x 2 cotangents of each square."""
        f, conv, dtype, lanes = self.f, self.spec.squares.conv, self.spec.squares.conv.dtype, _lanes(self.spec)
        padded, (_, height, width) = self.spec.padded, conv.counts
        columns = self.spec.squares.squares[1]
        zero = f.splat(literal(0, dtype), lanes)
        with f.loop(I64(0), I64(self.rows)) as row:
            top = f.op(f"shl nsw {f.binary('add', self.first, row)}, 1", "int64")
            upper = move(f, packed, dtype, (row, 2 * width * padded))
            inside = f.compare("icmp slt", top, I64(height - 1))
            lower = f.select(inside, move(f, upper, dtype, by=width * padded), zero_row)

            def square(
                column: IRValue, whole: bool, lines: Sequence[IRValue] = (upper, lower), row: IRValue = row
            ) -> None:
                with f.loop(I64(0), I64(padded), lanes) as channel:
                    found = []
                    for line in lines:
                        here = move(f, line, dtype, (column, 2 * padded), (channel, 1))
                        left = f.load(here, dtype, lanes)
                        found.append(
                            _spread(f, left, f.load(move(f, here, dtype, by=padded), dtype, lanes) if whole else zero)
                        )
                    target = move(f, ct, dtype, (row, columns * padded), (column, padded), (channel, 1))
                    for j in range(4):
                        for i, number in enumerate(_spread(f, found[0][j], found[1][j])):
                            f.store(number, move(f, target, dtype, by=(4 * i + j) * self.layout.ct))

            with f.loop(I64(0), I64(width // 2)) as column:
                square(column, True)
            if width % 2:
                square(I64(columns - 1), False)

    def multiply(self, image: IRValue, ct: IRValue, sums: IRValue, channels: int) -> None:
        """Add the products of all squares to the sums."""
        f, conv, dtype, lanes = self.f, self.spec.squares.conv, self.spec.squares.conv.dtype, _lanes(self.spec)
        columns, padded = self.spec.squares.squares[1], self.spec.padded
        row = square_vectors(self.spec.squares) * square_width(self.spec.squares)
        outs = _vectors(self.spec)
        tile = sum_tile(channels, outs)
        places = self.module.table(_places(self.spec, self.rows))
        with f.loop(I64(0), I64(16), polls=True) as number:
            numbers = move(f, image, dtype, (number, self.layout.image))
            vectors = move(f, ct, dtype, (number, self.layout.ct))
            target = move(f, sums, dtype, (number, conv.channels * padded))

            def some(channel: IRValue, m: int) -> None:
                def one(vector: IRValue, n: int) -> None:
                    slots = [[f.slot(dtype, lanes) for _ in range(n)] for _ in range(m)]
                    for line in slots:
                        for slot in line:
                            f.write(f.splat(literal(0, dtype), lanes), slot)
                    with f.loop(I64(0), I64(self.rows * columns)) as square:
                        here = move(f, vectors, dtype, (square, padded), (vector, lanes))
                        place = f.load(f.at(places, square, "int64"), "int64")
                        met = move(f, numbers, dtype, (channel, self.rows * row), (place, 1))
                        loaded = [f.load(f.at(here, I64(v * lanes), dtype), dtype, lanes) for v in range(n)]
                        for c, line in enumerate(slots):
                            pixel = f.splat(f.load(f.at(met, I64(c * self.rows * row), dtype), dtype), lanes)
                            for value, slot in zip(loaded, line, strict=True):
                                f.write(f.fma(value, pixel, f.read(slot, dtype, lanes)), slot)
                    place = move(f, target, dtype, (channel, padded), (vector, lanes))
                    for c, line in enumerate(slots):
                        for v, slot in enumerate(line):
                            there = move(f, place, dtype, by=c * padded + v * lanes)
                            more = f.binary("fadd", f.load(there, dtype, lanes), f.read(slot, dtype, lanes))
                            f.store(more, there)

                blocks_of(f, outs, tile.vectors, one)

            blocks_of(f, channels, tile.channels, some)


def _places(spec: WinogradSums, rows: int) -> tuple[int, ...]:
    """The place of each square of some rows among the numbers of one channel."""
    width, columns = square_width(spec.squares), spec.squares.squares[1]
    order = square_order(spec.squares.conv.dtype, width)
    row = square_vectors(spec.squares) * width
    return tuple(y * row + x // width * width + order.index(x % width) for y in range(rows) for x in range(columns))


def _spread(f: Function, a: IRValue, b: IRValue) -> list[IRValue]:
    """The transformation of two cotangents; the sign of the last number is changed."""
    return [a, f.binary("fadd", a, b), f.binary("fsub", a, b), b]


# --- the total ---------------------------------------------------------------------------------------------------


def total_units(spec: WinogradTotal) -> int:
    """Units of work: (group, channel of the image), in this order."""
    return spec.sums.squares.conv.groups * spec.sums.squares.conv.channels


def winograd_total(_: Module, f: Function, spec: WinogradTotal) -> None:
    """``(sums, out)``; units as in `total_units`."""
    sums, conv, dtype = spec.sums, spec.sums.squares.conv, spec.sums.squares.conv.dtype
    lanes = _lanes(sums)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        group, channel = unravel(f, unit, (conv.groups, conv.channels))
        given = move(f, f.param("sums"), dtype, (group, 16 * conv.channels * sums.padded), (channel, sums.padded))
        target = move(f, f.param("out"), dtype, (group, conv.out * conv.depth), (channel, conv.size))

        def some(first: IRValue, count: int) -> None:
            rows = []
            for i in range(4):
                found = []
                for j in range(4):
                    here = move(f, given, dtype, (first, 1), by=(4 * i + j) * conv.channels * sums.padded)
                    each = [f.load(move(f, here, dtype, by=s * sums.share), dtype, lanes) for s in range(sums.shares)]
                    while len(each) > 1:
                        each = [f.binary("fadd", a, b) for a, b in zip(each[::2], each[1::2], strict=True)]
                    found.append(each[0])
                rows.append(_gathered(f, found))
            taps = [_gathered(f, [row[j] for row in rows]) for j in range(3)]  # taps[column][row]
            for lane in range(count):
                place = move(f, target, dtype, (f.binary("add", first, I64(lane)), conv.depth))
                for a in range(3):
                    for b in range(3):
                        number = f.op(f"extractelement {taps[b][a]}, i64 {lane}", dtype) if lanes > 1 else taps[b][a]
                        f.store(number, move(f, place, dtype, by=3 * a + b))

        whole, rest = divmod(conv.out, lanes)
        if whole:
            with f.loop(I64(0), I64(whole * lanes), lanes) as first:
                some(first, lanes)
        if rest:
            some(I64(whole * lanes), rest)


def _gathered(f: Function, numbers: Sequence[IRValue]) -> list[IRValue]:
    """The adjoint of the transformation of a filter, for numbers whose last one has the other sign."""
    a, b, c, d = numbers
    half = f.constant(0.5, a)
    even = f.binary("fmul", half, f.binary("fadd", b, c))
    return [
        f.binary("fadd", a, even),
        f.binary("fmul", half, f.binary("fsub", b, c)),
        f.binary("fsub", even, d),
    ]
