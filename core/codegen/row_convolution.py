"""Convolution to few output channels, depthwise ones above all: a tile is some rows of the result, one vector wide.

Each vector of the image is loaded once for all rows of the result that it counts for, each with its element of the
filter. With one output channel nothing else would be used twice.
"""

from __future__ import annotations

from collections import defaultdict

from core.codegen.cpus import cpu
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.module import Module
from core.codegen.vector_slices import for_each_block, for_each_slice, lanes_for, mask, move, store_lanes
from core.plan.geometry import Correlation

__all__ = ["correlate_rows", "is_by_rows"]

ROWS = 14
"""Most rows of a tile."""


def _most_rows(spec: Correlation) -> int:
    """Rows whose sums the registers hold, next to a column of the filter and a vector of the image."""
    registers = 32 if cpu().vector_bytes == 64 else 16
    return min(registers - 2 - spec.kernel[1], ROWS)


def is_by_rows(spec: Correlation) -> bool:
    """Whether a tile of rows is faster than one of output channels and pixels."""
    return spec.out <= 2 and spec.kernel[1] > 1 and spec.counts[1] > 1 and _most_rows(spec) >= 6


def correlate_rows(module: Module, f: Function, spec: Correlation) -> None:
    """``(x, filter, out)``; a unit is one group of one image."""
    dtype, lanes = spec.dtype, lanes_for(spec.dtype, spec.counts[2])
    planes, height, width = spec.counts
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit, f.loop(I64(0), I64(spec.out)) as o:
        group = f.op(f"urem {unit}, {spec.groups}", "int64")
        image = move(f, f.param("x"), dtype, (unit, spec.channels * spec.plane))
        filters = move(f, f.param("filter"), dtype, (group, spec.out * spec.depth), (o, spec.depth))
        out = move(f, f.param("out"), dtype, (unit, spec.out * spec.pixels), (o, spec.pixels))

        def rows(z: IRValue, y: IRValue, number: int) -> None:
            def piece(x: IRValue, count: int) -> None:
                corner = move(f, image, dtype, (z, spec.moves[0]), (y, spec.moves[1]), (x, 1))
                place = move(f, out, dtype, (z, height * width), (y, width), (x, 1))
                _tile(module, f, spec, corner, filters, place, number, lanes, count)

            for_each_slice(f, width, lanes, piece, unrolled=1)

        with f.loop(I64(0), I64(planes), polls=True) as z:
            for_each_block(f, height, _most_rows(spec), lambda y, number: rows(z, y, number))


def _tile(
    module: Module, f: Function, spec: Correlation, image: IRValue, filters: IRValue, out: IRValue,
    rows: int, lanes: int, count: int,
) -> None:  # fmt: skip
    """`count` pixels of each of `rows` rows."""
    dtype = spec.dtype
    depth, height, row = spec.kernel
    meets: dict[int, list[tuple[int, int]]] = defaultdict(list)  # offset of a vector: (row, row of the filter) pairs
    for y in range(rows):
        for b in range(height):
            meets[y * spec.moves[1] + b * spec.taps[1]].append((y, b))
    sums = [f.slot(dtype, lanes) for _ in range(rows)]
    for slot in sums:
        f.write(f.splat(literal(0, dtype), lanes), slot)
    offsets = module.table(spec.along)
    with (
        f.loop(I64(0), I64(spec.channels)) as c,
        f.loop(I64(0), I64(depth)) as a,
        f.loop(I64(0), I64(row)) as t,
    ):
        offset = f.load(f.at(offsets, t, "int64"), "int64")
        here = move(f, image, dtype, (c, spec.plane), (a, spec.taps[0]), (offset, 1))
        there = move(f, filters, dtype, (c, spec.size), (a, height * row), (t, 1))
        column = [f.splat(f.load(f.at(there, I64(b * row), dtype), dtype), lanes) for b in range(height)]
        for at in sorted(meets):
            vector = f.load(f.at(here, I64(at), dtype), dtype, lanes, mask(count, lanes))
            for y, b in meets[at]:
                f.write(f.fma(vector, column[b], f.read(sums[y], dtype, lanes)), sums[y])
    for y, slot in enumerate(sums):
        store_lanes(f, f.read(slot, dtype, lanes), f.at(out, I64(y * spec.counts[2]), dtype), count)
