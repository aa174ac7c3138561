"""Pooling: a reduction of each window, and its adjoints. Elements of a window are numbered in row-major order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from core.codegen import reductions
from core.codegen.gather_scatter import checked
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.module import Module
from core.codegen.vector_slices import (
    fill_zeros,
    for_each_slice,
    interleaved,
    lanes_for,
    load_phases,
    mask,
    move,
    store_lanes,
)
from core.plan.geometry import Pool, Scattered, Tiles

__all__ = ["NUMBER", "added", "combine", "first_inside", "number_of", "pick", "pool", "tiles", "unpool"]

UNROLLED = 32
"""Most elements of a window that is read in straight code."""

NUMBER = "int32"
"""Dtype of element numbers in registers."""

Visit = Callable[[IRValue, IRValue], None]


def pool(_: Module, f: Function, spec: Pool) -> None:
    """``(x, out)`` or ``(x, out, index)``; a unit is a plane."""
    dtype, width = spec.dtype, spec.counts[2]
    lanes = lanes_for(dtype, width)
    with (
        f.loop(f.param("first"), f.param("end"), polls=True) as unit,
        f.loop(I64(0), I64(spec.counts[0]), polls=True) as z,
        f.loop(I64(0), I64(spec.counts[1]), polls=True) as y,
    ):
        image = move(f, f.param("x"), dtype, (unit, spec.plane), (z, spec.strides[0] * spec.steps[0]),
                     (y, spec.strides[1] * spec.steps[1]))  # fmt: skip
        place = [(unit, math.prod(spec.counts)), (z, spec.counts[1] * width), (y, width)]

        def piece(x: IRValue, count: int) -> None:
            corner = move(f, image, dtype, (x, spec.strides[2]))
            at = (z, y, x)
            best = f.slot(dtype, lanes)
            found = f.slot(NUMBER, lanes)
            start = -np.inf if spec.kind == "max" else 0
            f.write(f.splat(literal(start, dtype), lanes), best)
            if spec.index:
                f.write(first_inside(f, spec, at, lanes), found)
            _elements(f, spec, corner, lanes, count, lambda value, number: combine(f, spec, best, found, value, number))
            store_lanes(f, f.read(best, dtype, lanes), move(f, f.param("out"), dtype, *place, (x, 1)), count)
            if spec.index:
                number = f.binary("add", f.read(found, NUMBER, lanes), _corner(f, spec, at, lanes))
                store_lanes(
                    f, f.convert(number, spec.index), move(f, f.param("index"), spec.index, *place, (x, 1)), count
                )

        for_each_slice(f, width, lanes, piece, 4 if math.prod(spec.kernel) <= UNROLLED else 1)


def combine(f: Function, spec: Pool, best: IRValue, found: IRValue, value: IRValue, number: IRValue) -> None:
    """Combine one element of each window with the result so far."""
    held = f.read(best, spec.dtype, value.lanes)
    if spec.kind == "sum":
        f.write(f.binary("fadd", held, value), best)
        return
    missing = f.compare("fcmp uno", value, value)  # NaN counts as the largest
    if not spec.last:
        missing = f.binary("and", missing, f.compare("fcmp ord", held, held))
    better = f.binary("or", f.compare("fcmp ogt", value, held), missing)
    f.write(f.select(better, value, held), best)
    if spec.index:
        f.write(f.select(better, number, f.read(found, NUMBER, value.lanes)), found)


def _elements(f: Function, spec: Pool, corner: IRValue, lanes: int, count: int, visit: Visit) -> None:
    """``visit(element of each window, its number)`` in row-major order."""
    depth, height, row = spec.kernel
    stride = spec.strides[2]
    straight = math.prod(spec.kernel) <= UNROLLED
    with _each(f, depth, straight) as depths, _each(f, height, straight) as heights:
        for a in depths:
            for b in heights:
                here = move(f, corner, spec.dtype, (a, spec.steps[0]), (b, spec.steps[1]))
                if row <= UNROLLED:
                    for t in range(0, row, stride):
                        wanted = min(stride, row - t)
                        met = load_phases(f, move(f, here, spec.dtype, by=t), spec.dtype, stride, lanes, count, wanted)
                        for i, value in enumerate(met):
                            visit(value, number_of(f, spec, (a, b, I64(t + i))))
                else:
                    with f.loop(I64(0), I64(row)) as t_:
                        there = move(f, here, spec.dtype, (t_, 1))
                        (value,) = load_phases(f, there, spec.dtype, stride, lanes, count, 1)
                        visit(value, number_of(f, spec, (a, b, t_)))


@contextmanager
def _each(f: Function, count: int, straight: bool) -> Iterator[list[IRValue]]:
    """The numbers below `count` as literals for straight code, or the counter of a loop."""
    if straight:
        yield [I64(i) for i in range(count)]
    else:
        with f.loop(I64(0), I64(count)) as i:
            yield [i]


def _weighted(f: Function, values: tuple[IRValue, ...], weights: tuple[int, ...]) -> IRValue:
    """The sum of the values times their weights; a literal if all values are literals."""
    known = sum(int(v.name) * w for v, w in zip(values, weights, strict=True) if not v.name.startswith("%"))
    total = I64(known)
    for value, weight in zip(values, weights, strict=True):
        if value.name.startswith("%") and weight:
            total = f.binary("add", total, f.op(f"mul nsw {value}, {weight}", "int64"))
    return total


def _narrow(f: Function, value: IRValue) -> IRValue:
    return f.convert(value, NUMBER) if value.name.startswith("%") else IRValue(value.name, NUMBER)


def number_of(f: Function, spec: Pool, element: tuple[IRValue, IRValue, IRValue]) -> IRValue:
    """The number of an element of a window, from its position there."""
    return _narrow(f, _weighted(f, element, spec.numbers))


def _corner(f: Function, spec: Pool, at: tuple[IRValue, IRValue, IRValue], lanes: int) -> IRValue:
    """The number of each window's corner, for the windows from `at`."""
    if not any(spec.corner):
        return f.splat(literal(spec.first, NUMBER), lanes)
    base = _narrow(f, f.binary("add", _weighted(f, at, spec.corner), I64(spec.first)))
    return f.binary("add", base, _iota(lanes, spec.corner[2]))


