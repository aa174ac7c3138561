"""Convolution and its adjoints where a group has too few channels to fill a tile, as in depthwise convolution.

A thread computes one element of a result, or of an input adjoint; a warp computes an element of a filter adjoint, whose
sum is long. If there are few elements, such sums are split: each part is added up by itself, and then the parts in
their order. Sizes alone decide the number of parts, so the bits depend on no launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.device.patch_tiles import digits, total
from core.device.threads import WARP, Threads, rolled
from core.ir.precision import HALVES
from core.plan.instructions import Kernel
from core.plan.patches import Patches

__all__ = ["is_small", "small_convolution", "small_scratch"]

FEWEST = {"patch_correlate": 4, "patch_input_adjoint": 4, "patch_filter_adjoint": 4}
"""Rows of a product (`core.device.convolution`) below which its tiles would stay almost empty."""

UNROLLED = 32
"""Most elements of a filter's channel for straight code."""

WARPS = 1 << 12
"""Warps that occupy a device."""

LEAST_PART = 1 << 10
"""Fewest terms of a part of a sum."""


def is_small(each: Kernel) -> bool:
    """Whether a kernel runs element by element."""
    spec: Patches = each.spec
    rows = spec.channels if each.kind == "patch_input_adjoint" else spec.out
    return rows < FEWEST[each.kind]


def small_scratch(each: Kernel) -> int:
    """Bytes of scratch memory that the threads share."""
    if each.kind != "patch_filter_adjoint" or _parts(each.spec) == 1:
        return 0
    return _parts(each.spec) * _filters(each.spec) * itemsize(_sum_dtype(each.spec))


def small_convolution(name: str, each: Kernel, threads: Threads) -> Function:
    """``name(arrays..., scratch, error, check)`` for all threads. scratch: `small_scratch` bytes."""
    names = [*(f"p{i}" for i in range(len(each.views))), "scratch", "error"]
    f = Function(name, [*((n, "ptr") for n in names), ("check", "int64")], noalias=False)
    WRITERS[each.kind](f, each.spec, threads)
    return f


def _sum_dtype(spec: Patches) -> str:
    return "float32" if spec.dtype in HALVES else spec.dtype


def _filters(spec: Patches) -> int:
    return spec.groups * spec.out * spec.depth


