"""The generator of each kind of `Kernel` instruction.

A kernel is a function ``name(arrays..., error[, scratch], check, first, end)``: it does the units of work from `first`
(included) to `end` (excluded). No unit writes memory that another one touches, and the order of sums does not depend on
the range. Ranges that run at the same time each need scratch memory of their own, if the kernel takes any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from core.codegen import convolution, im2col, order, padding, pooling, scan, transpose
from core.codegen.llvm import Function
from core.codegen.module import Module
from core.codegen.polling import polls_by_control
from core.plan.data import Kernel

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
        ("x", "filter", "out"), im2col.correlate_im2col, im2col.image_units, im2col.scratch_bytes
    ),
    "input_adjoint_columns": Generator(
        ("ct", "filter", "out"), im2col.input_adjoint_im2col, im2col.image_units, im2col.scratch_bytes
    ),
    "filter_adjoint_columns": Generator(
        ("ct", "x", "out"), im2col.filter_adjoint_im2col, im2col.filter_units, im2col.scratch_bytes
    ),
    "pool": Generator(("x", "out", "index"), pooling.pool),
    "tiles": Generator(("ct", "out"), pooling.tiles),
    "chosen_tiles": Generator(("ct", "chosen", "out"), pooling.tiles),
    "unpool": Generator(("x", "index", "out"), pooling.unpool),
    "pick": Generator(("x", "index", "out"), pooling.pick),
    "turn": Generator(("x", "out"), transpose.transpose, transpose.transpose_units),
    "scan": Generator(("x", "out"), scan.scan, scan.scan_units),
    "recurrence": Generator(("a", "b", "out"), scan.scan, scan.scan_units),
    "order": Generator(("x", "out"), order.order, scratch=order.order_scratch),
}


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