def _iota(lanes: int, step: int) -> IRValue:
    if lanes == 1:
        return literal(0, NUMBER)
    return IRValue(f"<{', '.join(f'i32 {i * step}' for i in range(lanes))}>", NUMBER, lanes)


def first_inside(f: Function, spec: Pool, at: tuple[IRValue, IRValue, IRValue], lanes: int) -> IRValue:
    """The number of each window's first element outside the padding: the answer if no element is above -infinity."""
    total = f.splat(literal(0, NUMBER), lanes)
    for axis, (position, before, stride, weight) in enumerate(
        zip(at, spec.before, spec.strides, spec.numbers, strict=True)
    ):
        if not before:
            continue
        start = f.splat(_narrow(f, f.binary("sub", I64(before), f.op(f"mul nsw {position}, {stride}", "int64"))), lanes)
        if axis == 2:
            start = f.binary("sub", start, _iota(lanes, stride))
        padded = f.intrinsic("smax", start, f.constant(0, start))
        total = f.binary("add", total, f.binary("mul", padded, f.constant(weight, padded)))
    return total


# --- adjoints ----------------------------------------------------------------------------------------------------


def tiles(_: Module, f: Function, spec: Tiles) -> None:
    """``(ct, out)`` or ``(ct, chosen, out)``; a unit is a plane."""
    dtype, (height, width) = spec.dtype, spec.size[1:]
    lanes = lanes_for(dtype, spec.counts[2])
    none = f.splat(literal(0, dtype), lanes)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        plane = move(f, f.param("out"), dtype, (unit, math.prod(spec.size)))
        if spec.size != tuple(n * k for n, k in zip(spec.counts, spec.kernel, strict=True)):
            fill_zeros(f, plane, math.prod(spec.size), dtype)
        with (
            f.loop(I64(0), I64(spec.counts[0]), polls=True) as z,
            f.loop(I64(0), I64(spec.counts[1]), polls=True) as y,
        ):
            place = [(unit, math.prod(spec.counts)), (z, spec.counts[1] * spec.counts[2]), (y, spec.counts[2])]
            corner = move(f, plane, dtype, (z, spec.kernel[0] * height * width), (y, spec.kernel[1] * width))

            def piece(x: IRValue, count: int) -> None:
                which = mask(count, lanes)
                ct = f.load(move(f, f.param("ct"), dtype, *place, (x, 1)), dtype, lanes, which)
                chosen = None
                if spec.chosen:
                    chosen = f.load(move(f, f.param("chosen"), "uint8", *place, (x, 1)), "uint8", lanes, which)
                number = 0
                for a in range(spec.kernel[0]):
                    for b in range(spec.kernel[1]):
                        row = []
                        for _ in range(spec.kernel[2]):
                            row.append(ct if chosen is None else f.select(
                                f.compare("icmp eq", chosen, f.constant(number, chosen)), ct, none
                            ))  # fmt: skip
                            number += 1
                        there = move(f, corner, dtype, (x, spec.kernel[2]), by=(a * height + b) * width)
                        store_lanes(f, interleaved(f, row), there, count * spec.kernel[2])

            for_each_slice(f, spec.counts[2], lanes, piece)


def unpool(_: Module, f: Function, spec: Scattered) -> None:
    """``(x, index, out)``: out is zero, plus x at the positions `index`; a unit is a plane."""
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        target = move(f, f.param("out"), spec.dtype, (unit, spec.size))
        fill_zeros(f, target, spec.size, spec.dtype)
        with f.loop(I64(0), I64(spec.count), polls=True) as i:
            place = [(unit, spec.count), (i, 1)]
            at = checked(f, move(f, f.param("index"), spec.index, *place), spec.index, spec.size)
            more = f.load(move(f, f.param("x"), spec.dtype, *place), spec.dtype)
            here = f.at(target, at, spec.dtype)
            f.store(added(f, f.load(here, spec.dtype), more), here)


def added(f: Function, a: IRValue, b: IRValue) -> IRValue:
    """The sum of two numbers; of bools, whether one of them is true."""
    return reductions.combine(f, "or" if a.dtype == "bool" else "sum", a, b)


def pick(_: Module, f: Function, spec: Scattered) -> None:
    """``(x, index, out)``: out is x at the positions `index`; a unit is a plane."""
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        source = move(f, f.param("x"), spec.dtype, (unit, spec.size))
        with f.loop(I64(0), I64(spec.count), polls=True) as i:
            place = [(unit, spec.count), (i, 1)]
            at = checked(f, move(f, f.param("index"), spec.index, *place), spec.index, spec.size)
            f.store(f.load(f.at(source, at, spec.dtype), spec.dtype), move(f, f.param("out"), spec.dtype, *place))
