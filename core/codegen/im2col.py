"""Convolution and its adjoints as matrix products (im2col), for many channels.

The elements under each window are copied to columns [channels * kernel, pixels]: of `together` images at a time if
images are small, of `rows` rows of windows at a time if images are large. So products are wide enough and the columns
stay in the cache. Scratch memory holds the columns, and the pixels of several images as one matrix. Where a product can
read its columns in the images, they are not copied (`window_parts`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from core.codegen.convolution import image_count
from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.polling import stop_of
from core.codegen.product import ProductFunction, packed_function, product_function
from core.codegen.vector_slices import fill_zeros, for_each_block, for_each_slice, mask, move, store_lanes, unravel
from core.codegen.window_parts import (
    WindowPart,
    filter_form,
    forward_form,
    forward_product,
    matrix,
    packed_windows,
    transposed,
    whole_lines,
)
from core.plan.geometry import Correlation
from core.plan.instructions import Gemm

__all__ = [
    "correlate_im2col",
    "filter_adjoint_im2col",
    "filter_units",
    "image_units",
    "input_adjoint_im2col",
]


def _parts(f: Function, spec: Correlation, body: Callable[[WindowPart], None]) -> None:
    """`body` for all windows of `together` images, or for `spec.rows` rows of windows at a time."""
    depth, height, _ = spec.counts
    channels = spec.channels // spec.shares
    if not spec.rows:
        body(WindowPart(spec, channels, I64(0), I64(0), depth, height))
        return
    with f.loop(I64(0), I64(depth), polls=True) as z:
        for_each_block(f, height, spec.rows, lambda y, n: body(WindowPart(spec, channels, z, y, 1, n)))


def correlate_im2col(module: Module, f: Function, spec: Correlation) -> None:
    """``(x, filter, out)``; a unit is `together` images."""
    spec, stores = forward_form(spec)
    dtype, given = spec.dtype, spec.operands
    with (
        f.loop(f.param("first"), f.param("end"), polls=True) as unit,
        f.loop(I64(0), I64(spec.groups), polls=True) as group,
    ):
        images = f.op(f"mul nsw {unit}, {spec.together}", "int64")
        image = _image(f, spec, f.param("x"), images, group, given)
        filters = move(f, f.param("filter"), given, (group, spec.out * spec.depth))

        def product(part: WindowPart) -> None:
            columns, rows, out = _memory(f, part, f.param("out"), images, group, given if stores else "", dtype)
            if stores:
                _meet(module, f, part, image, columns, given, lambda near, far, n: _copy_row(f, given, near, far, n))
                _multiply(module, f, forward_product(part), filters, columns, rows)
            else:
                packed = packed_windows(part)
                each = replace(forward_product(part), b=part.image_matrix(given))
                function = packed_function(module, packed) if packed else product_function(module, each)
                _call(f, function, filters, part.first_window(f, image), rows)
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

        def product(part: WindowPart) -> None:
            columns, rows, ct = _memory(f, part, f.param("ct"), images, group, dtype, given)
            if spec.together > 1:
                _each_row(f, part, lambda near, far: _copy_row(f, given, near, far, part.pixels), ct, rows, given)
            turned = matrix(given, spec.depth, spec.out)
            a = turned if spec.given else transposed(matrix(dtype, spec.out, spec.depth))
            _multiply(module, f, Gemm(a, part.result(given), part.columns(dtype)), filters, rows, columns)
            _meet(module, f, part, image, columns, dtype, lambda near, far, n: _add_row(f, dtype, far, near, n))

        _parts(f, spec, product)


def filter_adjoint_im2col(module: Module, f: Function, spec: Correlation) -> None:
    """``(ct, x[, images], out)``; a unit is the filters of one group for one share of the image's channels."""
    spec, in_place = filter_form(spec)
    dtype, given, channels = spec.dtype, spec.operands, spec.channels // spec.shares
    share, count, counted = channels * spec.size, image_count(f, spec), f.has_param("images")
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        group, which = unravel(f, unit, (spec.groups, spec.shares))
        target = move(f, f.param("out"), dtype, (group, spec.out * spec.depth), (which, share))
        with f.loop(I64(0), I64(spec.out)) as o:
            fill_zeros(f, move(f, target, dtype, (o, spec.depth)), share, dtype)
        with f.loop(I64(0), count, spec.together, polls=True) as images:
            present = None
            if counted and spec.together > 1:
                present = f.intrinsic("smin", f.binary("sub", count, images), I64(spec.together))
            image = move(f, _image(f, spec, f.param("x"), images, group, given), given, (which, channels * spec.plane))

            def product(part: WindowPart) -> None:
                columns, rows, ct = _memory(f, part, f.param("ct"), images, group, "" if in_place else given, given)
                if in_place:
                    columns, b = part.first_window(f, image), part.image_matrix(given)
                else:
                    b = part.columns(given)
                    if present is not None:
                        _clear_absent(f, part, present, columns, rows, given)
                    _meet(module, f, part, image, columns, given, partial(_copy_row, f, given), present)
                if spec.together > 1:
                    copy = lambda near, far: _copy_row(f, given, near, far, part.pixels)
                    _each_row(f, part, copy, ct, rows, given, present)
                c = matrix(dtype, spec.out, share, spec.depth)
                each = Gemm(part.result(given), transposed(b), c, accumulate=True)
                _multiply(module, f, each, rows, columns, target)

            _parts(f, spec, product)


