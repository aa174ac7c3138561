"""Padding: copy planes into larger ones that hold their padding too, and back (see `core.plan.geometry.Padding`)."""

from __future__ import annotations

import math

from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.vector_slices import (
    WIDEST,
    fill_zeros,
    for_each_slice,
    interleaved,
    load_phases,
    mask,
    move,
    store_lanes,
)
from core.plan.geometry import Padding

__all__ = ["pad", "unpad"]


def pad(_: Module, f: Function, spec: Padding) -> None:
    """``(x, room)``: copy planes of x into padded planes; a unit is a plane."""
    dtype, width = spec.dtype, lanes(spec.dtype)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        source = move(f, f.param("x"), dtype, (unit, math.prod(spec.size)))
        target = move(f, f.param("room"), dtype, (unit, spec.plane))
        if _has_padding(spec):
            _fill(f, target, spec.plane, spec.fill, dtype)
        with f.loop(I64(0), I64(_inside(spec, 0)), polls=True) as z, f.loop(I64(0), I64(_inside(spec, 1))) as y:
            row = move(f, source, dtype, (z, spec.size[1] * spec.size[2]), (y, spec.size[2]))
            place = _row(f, spec, target, z, y)
            for phase in range(spec.phases):
                first = max(0, -((phase - spec.before[2]) // spec.phases))
                last = -(-(min(spec.size[2] + spec.before[2], spec.reach) - phase) // spec.phases)
                start = first * spec.phases + phase - spec.before[2]

                def piece(at: IRValue, count: int, start: int = start, to: int = phase * spec.length + first) -> None:
                    there = move(f, row, dtype, (at, spec.phases), by=start)
                    (value,) = load_phases(f, there, dtype, spec.phases, width, count)
                    store_lanes(f, value, move(f, place, dtype, (at, 1), by=to), count)

                if first < last:
                    for_each_slice(f, last - first, width, piece)


def unpad(_: Module, f: Function, spec: Padding) -> None:
    """``(room, x)``, the inverse of `pad` on the elements of x; a unit is a plane."""
    dtype, width, stride = spec.dtype, lanes(spec.dtype), spec.phases
    inside = tuple(_inside(spec, axis) for axis in range(3))
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        source = move(f, f.param("room"), dtype, (unit, spec.plane))
        target = move(f, f.param("x"), dtype, (unit, math.prod(spec.size)))
        if inside != spec.size:
            fill_zeros(f, target, math.prod(spec.size), dtype)
        with f.loop(I64(0), I64(inside[0]), polls=True) as z, f.loop(I64(0), I64(inside[1])) as y:
            place = move(f, target, dtype, (z, spec.size[1] * spec.size[2]), (y, spec.size[2]))
            row = _row(f, spec, source, z, y)
            where = [spec.along(spec.before[2] + i) for i in range(min(stride, inside[2]))]
            whole = inside[2] // stride if stride <= WIDEST else 0

            def piece(at: IRValue, count: int) -> None:
                met = [
                    f.load(move(f, row, dtype, (at, 1), by=offset), dtype, width, mask(count, width))
                    for offset in where
                ]
                store_lanes(f, interleaved(f, met), move(f, place, dtype, (at, stride)), count * stride)

            if whole:
                for_each_slice(f, whole, width, piece)
            for i, offset in enumerate(where):  # the remaining elements, one by one
                with f.loop(I64(whole), I64(-(-(inside[2] - i) // stride))) as at:
                    value = f.load(move(f, row, dtype, (at, 1), by=offset), dtype)
                    f.store(value, move(f, place, dtype, (at, stride), by=i))


def _has_padding(spec: Padding) -> bool:
    """Whether a window meets any place of the padded plane that holds no element."""
    sizes = (*spec.rows, spec.reach)
    return any(spec.before) or any(_inside(spec, axis) + spec.before[axis] < sizes[axis] for axis in range(3))


def _inside(spec: Padding, axis: int) -> int:
    """Elements along an axis that have a place in the padded plane."""
    return max(0, min(spec.size[axis], (*spec.rows, spec.reach)[axis] - spec.before[axis]))


def _row(f: Function, spec: Padding, room: IRValue, z: IRValue, y: IRValue) -> IRValue:
    """The address of the padded row for row (z, y) of the plane."""
    start = (spec.before[0] * spec.rows[1] + spec.before[1]) * spec.row
    return move(f, room, spec.dtype, (z, spec.rows[1] * spec.row), (y, spec.row), by=start)


def _fill(f: Function, address: IRValue, count: int, number: float, dtype: str) -> None:
    if number == 0:
        fill_zeros(f, address, count, dtype)
        return
    width = lanes(dtype)
    value = f.splat(literal(number, dtype), width)
    for_each_slice(f, count, width, lambda at, n: store_lanes(f, value, move(f, address, dtype, (at, 1)), n))