def _parts(spec: Patches) -> int:
    """Parts of each sum of a filter adjoint."""
    return max(1, min(WARPS // _filters(spec), spec.batch * spec.pixels // LEAST_PART))


def _correlate(f: Function, spec: Patches, threads: Threads) -> None:
    """``(images, filters, result)``"""
    w, outs = spec.windows, spec.groups * spec.out
    sizes = (spec.batch, outs, *w.counts)
    with f.loop(threads.number(f), I64(math.prod(sizes)), threads.total) as flat:
        n, channel, *at = digits(f, flat, sizes)
        group = f.op(f"udiv {channel}, {spec.out}", "int64")
        corner = [total(f, [q], [s], -b) for q, s, b in zip(at, w.strides, w.before, strict=True)]
        sums = _Sum(f, spec)
        with _each(f, spec.channels, False) as channels, _taps(f, spec) as taps:
            for c in channels:
                image = total(f, [n, group, c], [spec.groups * spec.channels, spec.channels, 1])
                for tap in taps:
                    places = [total(f, [p, t], [1, d]) for p, t, d in zip(corner, tap, w.dilations, strict=True)]
                    with _when_inside(f, places, w.size):
                        element = _offset(f, (image, *places), w.size)
                        weight = _offset(f, (total(f, [channel, c], [spec.channels, 1]), *tap), w.kernel)
                        sums.add("p0", element, "p1", weight)
        f.store(sums.read(), f.at(f.param("p2"), flat, sums.dtype))


def _input_adjoint(f: Function, spec: Patches, threads: Threads) -> None:
    """``(cotangents, filters, result)``: the windows over an element, in the order of the filter."""
    w, channels = spec.windows, spec.groups * spec.channels
    sizes = (spec.batch, channels, *w.size)
    with f.loop(threads.number(f), I64(math.prod(sizes)), threads.total) as flat:
        n, channel, *at = digits(f, flat, sizes)
        group = f.op(f"udiv {channel}, {spec.channels}", "int64")
        own = f.op(f"urem {channel}, {spec.channels}", "int64")
        reached = [total(f, [p], start=b) for p, b in zip(at, w.before, strict=True)]
        sums = _Sum(f, spec)
        with _taps(f, spec) as taps:
            for tap in taps:
                starts = [total(f, [r, t], [1, -d]) for r, t, d in zip(reached, tap, w.dilations, strict=True)]
                windows = [
                    q if s == 1 else f.op(f"sdiv {q}, {s}", "int64") for q, s in zip(starts, w.strides, strict=True)
                ]
                exact = [
                    f.compare("icmp eq", f.op(f"mul nsw {q}, {s}", "int64"), start)
                    for q, s, start in zip(windows, w.strides, starts, strict=True)
                    if s > 1
                ]
                with _when_inside(f, windows, w.counts, exact), _each(f, spec.out, False) as outs:
                    for o in outs:
                        filter = total(f, [group, o], [spec.out, 1])
                        given = _offset(f, (total(f, [n, filter], [spec.groups * spec.out, 1]), *windows), w.counts)
                        weight = _offset(f, (total(f, [filter, own], [spec.channels, 1]), *tap), w.kernel)
                        sums.add("p0", given, "p1", weight)
        f.store(sums.read(), f.at(f.param("p2"), flat, sums.dtype))


def _filter_adjoint(f: Function, spec: Patches, threads: Threads) -> None:
    """``(cotangents, images, result)``: a warp for each part of a sum over the windows of all images."""
    w, count, parts = spec.windows, _filters(spec), _parts(spec)
    terms = spec.batch * spec.pixels
    length = -(-terms // parts)
    lane, warp = threads.lane(f), f.op(f"udiv {threads.number(f)}, {WARP}", "int64")
    dtype = _sum_dtype(spec)
    with f.loop(warp, I64(parts * count), threads.warps) as unit:
        part, element = digits(f, unit, (parts, count))
        filter, c, *tap = digits(f, element, (spec.groups * spec.out, spec.channels, *w.kernel))
        group = f.op(f"udiv {filter}, {spec.out}", "int64")
        distance = [total(f, [t], [d], -b) for t, d, b in zip(tap, w.dilations, w.before, strict=True)]
        sums = _Sum(f, spec)
        first = f.op(f"mul nsw {part}, {length}", "int64")
        end = f.intrinsic("smin", f.binary("add", first, I64(length)), I64(terms))
        with f.loop(f.binary("add", first, lane), end, WARP) as term:
            n, *at = digits(f, term, (spec.batch, *w.counts))
            places = [total(f, [q, d], [s, 1]) for q, d, s in zip(at, distance, w.strides, strict=True)]
            with _when_inside(f, places, w.size):
                image = total(f, [n, group, c], [spec.groups * spec.channels, spec.channels, 1])
                channel = total(f, [n, filter], [spec.groups * spec.out, 1])
                sums.add("p0", _offset(f, (channel, *at), w.counts), "p1", _offset(f, (image, *places), w.size))
        found = threads.reduce_warp(f, "sum", sums.read())
        with f.when(f.compare("icmp eq", lane, I64(0))):
            f.store(found, f.at(f.param("scratch" if parts > 1 else "p2"), unit, dtype))
    if parts == 1:
        return
    threads.barrier(f)
    with f.loop(threads.number(f), I64(count), threads.total) as element:
        whole = f.slot(dtype)
        f.write(literal(0, dtype), whole)
        with f.loop(I64(0), I64(parts)) as part:
            more = f.load(f.at(f.param("scratch"), total(f, [part, element], [count, 1]), dtype), dtype)
            f.write(f.binary("fadd", f.read(whole, dtype), more), whole)
        f.store(f.read(whole, dtype), f.at(f.param("p2"), element, dtype))


class _Sum:
    """A sum of products in a register."""

    def __init__(self, f: Function, spec: Patches) -> None:
        self.f, self.stored, self.dtype = f, spec.dtype, _sum_dtype(spec)
        self.slot = f.slot(self.dtype)
        f.write(literal(0, self.dtype), self.slot)

    def add(self, one: str, at: IRValue, other: str, there: IRValue) -> None:
        """Add the product of an element of one array and of one of another."""
        f = self.f
        a, b = (
            f.convert(f.load(f.at(f.param(name), offset, self.stored), self.stored), self.dtype)
            for name, offset in ((one, at), (other, there))
        )
        f.write(f.fma(a, b, self.read()), self.slot)

    def read(self) -> IRValue:
        return self.f.read(self.slot, self.dtype)


@contextmanager
def _taps(f: Function, spec: Patches) -> Iterator[list[tuple[IRValue, ...]]]:
    """The elements of a filter's channel: all of them for straight code, or one of a loop."""
    kernel = spec.windows.kernel
    if math.prod(kernel) <= UNROLLED:
        yield [(I64(a), I64(b), I64(t)) for a in range(kernel[0]) for b in range(kernel[1]) for t in range(kernel[2])]
        return
    with rolled(f, I64(0), I64(math.prod(kernel))) as flat:
        yield [tuple(digits(f, flat, kernel))]


@contextmanager
def _each(f: Function, count: int, straight: bool) -> Iterator[list[IRValue]]:
    """The numbers below `count` for straight code, or the counter of a loop."""
    if straight or count == 1:
        yield [I64(i) for i in range(count)]
        return
    with f.loop(I64(0), I64(count)) as i:
        yield [i]


@contextmanager
def _when_inside(
    f: Function, places: Sequence[IRValue], size: Sequence[int], more: Sequence[IRValue] = ()
) -> Iterator[None]:
    """The instructions inside the context run if each place lies below its size, and if all of `more` hold."""
    within = [f.compare("icmp ult", p, I64(n)) for p, n in zip(places, size, strict=True)]
    both: Callable[[IRValue, IRValue], IRValue] = lambda a, b: f.binary("and", a, b)
    with f.when(reduce(both, [*within, *more])):
        yield


def _offset(f: Function, at: Sequence[IRValue], size: Sequence[int]) -> IRValue:
    """The position of an element in an array [planes, *size]."""
    return total(f, list(at), [math.prod(size), size[1] * size[2], size[2], 1])


WRITERS = {
    "patch_correlate": _correlate,
    "patch_input_adjoint": _input_adjoint,
    "patch_filter_adjoint": _filter_adjoint,
}