def image_units(spec: Correlation) -> int:
    return spec.batch // spec.together


def filter_units(spec: Correlation) -> int:
    return spec.groups * spec.shares


def _multiply(module: Module, f: Function, each: Gemm, a: IRValue, b: IRValue, c: IRValue) -> None:
    _call(f, product_function(module, each), a, b, c)


def _call(f: Function, function: ProductFunction, a: IRValue, b: IRValue, c: IRValue) -> None:
    arguments = [a, b, c, *([stop_of(f, f.param("error"))] if function.polls else [])]
    f.do(f"call void @{function.name}({', '.join(map(str, arguments))}, i64 0, i64 {function.parts})")


def _image(f: Function, spec: Correlation, base: IRValue, image: IRValue, group: IRValue, dtype: str) -> IRValue:
    plane = spec.channels * spec.plane
    return move(f, base, dtype, (image, spec.groups * plane), (group, plane))


def _memory(
    f: Function, part: WindowPart, pixels: IRValue, images: IRValue, group: IRValue, of_columns: str, of_pixels: str
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
    return columns, move(f, columns, "uint8", by=whole_lines(count)), near


def _meet(
    module: Module, f: Function, part: WindowPart, image: IRValue, columns: IRValue, dtype: str,
    body: Callable[[IRValue, IRValue, int], None], images: IRValue | None = None,
) -> None:  # fmt: skip
    """``body(address in the image, address in the columns, length)`` for each row of windows of each column.

    images: how many of the images that one product takes are present; None for all.
    """
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
            f.loop(I64(0), I64(spec.together) if images is None else images) as n,
            f.loop(I64(0), I64(part.depths)) as z,
            f.loop(I64(0), I64(part.rows)) as y,
        ):
            met = move(f, _image(f, spec, here, n, I64(0), dtype), dtype, (z, spec.moves[0]), (y, spec.moves[1]))
            column = move(f, there, dtype, (n, part.pixels), (z, part.rows * width), (y, width))
            body(met, column, width)


def _each_row(
    f: Function, part: WindowPart, body: Callable[[IRValue, IRValue], None], near: IRValue, far: IRValue, dtype: str,
    images: IRValue | None = None,
) -> None:  # fmt: skip
    """``body(address in the images, address in the matrix)`` for the pixels of each channel of each image.

    images: as of `_meet`.
    """
    spec, pixels = part.spec, part.pixels
    with f.loop(I64(0), I64(spec.together) if images is None else images) as n, f.loop(I64(0), I64(spec.out)) as o:
        body(
            move(f, near, dtype, (n, spec.groups * spec.out * pixels), (o, pixels)),
            move(f, far, dtype, (n, pixels), (o, spec.together * pixels)),
        )


def _clear_absent(f: Function, part: WindowPart, present: IRValue, columns: IRValue, rows: IRValue, dtype: str) -> None:
    """Fill the operands of a product with zeros if some of its images are absent."""
    with f.when(f.compare("icmp slt", present, I64(part.spec.together))):
        for address, shape in ((columns, part.columns(dtype).shape), (rows, part.result(dtype).shape)):
            fill_zeros(f, address, math.prod(shape), dtype)


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
