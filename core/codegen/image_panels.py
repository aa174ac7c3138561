"""The second operand of a product, packed straight from images: its columns are windows, which are not stored before.

A row of a panel has pixels of several runs, the parts of images whose windows follow each other. Sizes are known when
code is written, so a row is a list of pieces with constant places. Panels with the same pieces share their code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise, product

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.panel_widths import PanelWidths
from core.codegen.vector_slices import mask, move

__all__ = ["ImageColumns", "ImagePanels", "Piece", "pack_panels"]

PIECES = 256
"""Most pieces of all panels with different ones: LLVM's time for straight code grows faster than its length."""

TABLE = 1024
"""Most panels, which lie in the image as a table says."""


@dataclass(frozen=True, slots=True)
class ImageColumns:
    """The matrix [channels * taps, pixels] of the windows of images.

    plane:  elements from one channel of the image to the next.
    taps:   offsets of the elements of a window.
    runs:   runs of pixels on each axis, and elements of the image from one to the next; outer axes first.
    length: pixels of a run, which follow each other in the image.
    """

    plane: int
    taps: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    length: int

    @property
    def pixels(self) -> int:
        return math.prod(number for number, _ in self.runs) * self.length

    @property
    def starts(self) -> list[int]:
        """Where each run starts in the image."""
        axes = [range(0, number * step, step) if step else [0] * number for number, step in self.runs]
        return [sum(each) for each in product(*axes)]


@dataclass(frozen=True, slots=True)
class Piece:
    """`count` pixels of a row of a panel from `at`, which lie in the image `source` elements behind the first one."""

    at: int
    source: int
    count: int


@dataclass(frozen=True, slots=True)
class ImagePanels:
    """Panels of some columns, packed for steps along k.

    apart: packed elements from one step to the next.
    depth: steps from one panel to the next.
    pairs: whether an element is a pair of bfloat16 numbers of two rows of the matrix.
    """

    columns: ImageColumns
    widths: PanelWidths
    apart: int
    depth: int
    dtype: str
    pairs: bool

    @property
    def panels(self) -> list[tuple[int, tuple[Piece, ...]]]:
        """For each panel: where its first pixel is in the image, and its pieces."""
        starts, length = self.columns.starts, self.columns.length
        found = []
        for first, end in pairwise(map(self.widths.start, range(self.widths.count + 1))):
            base = starts[first // length] + first % length
            pieces: list[Piece] = []
            at = first
            while at < end:
                count = min(length - at % length, end - at)
                pieces += self._pieces(at - first, starts[at // length] + at % length - base, count)
                at += count
            found.append((base, tuple(pieces)))
        return found

    def _pieces(self, at: int, source: int, count: int) -> list[Piece]:
        """Pixels that follow each other, in whole vectors if there are enough: the last two may overlap."""
        width = lanes(self.dtype)
        if count < width:
            return [Piece(at, source, count)]
        firsts = sorted({*range(0, count - width + 1, width), count - width})
        return [Piece(at + i, source + i, width) for i in firsts]

    @property
    def fits(self) -> bool:
        """Whether the code and its table are short enough."""
        if self.widths.count > TABLE:
            return False
        return sum(map(len, {pieces for _, pieces in self.panels})) <= PIECES


def pack_panels(
    module: Module, f: Function, p: ImagePanels, image: IRValue, packed: IRValue,
    steps: tuple[IRValue, IRValue], panels: tuple[IRValue, IRValue],
) -> None:  # fmt: skip
    """Pack panels [first, end) for some steps along k: the first and their number.

    Vectors are stored whole. Where one is longer than its piece, the next one overwrites the rest, or the next step or
    panel does; behind the last panel there is room for a vector.
    """
    name = module.function(p, "panels", lambda name: _function(module, name, p))
    f.do(f"call void @{name}({image}, {packed}, {', '.join(map(str, (*steps, *panels)))})")


def _function(module: Module, name: str, p: ImagePanels) -> Function:
    """``name(image, packed, first step, steps, first panel, end)``."""
    numbers = [(each, "int64") for each in ("k", "count", "first", "end")]
    f = Function(name, [("image", "ptr"), ("packed", "ptr"), *numbers])
    panels = p.panels
    kinds = list(dict.fromkeys(pieces for _, pieces in panels))
    bases = module.table(tuple(base for base, _ in panels))
    which = module.table(tuple(kinds.index(pieces) for _, pieces in panels))
    given = "bfloat16" if p.pairs else p.dtype
    with f.loop(f.param("first"), f.param("end")) as panel:
        base, kind = (f.load(f.at(table, panel, "int64"), "int64") for table in (bases, which))
        image = move(f, f.param("image"), given, (base, 1))
        packed = move(f, f.param("packed"), p.dtype, (f.binary("sub", panel, f.param("first")), p.depth * p.apart))
        for i, pieces in enumerate(kinds):
            with f.when(f.compare("icmp eq", kind, I64(i))):
                _pack(module, f, p, pieces, image, packed)
    return f


def _pack(
    module: Module, f: Function, p: ImagePanels, pieces: tuple[Piece, ...], image: IRValue, packed: IRValue
) -> None:
    width = lanes(p.dtype)
    with f.loop(I64(0), f.param("count")) as step:
        rows = _rows(module, f, p, image, f.binary("add", f.param("k"), step))
        row = move(f, packed, p.dtype, (step, p.apart))
        for piece in pieces:
            which = mask(piece.count, width)
            if p.pairs:
                upper, lower = (
                    f.convert(f.load(move(f, each, "bfloat16", by=piece.source), "uint16", width, which), "int32")
                    for each in rows
                )
                value = f.binary("or", upper, f.binary("shl", lower, f.constant(16, lower)))
            else:
                value = f.load(move(f, rows[0], p.dtype, by=piece.source), p.dtype, width, which)
            f.store(value, move(f, row, p.dtype, by=piece.at))


def _rows(module: Module, f: Function, p: ImagePanels, image: IRValue, step: IRValue) -> list[IRValue]:
    """Where the rows of the matrix that a step takes start in the image."""
    columns, together = p.columns, 2 if p.pairs else 1
    given, size = "bfloat16" if p.pairs else p.dtype, len(columns.taps)
    period = math.lcm(size, together)  # rows after which taps and rows of a step meet again
    offsets = [c * columns.plane + tap for c in range(period // size) for tap in columns.taps]
    if period == together:
        channel = move(f, image, given, (step, period // size * columns.plane))
        return [move(f, channel, given, by=offset) for offset in offsets]
    steps = period // together
    channel = move(f, image, given, (f.op(f"udiv {step}, {steps}", "int64"), period // size * columns.plane))
    first = f.op(f"mul nsw {f.op(f'urem {step}, {steps}', 'int64')}, {together}", "int64")
    table = f.at(module.table(tuple(offsets)), first, "int64")
    return [move(f, channel, given, (f.load(f.at(table, I64(i), "int64"), "int64"), 1)) for i in range(together)]
