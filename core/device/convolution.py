"""Convolution and its adjoints on many threads, as products of matrices whose patches are read while tiles are loaded.

| form | rows | columns | terms |
|---|---|---|---|
| convolution | output channels | windows of all images | elements of a filter |
| input adjoint | input channels | elements of all images | output channels and elements of their filters |
| filter adjoint | output channels | elements of a filter | windows of all images |

The input adjoint is a gather: an element of the image meets the windows that lie over it. If windows move by s, the
elements at p, p + s, p + 2 s, ... of an axis meet the same elements of the filters, so each such class is a product of
its own. No form adds to memory that another thread writes.

Where a group has too few channels to fill a tile, `core.device.small_convolution` has the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from core.codegen.llvm import Function, IRValue
from core.device.patch_tiles import PatchTile, Place, digits, total
from core.device.product import ProductPlan, ProductWriter, Stage, product_plan
from core.device.rules import Rules
from core.device.threads import Threads
from core.device.tiles import Tile
from core.plan.instructions import Gemm, Kernel
from core.plan.memory import View
from core.plan.patches import Patches
from core.plan.windows import Windows

__all__ = ["as_product", "convolution_kernel", "convolution_plan", "convolution_scratch"]

LONGEST = 1 << 12
"""Most terms of a sum in one register: the images of a batch have millions of pixels."""


def convolution_kernel(
    name: str, each: Kernel, threads: Threads, rules: Rules, plan: ProductPlan | None = None, stage: Stage = "whole"
) -> Function:
    """``name(arrays..., scratch, error, check)`` for all threads. scratch: `convolution_scratch` bytes.

    plan: by default that for the threads (`convolution_plan`).
    """
    write, names = FORMS[each.kind]
    product, plan = as_product(each), plan or convolution_plan(each, threads, rules)
    f = Function(name, [*((n, "ptr") for n in (*names, "scratch", "error")), ("check", "int64")], noalias=False)
    write(f, product, threads, plan, each.spec).write(stage)
    return f


def convolution_plan(each: Kernel, threads: Threads, rules: Rules) -> ProductPlan:
    """How the threads compute it as a product."""
    return product_plan(as_product(each), threads, rules.tf32)


def convolution_scratch(each: Kernel, threads: Threads, rules: Rules) -> int:
    """Bytes of scratch memory that the threads share."""
    return convolution_plan(each, threads, rules).scratch(as_product(each))


def as_product(each: Kernel) -> Gemm:
    """The product of matrices that a kernel computes. Strides of operands that are no matrices have no meaning."""
    spec: Patches = each.spec
    w, (first, second, out) = spec.windows, each.views
    g, c, o, depth, pixels = spec.groups, spec.channels, spec.out, spec.depth, spec.pixels

    def view(of: View, shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
        return View(of.root, of.dtype, shape, strides, of.offset)

    if each.kind == "patch_correlate":
        n = spec.batch * pixels
        a = view(second, (g, o, depth), (o * depth, depth, 1))
        b = view(first, (g, depth, n), (c * spec.plane, 0, 0))
        return Gemm(a, b, view(out, (g, o, n), (o * pixels, pixels, 1)))
    if each.kind == "patch_filter_adjoint":
        k = spec.batch * pixels
        a = view(first, (g, o, k), (o * pixels, pixels, 0))
        b = view(second, (g, k, depth), (c * spec.plane, 0, 0))
        return Gemm(a, b, view(out, (g, o, depth), (o * depth, depth, 1)))
    axes = _axes(w)
    classes, n = math.prod(w.strides), spec.batch * math.prod(axis.positions for axis in axes)
    k = o * math.prod(axis.taps for axis in axes)
    a = view(second, (g, classes, c, k), (o * depth, 0, spec.size, 0))
    b = view(first, (g, classes, k, n), (o * pixels, 0, 0, 0))
    step = 1 if classes == 1 else 2  # elements of a class do not lie side by side
    return Gemm(a, b, view(out, (g, classes, c, n), (c * spec.plane, 0, spec.plane, step)))


class _Writer(ProductWriter):
    """Writes one form.

    index: the dtype of offsets and positions. steps: elements between neighbours of an image along each axis.
    """

    longest = LONGEST

    def __init__(self, f: Function, each: Gemm, threads: Threads, plan: ProductPlan, spec: Patches) -> None:
        self.spec, self.windows = spec, spec.windows
        most = spec.groups * max(
            spec.batch * max(spec.channels * spec.plane, spec.out * spec.pixels), spec.out * spec.depth
        )
        self.index = "int32" if max(most, *each.c.shape, each.a.shape[-1]) < 1 << 30 else "int64"
        self.steps = _steps(self.windows.size)
        super().__init__(f, each, threads, plan)

    def begin(self, at: list[IRValue], places: tuple[IRValue, IRValue]) -> None:
        for tile, place in zip(self.tiles, places, strict=True):
            if isinstance(tile, PatchTile):
                tile.begin(self.f, self.threads, self.local, place)

    def patches(self, tile: Tile, **more: Any) -> PatchTile:
        """`tile` for an operand that is no matrix."""
        return PatchTile(
            tile.view, tile.row, tile.term, tile.rows, tile.depth, tile.pitch, tile.by_term, index=self.index, **more,
        )  # fmt: skip

    def window(self, flat: IRValue) -> Place:
        """The place of a window, by its number in the batch."""
        w, f = self.windows, self.f
        n, *at = digits(f, flat, (self.spec.batch, *w.counts))
        corner = tuple(total(f, [q], [s], -b) for q, s, b in zip(at, w.strides, w.before, strict=True))
        image = self.spec.groups * self.spec.channels * self.spec.plane
        return Place(total(f, [n, *corner], [image, *self.steps]), corner)

    def element(self, flat: IRValue) -> Place:
        """The place of an element of a filter, relative to that of the window."""
        w, f = self.windows, self.f
        c, *taps = digits(f, flat, (self.spec.channels, *w.kernel))
        at = tuple(total(f, [t], [d]) for t, d in zip(taps, w.dilations, strict=True))
        return Place(total(f, [c, *at], [self.spec.plane, *self.steps]), at)

    @property
    def image_limits(self) -> tuple[int, ...]:
        w = self.windows
        axes = zip(w.before, w.reach, w.size, strict=True)
        return tuple(size if before or reach > size else 0 for before, reach, size in axes)


class _Correlate(_Writer):
    """``(b, a, c)``: images, filters, result."""

    def operands(self, tiles: tuple[Tile, Tile]) -> tuple[Tile, Tile]:
        filters, images = tiles
        return filters, self.patches(
            images, row_place=self.window, term_place=self.element, limits=self.image_limits, rows_first=True
        )

    def result(self, at: list[IRValue], row: IRValue, column: IRValue) -> tuple[IRValue, IRValue | None]:
        f, pixels = self.f, self.spec.pixels
        row, column = f.convert(row, self.index), f.convert(column, self.index)
        n, pixel = digits(f, column, (self.spec.batch, pixels))
        return total(f, [n, row, pixel], [self.spec.groups * self.spec.out * pixels, pixels, 1]), None


class _FilterAdjoint(_Writer):
    """``(a, b, c)``: cotangents, images, result."""

    def operands(self, tiles: tuple[Tile, Tile]) -> tuple[Tile, Tile]:
        spec, (given, images) = self.spec, tiles

        def pixel(flat: IRValue) -> Place:
            n, at = digits(self.f, flat, (spec.batch, spec.pixels))
            return Place(total(self.f, [n, at], [spec.groups * spec.out * spec.pixels, 1]))

        channel = lambda row: Place(total(self.f, [row], [spec.pixels]))
        return (
            self.patches(given, row_place=channel, term_place=pixel, rows_first=False),
            self.patches(
                images, row_place=self.element, term_place=self.window, limits=self.image_limits, rows_first=False
            ),
        )


@dataclass(frozen=True, slots=True)
class Axis:
    """The common part of the classes of one axis, if windows move by `stride`.

    positions: elements of a class. taps: elements of the filter that it meets. tap_step: from one of these to the next.
    step:      windows between those that meet the first tap and the next one.
    uneven:    whether some class meets fewer taps.
    """

    positions: int
    taps: int
    tap_step: int
    step: int
    uneven: bool


def _axes(w: Windows) -> list[Axis]:
    found = []
    for size, kernel, stride, dilation in zip(w.size, w.kernel, w.strides, w.dilations, strict=True):
        common = math.gcd(stride, dilation)
        tap_step = stride // common
        uneven = kernel % tap_step > 0 or common > 1
        found.append(Axis(-(-size // stride), -(-kernel // tap_step), tap_step, dilation // common, uneven))
    return found


class _InputAdjoint(_Writer):
    """``(b, a, c)``: cotangents, filters, result.

    first_taps: the first tap of the present class on each axis. first: the window of its first element for that tap.
    rest:       the position of its first element.
    """

    def begin(self, at: list[IRValue], places: tuple[IRValue, IRValue]) -> None:
        self.begin_class(at)
        super().begin(at, places)

    def begin_class(self, at: list[IRValue]) -> None:
        f, w = self.f, self.windows
        self.first_taps: list[IRValue] = []
        self.first: list[IRValue] = []
        self.rest = digits(f, f.convert(at[1], self.index), w.strides)
        axes = zip(self.rest, w.kernel, w.strides, w.dilations, w.before, strict=True)
        for rest, kernel, stride, dilation, before in axes:
            if stride == 1:
                self.first_taps.append(IRValue("0", self.index))
                self.first.append(IRValue(str(before), self.index))
                continue
            common = math.gcd(stride, dilation)
            inverse = pow(dilation // common, -1, stride // common) if stride > common else 0
            reached = total(f, [rest], start=before)
            tap = f.op(f"mul nsw {f.op(f'udiv {reached}, {common}', self.index)}, {inverse}", self.index)
            tap = f.op(f"urem {tap}, {stride // common}", self.index)
            if common > 1:  # no tap of a dilated filter meets the elements between
                meets = f.compare("icmp eq", f.op(f"urem {reached}, {common}", self.index), IRValue("0", self.index))
                tap = f.select(meets, tap, IRValue(str(kernel), self.index))
            self.first_taps.append(tap)
            distance = total(f, [reached, tap], [1, -dilation])
            self.first.append(f.op(f"sdiv {distance}, {stride}", self.index))

    def operands(self, tiles: tuple[Tile, Tile]) -> tuple[Tile, Tile]:
        f, spec, w, axes = self.f, self.spec, self.windows, _axes(self.windows)
        counted = (spec.out, *(axis.taps for axis in axes))
        across, filter_steps = _steps(w.counts), _steps(w.kernel)
        zero = (IRValue("0", self.index),) * 3

        def taps(numbers: Sequence[IRValue]) -> tuple[IRValue, ...]:
            each = zip(numbers, self.first_taps, axes, strict=True)
            return tuple(total(f, [i, first], [axis.tap_step, 1]) for i, first, axis in each)

        def of_filter(flat: IRValue) -> Place:
            o, *numbers = digits(f, flat, counted)
            at = taps(numbers)
            return Place(total(f, [o, *at], [spec.depth, *filter_steps]), at)

        def of_windows(flat: IRValue) -> Place:
            o, *numbers = digits(f, flat, counted)
            each = zip(numbers, self.first, axes, strict=True)
            at = tuple(total(f, [i, first], [-axis.step, 1]) for i, first, axis in each)
            return Place(total(f, [o, *at], [spec.pixels, *across]), (*at, *taps(numbers)))

        def of_element(flat: IRValue) -> Place:
            n, *at = digits(f, flat, (spec.batch, *(axis.positions for axis in axes)))
            image = spec.groups * spec.out * spec.pixels
            return Place(total(f, [n, *at], [image, *across]), (*at, *zero))

        def of_channel(row: IRValue) -> Place:
            return Place(total(f, [row], [spec.size]), zero)

        exist = tuple(k if axis.uneven else 0 for k, axis in zip(w.kernel, axes, strict=True))
        filters, given = tiles
        return (
            self.patches(filters, row_place=of_channel, term_place=of_filter, limits=exist, rows_first=False),
            self.patches(
                given, row_place=of_element, term_place=of_windows, limits=(*self._window_limits(), *exist),
                rows_first=True,
            ),
        )  # fmt: skip

    def _window_limits(self) -> tuple[int, ...]:
        """The number of windows along each axis; 0 where all elements meet one window each."""
        w = self.windows
        axes = zip(w.kernel, w.strides, w.before, w.size, w.counts, strict=True)
        return tuple(0 if (k, s, b) == (1, 1, 0) and size <= count else count for k, s, b, size, count in axes)

    def result(self, at: list[IRValue], row: IRValue, column: IRValue) -> tuple[IRValue, IRValue | None]:
        f, spec, w = self.f, self.spec, self.windows
        row, column = f.convert(row, self.index), f.convert(column, self.index)
        rest = digits(f, f.convert(at[1], self.index), w.strides)
        n, *numbers = digits(f, column, (spec.batch, *(axis.positions for axis in _axes(w))))
        places = [total(f, [q, r], [s, 1]) for q, r, s in zip(numbers, rest, w.strides, strict=True)]
        exists: IRValue | None = None
        for place, size, stride in zip(places, w.size, w.strides, strict=True):
            if size % stride:
                here = f.compare("icmp slt", place, IRValue(str(size), self.index))
                exists = here if exists is None else f.binary("and", exists, here)
        image = spec.groups * spec.channels * spec.plane
        return total(f, [n, row, *places], [image, spec.plane, *self.steps]), exists


def _steps(size: tuple[int, int, int]) -> tuple[int, int, int]:
    return size[1] * size[2], size[2], 1


FORMS = {
    "patch_correlate": (_Correlate, ("b", "a", "c")),
    "patch_input_adjoint": (_InputAdjoint, ("b", "a", "c")),
    "patch_filter_adjoint": (_FilterAdjoint, ("a", "b", "c")),
}
"""The writer of each kind of kernel, and the names of its arrays in their order."""
