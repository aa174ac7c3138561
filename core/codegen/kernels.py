"""The generator of each kind of `Kernel` instruction.

A kernel is a function ``name(arrays..., error[, scratch], check, first, end)``: it does the units of work from `first`
(included) to `end` (excluded). No unit writes memory that another one touches, and the order of sums does not depend on
the range. Ranges that run at the same time each need scratch memory of their own, if the kernel takes any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from core.codegen import (
    best_path,
    channel_lanes,
    cholesky,
    convolution,
    elimination,
    exponential_series,
    filter_sums,
    fourier,
    im2col,
    lookups,
    merging,
    order,
    orthogonalization,
    padding,
    pooling,
    scan,
    selection,
    spectra,
    substitution,
    transpose,
    window_parts,
    winograd,
    winograd_sums,
)
from core.codegen.llvm import Function
from core.codegen.module import Module
from core.codegen.polling import polls_by_control
from core.plan.instructions import Kernel
from core.plan.lowering import OVER_IMAGES

__all__ = ["kernel_function", "scratch_bytes", "units", "work"]


@dataclass(frozen=True, slots=True)
class Generator:
    """The generator of one kind of kernel.

    arrays:  names of the kernel's arrays, in order.
    write:   appends the kernel to a function.
    units:   units of work, from the kernel's spec.
    scratch: bytes of scratch memory, from the kernel's spec.
    """

    arrays: tuple[str, ...]
    write: Callable[[Module, Function, Any], None]
    units: Callable[[Any], int] = lambda spec: int(spec.units)
    scratch: Callable[[Any], int] = lambda spec: 0


GENERATORS = {
    "fill_room": Generator(("x", "room"), padding.pad),
    "leave_room": Generator(("room", "x"), padding.unpad),
    "correlate": Generator(("x", "filter", "out"), convolution.correlate),
    "input_adjoint": Generator(("ct", "filter", "out"), convolution.input_adjoint),
    "filter_adjoint": Generator(("ct", "x", "out"), convolution.filter_adjoint, convolution.filter_units),
    "correlate_columns": Generator(
        ("x", "filter", "out"), im2col.correlate_im2col, im2col.image_units, window_parts.window_bytes
    ),
    "input_adjoint_columns": Generator(
        ("ct", "filter", "out"), im2col.input_adjoint_im2col, im2col.image_units, window_parts.scratch_bytes
    ),
    "filter_adjoint_columns": Generator(
        ("ct", "x", "out"), im2col.filter_adjoint_im2col, im2col.filter_units, window_parts.filter_bytes
    ),
    "correlate_lanes": Generator(("x", "filter", "out"), channel_lanes.correlate_lanes, channel_lanes.lane_units),
    "filter_panels": Generator(("filter", "out"), channel_lanes.filter_panels, channel_lanes.panel_units),
    "winograd": Generator(("x", "filters", "out"), winograd.winograd, winograd.winograd_units, winograd.scratch_bytes),
    "winograd_sums": Generator(
        ("ct", "x", "sums"), winograd_sums.winograd_sums, winograd_sums.sum_units, winograd_sums.scratch_bytes
    ),
    "winograd_total": Generator(("sums", "out"), winograd_sums.winograd_total, winograd_sums.total_units),
    "winograd_filters": Generator(("filter", "out"), winograd.winograd_filters, winograd.filter_units),
    "filter_sums": Generator(
        ("ct", "x", "sums"), filter_sums.filter_sums, filter_sums.sum_units, filter_sums.scratch_bytes
    ),
    "filter_total": Generator(
        ("sums", "out"), filter_sums.filter_total, filter_sums.total_units, filter_sums.total_scratch
    ),
    "pool": Generator(("x", "out", "index"), pooling.pool),
    "tiles": Generator(("ct", "out"), pooling.tiles),
    "chosen_tiles": Generator(("ct", "chosen", "out"), pooling.tiles),
    "unpool": Generator(("x", "index", "out"), pooling.unpool),
    "pick": Generator(("x", "index", "out"), pooling.pick),
    "turn": Generator(("x", "out"), transpose.transpose, transpose.transpose_units),
    "scan": Generator(("x", "out"), scan.scan, scan.scan_units),
    "recurrence": Generator(("a", "b", "out"), scan.scan, scan.scan_units),
    "restarted_recurrence": Generator(("a", "b", "begins", "out"), scan.scan, scan.scan_units),
    "clear_tail": Generator(("length", "x"), selection.clear_tail, selection.tail_units),
    "copy_tail": Generator(("length", "x", "out"), selection.copy_tail, selection.tail_units),
    "selection": Generator(("flags", "out", "count"), selection.selection),
    "order": Generator(("x", "out"), order.order, scratch=order.order_scratch),
    "spread": Generator(("first_value", "lengths", "out"), lookups.spread),
    "search": Generator(("sorted", "values", "out"), lookups.search),
    "region_bins": Generator(("x", "image", "tops", "bottoms", "lefts", "rights", "out"), lookups.region_bins),
    "best_path": Generator(
        ("emission", "transition", "counts", "out"), best_path.best_path, scratch=best_path.best_path_scratch
    ),
    "cholesky": Generator(("x", "out"), cholesky.cholesky, scratch=cholesky.cholesky_scratch),
    "orthogonalize": Generator(
        ("x", "q", "r"), orthogonalization.orthogonalize, scratch=orthogonalization.orthogonalization_scratch
    ),
    "exponential": Generator(
        ("x", "out"), exponential_series.exponential, scratch=exponential_series.exponential_scratch
    ),
    "eigenvalues": Generator(("x", "values"), spectra.eigenvalues, scratch=spectra.eigenvalues_scratch),
    "eigenvectors": Generator(("x", "values", "vectors"), spectra.eigenvalues, scratch=spectra.eigenvalues_scratch),
    "singular_values": Generator(
        ("x", "u", "s", "v"), spectra.singular_values, scratch=spectra.singular_values_scratch
    ),
    "fourier": Generator(("x", "out"), fourier.fourier, fourier.fourier_units, fourier.fourier_scratch),
    "eliminate": Generator(
        ("x", "out", "order", "sign"), elimination.eliminate, scratch=elimination.elimination_scratch
    ),
    "substitute": Generator(
        ("t", "y", "out"), substitution.substitute, substitution.triangle_units, substitution.triangle_scratch
    ),
    "substitute_ordered": Generator(
        ("t", "y", "order", "out"), substitution.substitute, substitution.triangle_units, substitution.triangle_scratch
    ),
    "substitute_identity": Generator(
        ("t", "order", "out"), substitution.substitute, substitution.triangle_units, substitution.triangle_scratch
    ),
    "row_order": Generator(
        ("ids", "order", "rows", "starts", "count"), merging.row_order, scratch=merging.order_scratch
    ),
    "kept_row_order": Generator(
        ("ids", "kept", "order", "rows", "starts", "count"), merging.row_order, scratch=merging.order_scratch
    ),
    "merge_rows": Generator(("x", "order", "starts", "out"), merging.merge_rows),
}

for _kind, _counted in OVER_IMAGES.items():
    *_given, _out = GENERATORS[_kind].arrays
    GENERATORS[_counted] = replace(GENERATORS[_kind], arrays=(*_given, "images", _out))


def kernel_function(module: Module, name: str, each: Kernel) -> Function:
    """``name(arrays..., error[, scratch], check, first, end)``. Only arrays that the kernel reads may overlap."""
    generator = GENERATORS[each.kind]
    pointers = [*generator.arrays[: len(each.views)], "error", *(["scratch"] if scratch_bytes(each) else [])]
    params = [*((p, "ptr") for p in pointers), *((p, "int64") for p in ("check", "first", "end"))]
    f = Function(name, params)
    polls_by_control(f, work(each))
    generator.write(module, f, each.spec)
    return f


def units(each: Kernel) -> int:
    """Units of work of a kernel: the most chunks that it can be split into."""
    return GENERATORS[each.kind].units(each.spec)


def work(each: Kernel) -> int:
    """The cost of a kernel, in additions or multiplications that take as long."""
    return int(each.spec.work)


def scratch_bytes(each: Kernel) -> int:
    """Bytes of scratch memory for each range that runs at the same time; a multiple of 64."""
    return -(-GENERATORS[each.kind].scratch(each.spec) // 64) * 64
