"""The parts in which a convolution runs as products of matrices (`im2col`), and where their columns lie.

Most products need no columns in scratch memory: they pack windows of images, or an image is the matrix itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.codegen.image_panels import ImageColumns
from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.packed_gemm import PackedGemm
from core.codegen.product import window_product
from core.codegen.vector_slices import even_blocks, move
from core.ir.aligned import LINE
from core.plan.geometry import Correlation
from core.plan.instructions import Gemm
from core.plan.memory import Root, View

__all__ = [
    "WindowPart",
    "filter_bytes",
    "filter_form",
    "forward_form",
    "forward_product",
    "matrix",
    "packed_windows",
    "scratch_bytes",
    "transposed",
    "whole_lines",
    "window_bytes",
]

ALONE, FILTERS = 96, 2**16
"""Fewest pixels of an image for which an adjoint to filters of one element adds a product of their own, and most
elements of the filters, which each product reads and stores again. Else the columns of several images are copied to one
matrix.
"""


@dataclass(frozen=True, slots=True)
class WindowPart:
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
        return matrix(dtype, self.channels * self.spec.size, self.spec.together * self.pixels)

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

    @property
    def in_place(self) -> bool:
        """Whether the columns lie in the image as a matrix: the pixels under filters of one element."""
        windows = self.windows
        return not windows.runs and windows.taps == (0,)

    def image_matrix(self, dtype: str) -> View:
        """The columns, if they lie in the image."""
        return matrix(dtype, self.channels, self.windows.length, self.spec.plane)

    def first_window(self, f: Function, image: IRValue) -> IRValue:
        """The address of the first window in the image."""
        return move(f, image, self.spec.operands, (self.z, self.spec.moves[0]), (self.y, self.spec.moves[1]))

    def result(self, dtype: str) -> View:
        """The matrix [out, pixels]: in place for one image, a copy for several images."""
        spec = self.spec
        count = spec.together * self.pixels
        return matrix(dtype, spec.out, count, spec.pixels if spec.together == 1 else count)


def scratch_bytes(spec: Correlation) -> int:
    """Bytes for the columns, and for the pixels of several images."""
    count = spec.together * (spec.rows * spec.counts[2] if spec.rows else spec.pixels)
    size = itemsize(spec.dtype)  # of pairs, some columns take half as much
    columns, rows = spec.depth // spec.shares * count * size, spec.out * count * size
    return whole_lines(columns) + rows if spec.together > 1 else columns


def window_bytes(spec: Correlation) -> int:
    """Bytes that a convolution needs: without columns if its products read the images."""
    spec, stores = forward_form(spec)
    if stores:
        return scratch_bytes(spec)
    return spec.out * spec.together * spec.pixels * itemsize(spec.dtype) if spec.together > 1 else 0


def filter_bytes(spec: Correlation) -> int:
    """Bytes that an adjoint to filters needs: none if its products read the images."""
    spec, in_place = filter_form(spec)
    return 0 if in_place else scratch_bytes(spec)


def forward_form(spec: Correlation) -> tuple[Correlation, bool]:
    """`spec` of a convolution with the rows of windows of one product, and whether products store their columns.

    Products that pack windows take whole images: they have no columns that must stay in the cache. The rows of a large
    image lie so far apart that a product that packs nothing reads columns faster.
    """
    whole = replace(spec, rows=0)
    if all(map(packed_windows, _sizes(whole))):
        return whole, False
    return spec, not all((part.in_place and not spec.rows) or packed_windows(part) for part in _sizes(spec))


def filter_form(spec: Correlation) -> tuple[Correlation, bool]:
    """`spec` of an adjoint to filters with the images of one product, and whether that reads the image in place."""
    alone = replace(spec, together=1, rows=0)
    possible = not spec.given or (spec.pixels % 2 == 0 and spec.plane % 2 == 0 and spec.plane > 2)
    faster = spec.together == 1 or (spec.pixels >= ALONE and spec.out * spec.depth // spec.shares <= FILTERS)
    in_place = possible and faster and all(part.in_place for part in _sizes(alone))
    return (alone if in_place else spec), in_place


def _sizes(spec: Correlation) -> list[WindowPart]:
    """One part of each size."""
    depth, height, _ = spec.counts
    sizes = [(1, size) for _, size, _ in even_blocks(height, spec.rows)] if spec.rows else [(depth, height)]
    return [WindowPart(spec, spec.channels // spec.shares, I64(0), I64(0), *each) for each in sizes]


def packed_windows(part: WindowPart) -> PackedGemm | None:
    """The product of a convolution if it packs windows of images."""
    return window_product(forward_product(part), part.windows)


def forward_product(part: WindowPart) -> Gemm:
    """The product of a convolution, with its columns in scratch memory."""
    spec = part.spec
    return Gemm(matrix(spec.operands, spec.out, spec.depth), part.columns(spec.operands), part.result(spec.dtype))


def whole_lines(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE


def matrix(dtype: str, rows: int, columns: int, distance: int = 0) -> View:
    return View(Root(0), dtype, (rows, columns), (distance or columns, 1))


def transposed(view: View) -> View:
    return View(view.root, view.dtype, view.shape[::-1], view.strides[::-1])
