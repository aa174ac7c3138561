"""Which products of matrices are packed, and into which parts, panels and blocks. See `packed_parts`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from core.codegen.cpus import cpu
from core.codegen.image_panels import ImageColumns, ImagePanels
from core.codegen.llvm import itemsize
from core.codegen.machine import lanes
from core.codegen.panel_widths import PanelWidths, panel_widths_of
from core.codegen.tile import most_vectors, tile_of
from core.codegen.tiled_product import BLOCK, steps_of_tiles
from core.ir.errors import InternalError
from core.plan.instructions import Gemm
from core.plan.memory import View
from core.plan.row_kernels import RowKernel

__all__ = [
    "PackedGemm",
    "has_blocks",
    "is_packed",
    "most_steps",
    "packed_gemm_of",
    "packs",
    "packs_any",
    "sums_bytes",
    "takes_left",
    "takes_right",
]

DEPTH = 512
"""Most steps along k in one block, whose sums are then added to the result."""

PANEL_BYTES = 2**16
"""Most bytes of a panel in such a block: each tile of rows reads them again, from the second cache."""

PARTS = 16
"""Panels of all bands that a result should have, so that threads share the work evenly."""

GROUP_BYTES = 2**20
"""Most bytes of the packed panels of a part, which share the packed rows of a. They are read from the last cache."""

ROWS_BYTES = 200_000
"""Most bytes of packed rows of a: they stay in the second cache, with one panel of b."""

SHARES = 8
"""Panels that a part should have, if there are enough for all threads: each part packs its rows of a again, and reads a
short piece of each row of b.
"""

FEW_STEPS, LONG_ROW, FEW_ROWS = 64, 2**11, 12
"""Steps along k up to which reading and writing the result takes most of the time; bytes of its rows from which on a
few of them at a time are faster, in all arrays that an epilogue writes: the processor fetches each ahead.
"""

USES_BY_ROWS, USES_BY_COLUMNS = 32, 4
"""Fewest vectors of sums that use a packed number of a: for an a stored by rows, which tiles can also read in place
from end to end, and for an a stored by columns.
"""

TILED_ROWS_BYTES = 2 * ROWS_BYTES
"""ROWS_BYTES of a CPU that multiplies tiles: it has a larger second cache."""

TILED_PANELS = 3
"""Fewest panels of a part that share packed rows of a, if the CPU multiplies tiles."""

SPANS = 2**18
"""An a stored by columns is packed only if the tiles of all panels together step over so many bytes of it: the nearest
cache and the TLB keep the lines of a shorter way.
"""

BAND = 128
"""Rows that a band should have at least, if there are parts enough for all threads."""

NARROW = 16
"""Rows that a band should have at least in any case."""

SHARED = 1_000_000
"""Fewest floating-point operations of a product whose bands are narrow so that all threads have a part."""


@dataclass(frozen=True, slots=True)
class PackedGemm:
    """One shape of product: c [m, n] = a [m, k] b [k, n]. Strides count elements; rows of c have no gaps.

    pairs:  whether an element of a, and of b along k, is a pair of bfloat16 numbers. If b is stored by rows, or a by
            columns, its strides count single numbers.
    then:   the epilogue, a row kernel that runs on each element of the result.
    own:    operands of the epilogue that are the result itself.
    kept:   whether anything else reads the result.
    band:   rows that a band should have at least: each band packs the panels of b again.
    least:  panels that all bands together should have.
    shares: most panels of a part, so that there are parts for all threads.
    vanishes: whether it takes denormal numbers for zero.
    columns: the windows of images that are b; None if b is an array.
    """

    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: tuple[int, int]
    c: int
    dtype: str
    accumulate: bool
    then: RowKernel | None
    own: tuple[int, ...]
    kept: bool
    pairs: bool = False
    band: int = BAND
    least: int = PARTS
    shares: int = 1
    vanishes: bool = False
    columns: ImageColumns | None = None

    @property
    def tiled(self) -> bool:
        """Whether the CPU multiplies it in tiles of its own."""
        return self.pairs and cpu().has_tiles

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the result that are computed at a time, in registers."""
        if self.tiled:
            return BLOCK, BLOCK
        rows, wide = tile_of(self.m, self.n, lanes(self.dtype))
        return rows, wide * lanes(self.dtype)

    @property
    def widths(self) -> PanelWidths:
        width = lanes(self.dtype)
        return panel_widths_of(self.n, width, self.tile[1] // width, self.pairs)

    @property
    def panels(self) -> int:
        return self.widths.count

    @property
    def height(self) -> int:
        """Rows of a band: whole tiles except for the last one, and no fewer than enough parts require."""
        rows = self.tile[0]
        bands = max(1, min(math.ceil(self.least / self.panels), self.m // self.band))
        return math.ceil(self.m / bands / rows) * rows

    @property
    def bands(self) -> int:
        return math.ceil(self.m / self.height)

    @property
    def in_tile(self) -> bool:
        """Whether no more than a tile of the result is ever stored."""
        return not self.kept and self.depth == self.k

    @property
    def group(self) -> int:
        """Panels of a part, which share the packed rows of a."""
        return max(1, min(self.shares, self.room, self.panels))

    @property
    def room(self) -> int:
        """Most panels of a group."""
        return max(1, GROUP_BYTES // (self.depth * self.tile[1] * itemsize(self.dtype)))

    @property
    def image_panels(self) -> ImagePanels | None:
        """How panels are packed from images."""
        columns = self.columns
        if columns is None:
            return None
        return ImagePanels(columns, self.widths, self.tile[1], self.packed_depth, self.dtype, self.pairs)

    @property
    def groups(self) -> int:
        return math.ceil(self.panels / self.group)

    @property
    def parts(self) -> int:
        return self.bands * self.groups

    @property
    def packs_rows(self) -> bool:
        """Whether rows of a are packed too: if tiles use each number often, and would not find it near by in place."""
        if self.tiled:
            whole = self.packed_depth == self.depth and self.k % self.depth == 0
            return self.group >= TILED_PANELS or self.a[1] != 1 or not whole
        if self.m <= self.tile[0] or 1 not in self.a:
            return False
        uses = self.group * self.tile[1] // lanes(self.dtype)
        if self.a[1] == 1:
            return uses >= USES_BY_ROWS
        span = self.depth * self.a[1] * itemsize(self.dtype)
        return uses >= USES_BY_COLUMNS and self.group * span >= SPANS

    @property
    def block(self) -> int:
        """Rows of a whose products with all panels of a group follow each other: whole tiles."""
        rows = self.tile[0]
        if self.k <= FEW_STEPS and self.n * itemsize(self.dtype) >= LONG_ROW:
            written = sum(each.written and each.inner == 1 for each in self.then.operands) if self.then else 0
            tiles = max(1, FEW_ROWS // (rows * max(written, 1)))
            return min(self.height, tiles * rows)
        if not self.packs_rows:
            return self.height
        most = TILED_ROWS_BYTES if self.tiled else ROWS_BYTES
        tiles = max(1, most // (rows * self.depth * itemsize(self.dtype)))
        return min(self.height, tiles * rows)

    @property
    def row_steps(self) -> int:
        """Steps along k from one packed tile of rows to the next, with room for the rest of the last vector."""
        if self.tiled:
            return self.packed_depth
        return self.depth + math.ceil(lanes(self.dtype) / self.tile[0])

    @property
    def packed_depth(self) -> int:
        """Steps along k that packed operands have room for."""
        return steps_of_tiles(self.depth) if self.tiled else self.depth

    @property
    def depth(self) -> int:
        """Steps along k in one block: whole vectors, and the same number in all blocks but the last."""
        blocks = math.ceil(self.k / most_steps(self.pairs))
        return min(self.k, math.ceil(self.k / blocks / 16) * 16)


PACKED = 64
"""Fewest rows and columns of a product whose second operand is copied panel by panel: each number is used often."""


@dataclass(frozen=True, slots=True)
class Far:
    """Sizes from which on a product with few rows packs its second operand, which no near cache holds.

    rows: of the product. columns: of the product. elements: of the operand.
    """

    rows: int
    columns: int
    elements: int


BY_ROWS = Far(rows=24, columns=512, elements=2**17)
"""For an operand stored by rows: a product reads shorter rows fast enough in place."""

BY_COLUMNS = Far(rows=16, columns=64, elements=2**16)
"""For an operand stored by columns: other products need a copy of it that is stored by rows."""


def is_packed(rows: int, columns: int) -> bool:
    """Whether a product of so many rows and columns copies its second operand, whatever its size and order."""
    return min(rows, columns) >= PACKED


def packs_any(rows: int, columns: int, terms: int, by_columns: bool) -> bool:
    """Whether a product copies its second operand panel by panel, which is stored by columns or by rows."""
    far = BY_COLUMNS if by_columns else BY_ROWS
    few = rows >= far.rows and columns >= far.columns and terms * columns >= far.elements
    return few or is_packed(rows, columns)


def packs(each: Gemm) -> bool:
    """Whether the second operand of this product is copied panel by panel; only such products take an epilogue."""
    (rows, columns), terms = each.c.shape[-2:], each.b.shape[-2]
    possible = each.c.strides[-1] == 1 and 1 in each.b.strides[-2:]
    return possible and packs_any(rows, columns, terms, by_columns=each.b.strides[-1] != 1)


def has_blocks(each: Gemm) -> bool:
    """Whether the sums of this product are added up in several blocks along k: they are stored in between."""
    terms = each.a.shape[-1] // 2 if each.a.dtype == "bfloat16" else each.a.shape[-1]
    return terms > most_steps(each.a.dtype == "bfloat16")


def most_steps(pairs: bool) -> int:
    """Most steps along k in one block."""
    row = BLOCK * itemsize("float32") if pairs and cpu().has_tiles else most_vectors() * cpu().vector_bytes
    return min(DEPTH, PANEL_BYTES // row)


def packed_gemm_of(each: Gemm, threads: int = 1) -> PackedGemm | None:
    """The shape of a product if packing it pays and is possible, else None. threads: that share it.

    A product of pairs is packed in any case: no other function reads pairs. It may be small if it is a part of a
    product that was planned in pairs, such as the last stripe.
    """
    (m, k), n = each.a.shape[-2:], each.b.shape[-1]
    pairs = each.a.dtype == "bfloat16"
    if not pairs and not packs(each):
        return None
    a, b = ((v.strides[-2], v.strides[-1]) for v in (each.a, each.b))
    if pairs:
        if not (takes_left(each.a) and takes_right(each.b)):
            raise InternalError(f"cannot multiply pairs of {each.a} and {each.b}")
        k, a, b = k // 2, (a[0] // 2, 1) if a[1] == 1 else a, b if b[1] == 1 else (1, b[1] // 2)
    kernel: RowKernel | None = None
    own: tuple[int, ...] = ()
    if each.then is not None:
        kernel = each.then.kernel
        own = tuple(i for i, v in enumerate(each.then.views) if v.root is each.c.root)
    shape = PackedGemm(m, n, k, a, b, each.c.strides[-2], each.c.dtype, each.accumulate, kernel, own, each.kept, pairs)
    sums = kernel is not None and any(i.kind == "accumulate" for i in kernel.code)  # by band: their bits would change
    if threads == 1 or math.prod(each.c.shape[:-2]) > 1:
        return replace(shape, shares=shape.panels)
    chunks = 4 * threads
    shape = replace(shape, least=PARTS if sums else max(PARTS, chunks * shape.room))
    panels = shape.bands * shape.panels
    shape = replace(shape, shares=max(panels // chunks, min(SHARES, panels // threads)))
    if shape.parts < threads and not sums and m * n * k >= SHARED // 2 and each.c.shape[:-2] == ():
        return replace(shape, band=max(NARROW, m // math.ceil(threads / shape.panels)))
    return shape


def takes_left(a: View) -> bool:
    """Whether a product of pairs can have this first operand: the numbers of a pair follow each other in a row.

    Rows that are packed for tiles may come from a matrix that is stored by columns.
    """
    down, along = a.strides[-2:]
    by_columns = cpu().has_tiles and down == 1 and along > 1
    return a.shape[-1] % 2 == 0 and ((along == 1 and down % 2 == 0) or by_columns)


def takes_right(b: View) -> bool:
    """Whether a product of pairs can have this second operand: stored by rows, or its columns are pairs of numbers."""
    step, across = b.strides[-2:]
    return across == 1 or (step == 1 and across % 2 == 0 and across > 2)


def sums_bytes(n: int, dtype: str) -> int:
    """Bytes for n sums: the distance between the sums of two bands or of two chunks."""
    return math.ceil(n * itemsize(dtype) / 64) * 64
