"""Convolution and its adjoints as matrix products (im2col), for many channels.

The elements under each window are copied to columns [channels * kernel, pixels]: of `together` images at a time if
images are small, of `rows` rows of windows at a time if images are large. So products are wide enough and the columns
stay in the cache. Scratch memory holds the columns, and the pixels of several images as one matrix. A convolution that
packs its columns for a product packs them straight from the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from core.codegen.image_panels import ImageColumns
from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.packed_gemm import PackedGemm
from core.codegen.polling import stop_of
from core.codegen.product import ProductFunction, packed_function, product_function, window_product
from core.codegen.vector_slices import (
    even_blocks,
    fill_zeros,
    for_each_block,
    for_each_slice,
    mask,
    move,
    store_lanes,
    unravel,
)
from core.ir.aligned import LINE
from core.plan.data import Gemm, Root, View
from core.plan.geometry import Correlation

__all__ = [
    "correlate_im2col",
    "filter_adjoint_im2col",
    "filter_units",
    "image_units",
    "input_adjoint_im2col",
    "scratch_bytes",
    "window_bytes",
]


@dataclass(frozen=True, slots=True)
class _Part:
    """The windows of one product: `depths` by `rows` rows of windows from (z, y), in each of `together` images.

    channels: channels of the image in this product.
    """

    spec: Correlation
    channels: int
    z: IRValue
    y: IRValue
    depths: int
    rows: int

    @property
    def pixels(self) -> int:
        """Pixels of the result in one image."""
        return self.depths * self.rows * self.spec.counts[2]

    def columns(self, dtype: str) -> View:
        return _matrix(dtype, self.channels * self.spec.size, self.spec.together * self.pixels)

    @property
    def windows(self) -> ImageColumns:
        """The columns as windows of the image, from its first window of this part."""
        spec = self.spec
        (depth, height, _), length = spec.kernel, spec.counts[2]
        taps = [
            a * spec.taps[0] + b * spec.taps[1] + t for a in range(depth) for b in range(height) for t in spec.along
        ]
        image = spec.groups * spec.channels * spec.plane
        runs = [(spec.together, image), (self.depths, spec.moves[0]), (self.rows, spec.moves[1])]
        while runs and (runs[-1][0] == 1 or runs[-1][1] == length):
            length *= runs.pop()[0]
        return ImageColumns(spec.plane, tuple(taps), tuple(runs), length)

    def result(self, dtype: str) -> View:
        """The matrix [out, pixels]: in place for one image, a copy for several images."""
        spec = self.spec
        count = spec.together * self.pixels
        return _matrix(dtype, spec.out, count, spec.pixels if spec.together == 1 else count)


def _parts(f: Function, spec: Correlation, body: Callable[[_Part], None]) -> None:
    """`body` for all windows of `together` images, or for `spec.rows` rows of windows at a time."""
    depth, height, _ = spec.counts
    channels = spec.channels // spec.shares
    if not spec.rows:
        body(_Part(spec, channels, I64(0), I64(0), depth, height))
        return
    with f.loop(I64(0), I64(depth), polls=True) as z:
        for_each_block(f, height, spec.rows, lambda y, n: body(_Part(spec, channels, z, y, 1, n)))


def correlate_im2col(module: Module, f: Function, spec: Correlation) -> None:
    """``(x, filter, out)``; a unit is `together` images."""
    dtype, given, in_panels = spec.dtype, spec.operands, _in_panels(spec)
    with (
        f.loop(f.param("first"), f.param("end"), polls=True) as unit,
        f.loop(I64(0), I64(spec.groups), polls=True) as group,
    ):
        images = f.op(f"mul nsw {unit}, {spec.together}", "int64")
        image = _image(f, spec, f.param("x"), images, group, given)
        filters = move(f, f.param("filter"), given, (group, spec.out * spec.depth))

        def product(part: _Part) -> None:
            packed = _packed(part) if in_panels else None
            columns, rows, out = _memory(f, part, f.param("out"), images, group, "" if packed else given, dtype)
            if packed:
                windows = move(f, image, given, (part.z, spec.moves[0]), (part.y, spec.moves[1]))
                _call(f, packed_function(module, packed), filters, windows, rows)
            else:
                _meet(module, f, part, image, columns, given, lambda near, far, n: _copy_row(f, given, near, far, n))
                _multiply(module, f, _forward(part), filters, columns, rows)
            if spec.together > 1:
                _each_row(f, part, lambda near, far: _copy_row(f, dtype, far, near, part.pixels), out, rows, dtype)

        _parts(f, spec, product)


def input_adjoint_im2col(module: Module, f: Function, spec: Correlation) -> None:
    """``(ct, filter, out)``; a unit is `together` images.

    Filters of pairs are given as [group, channel, kernel, out], so that the two numbers of a pair follow each other.
    """
    dtype, given = spec.dtype, spec.operands
    with (
        f.loop(f.param("first"), f.param("end"), polls=True) as unit,
        f.loop(I64(0), I64(spec.groups), polls=True) as group,
    ):
        images = f.op(f"mul nsw {unit}, {spec.together}", "int64")
        image = _image(f, spec, f.param("out"), images, group, dtype)
        filters = move(f, f.param("filter"), given, (group, spec.out * spec.depth))
        with f.loop(I64(0), I64(spec.together)) as n:
            fill_zeros(f, _image(f, spec, image, n, I64(0), dtype), spec.channels * spec.plane, dtype)

        def product(part: _Part) -> None:
            columns, rows, ct = _memory(f, part, f.param("ct"), images, group, dtype, given)
            if spec.together > 1:
                _each_row(f, part, lambda near, far: _copy_row(f, given, near, far, part.pixels), ct, rows, given)
            turned = _matrix(given, spec.depth, spec.out)
            a = turned if spec.given else _transposed(_matrix(dtype, spec.out, spec.depth))
            _multiply(module, f, Gemm(a, part.result(given), part.columns(dtype)), filters, rows, columns)
            _meet(module, f, part, image, columns, dtype, lambda near, far, n: _add_row(f, dtype, far, near, n))

        _parts(f, spec, product)


def filter_adjoint_im2col(module: Module, f: Function, spec: Correlation) -> None:
    """``(ct, x, out)``; a unit is the filters of one group for one share of the image's channels."""
    dtype, given, channels = spec.dtype, spec.operands, spec.channels // spec.shares
    share = channels * spec.size
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        group, which = unravel(f, unit, (spec.groups, spec.shares))
        target = move(f, f.param("out"), dtype, (group, spec.out * spec.depth), (which, share))
        with f.loop(I64(0), I64(spec.out)) as o:
            fill_zeros(f, move(f, target, dtype, (o, spec.depth)), share, dtype)
        with f.loop(I64(0), I64(spec.batch), spec.together, polls=True) as images:
            image = move(f, _image(f, spec, f.param("x"), images, group, given), given, (which, channels * spec.plane))

            def product(part: _Part) -> None:
                columns, rows, ct = _memory(f, part, f.param("ct"), images, group, given, given)
                _meet(module, f, part, image, columns, given, lambda near, far, n: _copy_row(f, given, near, far, n))
                if spec.together > 1:
                    _each_row(f, part, lambda near, far: _copy_row(f, given, near, far, part.pixels), ct, rows, given)
                c = _matrix(dtype, spec.out, share, spec.depth)
                each = Gemm(part.result(given), _transposed(part.columns(given)), c, accumulate=True)
                _multiply(module, f, each, rows, columns, target)

            _parts(f, spec, product)


