"""Kernels that walk tables (see `core.plan.lookups`)."""

from __future__ import annotations

import math

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.module import Module
from core.codegen.vector_slices import move
from core.plan.lookups import RegionBins, Search, Spread

__all__ = ["region_bins", "search", "spread"]


def spread(_: Module, f: Function, spec: Spread) -> None:
    """``(first, lengths, out)``, all int64. Lengths that do not fit the rows are cut; the caller has checked them."""
    rows = I64(spec.rows)
    with f.loop(f.param("first"), f.param("end")):
        place = f.slot("int64")
        f.write(I64(0), place)
        with f.loop(I64(0), I64(spec.count), polls=True) as i:
            at = f.read(place, "int64")
            given = f.load(f.at(f.param("lengths"), i, "int64"), "int64")
            length = f.intrinsic("smin", f.intrinsic("smax", given, I64(0)), f.binary("sub", rows, at))
            start = f.load(f.at(f.param("first_value"), i, "int64"), "int64")
            target = f.at(f.param("out"), at, "int64")
            with f.loop(I64(0), length, polls=True) as r:
                number = f.binary("add", start, f.binary("mul", r, I64(spec.step))) if spec.step else start
                f.store(number, f.at(target, r, "int64"))
            f.write(f.binary("add", at, length), place)
        with f.loop(f.read(place, "int64"), rows, polls=True) as r:
            f.store(I64(0), f.at(f.param("out"), r, "int64"))


def search(_: Module, f: Function, spec: Search) -> None:
    """``(sorted, values, out)``; a unit is a value. In each step, half of the places left are given up."""
    dtype = spec.dtype
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        value = f.load(f.at(f.param("values"), unit, dtype), dtype)
        low = f.slot("int64")
        f.write(I64(0), low)
        left = f.slot("int64")
        f.write(I64(spec.size), left)
        with f.loop(I64(0), I64(spec.size.bit_length())):
            count = f.read(left, "int64")
            half = f.op(f"lshr {count}, 1", "int64")
            middle = f.binary("add", f.read(low, "int64"), half)
            inside = f.compare("icmp sgt", count, I64(0))
            other = f.load(f.at(f.param("sorted"), f.select(inside, middle, I64(0)), dtype), dtype)
            passed = f.binary("and", inside, _passes(f, other, value, spec.right))
            after = f.binary("add", middle, I64(1))
            f.write(f.select(passed, after, f.read(low, "int64")), low)
            rest = f.binary("sub", f.binary("sub", count, half), I64(1))
            f.write(f.select(passed, rest, half), left)
        f.store(f.read(low, "int64"), f.at(f.param("out"), unit, "int64"))


def _passes(f: Function, other: IRValue, value: IRValue, right: bool) -> IRValue:
    """Whether the position of `value` is after `other`."""
    if not other.is_float:
        sign = "s" if other.is_signed else "u"
        return f.compare(f"icmp {sign}{'le' if right else 'lt'}", other, value)
    if right:  # not value < other, where NaN is the largest
        return f.binary("or", f.compare("fcmp ole", other, value), f.compare("fcmp uno", value, value))
    nan = f.binary("and", f.compare("fcmp ord", other, other), f.compare("fcmp uno", value, value))
    return f.binary("or", f.compare("fcmp olt", other, value), nan)


def region_bins(_: Module, f: Function, spec: RegionBins) -> None:
    """``(x, image, tops, bottoms, lefts, rights, out)``: edges of the bins, int64; a unit is a channel of a box.

    The first of equal elements counts, and the first NaN if there is one. An empty bin gets -1.
    """
    dtype, (height, width), (downs, rights) = spec.dtype, spec.size, spec.counts
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        box = f.op(f"udiv {unit}, {spec.channels}", "int64")
        channel = f.op(f"urem {unit}, {spec.channels}", "int64")
        image = f.load(f.at(f.param("image"), box, "int64"), "int64")
        plane = f.binary("add", f.op(f"mul nsw {image}, {spec.channels}", "int64"), channel)
        first = f.op(f"mul nsw {plane}, {height * width}", "int64")
        source = f.at(f.param("x"), first, dtype)
        with f.loop(I64(0), I64(downs), polls=True) as i, f.loop(I64(0), I64(rights)) as j:
            top, bottom = (_edge(f, name, box, i, downs, height) for name in ("tops", "bottoms"))
            left, right = (_edge(f, name, box, j, rights, width) for name in ("lefts", "rights"))
            best, at = f.slot(dtype), f.slot("int64")
            f.write(f.constant(-math.inf, IRValue("", dtype)), best)
            f.write(I64(-1), at)
            with f.loop(top, bottom, polls=True) as y, f.loop(left, right) as x:
                place = f.binary("add", f.op(f"mul nsw {y}, {width}", "int64"), x)
                value = f.load(f.at(source, place, dtype), dtype)
                old, before = f.read(best, dtype), f.read(at, "int64")
                # not value <= old: a NaN replaces a number, and nothing replaces a NaN
                larger = f.binary("and", f.compare("fcmp ugt", value, old), f.compare("fcmp ord", old, old))
                larger = f.binary("or", larger, f.compare("icmp slt", before, I64(0)))
                f.write(f.select(larger, value, old), best)
                f.write(f.select(larger, f.binary("add", first, place), before), at)
            target = move(f, f.param("out"), "int64", (unit, downs * rights), (i, rights), (j, 1))
            f.store(f.read(at, "int64"), target)


def _edge(f: Function, name: str, box: IRValue, number: IRValue, count: int, size: int) -> IRValue:
    """The edge of a bin, between 0 and `size`."""
    value = f.load(move(f, f.param(name), "int64", (box, count), (number, 1)), "int64")
    return f.intrinsic("smin", f.intrinsic("smax", value, I64(0)), I64(size))