def image_units(spec: Correlation) -> int:
    return spec.batch // spec.together


def filter_units(spec: Correlation) -> int:
    return spec.groups * spec.shares


def scratch_bytes(spec: Correlation) -> int:
    """Bytes for the columns, and for the pixels of several images."""
    count = spec.together * (spec.rows * spec.counts[2] if spec.rows else spec.pixels)
    size = itemsize(spec.dtype)  # of pairs, some columns take half as much
    columns, rows = spec.depth // spec.shares * count * size, spec.out * count * size
    return _whole_lines(columns) + rows if spec.together > 1 else columns


def window_bytes(spec: Correlation) -> int:
    """Bytes that a convolution needs: without columns if its products pack them straight from images."""
    if not _in_panels(spec):
        return scratch_bytes(spec)
    return spec.out * spec.together * spec.pixels * itemsize(spec.dtype) if spec.together > 1 else 0


def _in_panels(spec: Correlation) -> bool:
    """Whether all products of a convolution pack their columns straight from images."""
    depth, height, _ = spec.counts
    sizes = [(1, size) for _, size, _ in even_blocks(height, spec.rows)] if spec.rows else [(depth, height)]
    channels = spec.channels // spec.shares
    return all(_packed(_Part(spec, channels, I64(0), I64(0), *each)) for each in sizes)


def _packed(part: _Part) -> PackedGemm | None:
    return window_product(_forward(part), part.windows)


def _forward(part: _Part) -> Gemm:
    spec = part.spec
    return Gemm(_matrix(spec.operands, spec.out, spec.depth), part.columns(spec.operands), part.result(spec.dtype))


def _multiply(module: Module, f: Function, each: Gemm, a: IRValue, b: IRValue, c: IRValue) -> None:
    _call(f, product_function(module, each), a, b, c)


def _call(f: Function, function: ProductFunction, a: IRValue, b: IRValue, c: IRValue) -> None:
    arguments = [a, b, c, *([stop_of(f, f.param("error"))] if function.polls else [])]
    f.do(f"call void @{function.name}({', '.join(map(str, arguments))}, i64 0, i64 {function.parts})")


def _image(f: Function, spec: Correlation, base: IRValue, image: IRValue, group: IRValue, dtype: str) -> IRValue:
    plane = spec.channels * spec.plane
    return move(f, base, dtype, (image, spec.groups * plane), (group, plane))


def _memory(
    f: Function, part: _Part, pixels: IRValue, images: IRValue, group: IRValue, of_columns: str, of_pixels: str
) -> tuple[IRValue, IRValue, IRValue]:
    """Addresses of the columns, of the matrix [out, pixels], and of its first row in the array `pixels`.

    For one image the second and the third are the same.

    of_columns, of_pixels: dtypes; "" if there are no columns.
    """
    spec = part.spec
    near = move(f, pixels, of_pixels, (images, spec.groups * spec.out * spec.pixels), (group, spec.out * spec.pixels),
                (part.z, spec.counts[1] * spec.counts[2]), (part.y, spec.counts[2]))  # fmt: skip
    if spec.together == 1:
        return (f.param("scratch") if of_columns else near), near, near
    columns = f.param("scratch")
    count = math.prod(part.columns(of_columns).shape) * itemsize(of_columns) if of_columns else 0
    return columns, move(f, columns, "uint8", by=_whole_lines(count)), near


def _whole_lines(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE


def _matrix(dtype: str, rows: int, columns: int, distance: int = 0) -> View:
    return View(Root(0), dtype, (rows, columns), (distance or columns, 1))


def _transposed(view: View) -> View:
    return View(view.root, view.dtype, view.shape[::-1], view.strides[::-1])


def _meet(
    module: Module, f: Function, part: _Part, image: IRValue, columns: IRValue, dtype: str,
    body: Callable[[IRValue, IRValue, int], None],
) -> None:  # fmt: skip
    """``body(address in the image, address in the columns, length)`` for each row of windows of each column."""
    spec = part.spec
    depth, height, row = spec.kernel
    width = spec.counts[2]
    count = spec.together * part.pixels
    offsets = module.table(spec.along)
    image = move(f, image, dtype, (part.z, spec.moves[0]), (part.y, spec.moves[1]))
    with (
        f.loop(I64(0), I64(part.channels), polls=True) as c,
        f.loop(I64(0), I64(depth)) as a,
        f.loop(I64(0), I64(height)) as b,
        f.loop(I64(0), I64(row)) as t,
    ):
        offset = f.load(f.at(offsets, t, "int64"), "int64")
        here = move(f, image, dtype, (c, spec.plane), (a, spec.taps[0]), (b, spec.taps[1]), (offset, 1))
        there = move(f, columns, dtype, (c, spec.size * count), (a, height * row * count), (b, row * count), (t, count))
        with (
            f.loop(I64(0), I64(spec.together)) as n,
            f.loop(I64(0), I64(part.depths)) as z,
            f.loop(I64(0), I64(part.rows)) as y,
        ):
            met = move(f, _image(f, spec, here, n, I64(0), dtype), dtype, (z, spec.moves[0]), (y, spec.moves[1]))
            column = move(f, there, dtype, (n, part.pixels), (z, part.rows * width), (y, width))
            body(met, column, width)


def _each_row(
    f: Function, part: _Part, body: Callable[[IRValue, IRValue], None], near: IRValue, far: IRValue, dtype: str
) -> None:
    """``body(address in the images, address in the matrix)`` for the pixels of each channel of each image."""
    spec, pixels = part.spec, part.pixels
    with f.loop(I64(0), I64(spec.together)) as n, f.loop(I64(0), I64(spec.out)) as o:
        body(
            move(f, near, dtype, (n, spec.groups * spec.out * pixels), (o, pixels)),
            move(f, far, dtype, (n, pixels), (o, spec.together * pixels)),
        )


def _copy_row(f: Function, dtype: str, source: IRValue, target: IRValue, length: int) -> None:
    width = lanes(dtype)

    def piece(at: IRValue, count: int) -> None:
        value = f.load(move(f, source, dtype, (at, 1)), dtype, width, mask(count, width))
        store_lanes(f, value, move(f, target, dtype, (at, 1)), count)

    for_each_slice(f, length, width, piece)


def _add_row(f: Function, dtype: str, source: IRValue, target: IRValue, length: int) -> None:
    width = lanes(dtype)

    def piece(at: IRValue, count: int) -> None:
        which, place = mask(count, width), move(f, target, dtype, (at, 1))
        more = f.load(move(f, source, dtype, (at, 1)), dtype, width, which)
        store_lanes(f, f.binary("fadd", f.load(place, dtype, width, which), more), place, count)

    for_each_slice(f, length, width, piece)
