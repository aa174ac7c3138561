"""Pooling on many threads: a thread for each element of a result.

Windows are read in place, and elements outside of a plane are left out. Adjoints gather: an element of the image adds
up what the windows over it give, in the order of the windows. So nothing is added to memory, except for positions that
are data (`unpool`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np

from core.codegen import pooling
from core.codegen.gather_scatter import checked
from core.codegen.llvm import I64, Function, IRValue, literal
from core.device.patch_tiles import digits, total
from core.device.threads import Threads, rolled
from core.plan.covering import Covering
from core.plan.geometry import Pool, Scattered
from core.plan.instructions import Kernel

__all__ = ["POOLING", "pooling_kernel"]

UNROLLED = 32
"""Most elements of a window, or windows over an element, for straight code."""


def pooling_kernel(name: str, each: Kernel, threads: Threads) -> Function:
    """``name(arrays..., scratch, error, check)`` for all threads; it uses no scratch memory."""
    arrays, write = POOLING[each.kind]
    names = [*arrays[: len(each.views)], "scratch", "error"]
    f = Function(name, [*((n, "ptr") for n in names), ("check", "int64")], noalias=False)
    write(f, each.spec, threads)
    return f


def _pool(f: Function, spec: Pool, threads: Threads) -> None:
    """``(x, out)`` or ``(x, out, index)``: elements of a window in their order, as on a CPU."""
    dtype, size = spec.dtype, spec.size
    with f.loop(threads.number(f), I64(spec.planes * math.prod(spec.counts)), threads.total) as flat:
        plane, *at = digits(f, flat, (spec.planes, *spec.counts))
        corner = [total(f, [q], [s], -b) for q, s, b in zip(at, spec.strides, spec.before, strict=True)]
        z, y, x = at
        best, found = f.slot(dtype), f.slot(pooling.NUMBER)
        f.write(literal(-np.inf if spec.kind == "max" else 0, dtype), best)
        if spec.index:
            f.write(pooling.first_inside(f, spec, (z, y, x), 1), found)
        reach = zip(spec.counts, spec.strides, spec.kernel, spec.before, size, strict=True)
        beyond = [b > 0 or (n - 1) * s - b + k > limit for n, s, k, b, limit in reach]
        with _places(f, spec.kernel) as places:
            for a, b, c in places:
                here = [total(f, [p, t]) for p, t in zip(corner, (a, b, c), strict=True)]
                limits = [limit if may else 0 for limit, may in zip(size, beyond, strict=True)]
                with _when_below(f, here, limits):
                    offset = total(f, [plane, *here], [spec.plane, *spec.steps, 1])
                    value = f.load(f.at(f.param("x"), offset, dtype), dtype)
                    pooling.combine(f, spec, best, found, value, pooling.number_of(f, spec, (a, b, c)))
        f.store(f.read(best, dtype), f.at(f.param("out"), flat, dtype))
        if spec.index:
            number = f.binary("add", f.read(found, pooling.NUMBER), pooling._corner(f, spec, (z, y, x), 1))
            f.store(f.convert(number, spec.index), f.at(f.param("index"), flat, spec.index))


def _cover(f: Function, spec: Covering, threads: Threads) -> None:
    """``(ct, out)`` or ``(ct, chosen, out)``: the windows over an element in their order."""
    w, dtype = spec.windows, spec.dtype
    most = [-(-k // s) for k, s in zip(w.kernel, w.strides, strict=True)]
    numbers = (w.kernel[1] * w.kernel[2], w.kernel[2], 1)
    with f.loop(threads.number(f), I64(spec.planes * math.prod(w.size)), threads.total) as flat:
        plane, *at = digits(f, flat, (spec.planes, *w.size))
        reached = [total(f, [p], start=b) for p, b in zip(at, w.before, strict=True)]
        last = [_divided(f, r, s) for r, s in zip(reached, w.strides, strict=True)]
        within = [total(f, [r, q], [1, -s]) for r, q, s in zip(reached, last, w.strides, strict=True)]
        sums = f.slot(dtype)
        f.write(literal(0, dtype), sums)
        with _places(f, most) as places:
            for place in places:
                back = [total(f, [i], [-1], n - 1) for i, n in zip(place, most, strict=True)]
                window = [total(f, [q, i], [1, -1]) for q, i in zip(last, back, strict=True)]
                tap = [total(f, [r, i], [1, s]) for r, i, s in zip(within, back, w.strides, strict=True)]
                limits = [k if k % s else 0 for k, s in zip(w.kernel, w.strides, strict=True)]
                with _when_below(f, [*window, *tap], [*w.counts, *limits]):
                    there = total(f, [plane, *window], [math.prod(w.counts), w.counts[1] * w.counts[2], w.counts[2], 1])
                    more = f.load(f.at(f.param("ct"), there, dtype), dtype)
                    if spec.index:
                        chosen = f.convert(f.load(f.at(f.param("chosen"), there, spec.index), spec.index), "int64")
                        here = f.compare("icmp eq", chosen, total(f, tap, numbers))
                        more = f.select(here, more, literal(0, dtype))
                    f.write(pooling.added(f, f.read(sums, dtype), more), sums)
        f.store(f.read(sums, dtype), f.at(f.param("out"), flat, dtype))


def _unpool(f: Function, spec: Scattered, threads: Threads) -> None:
    """``(x, index, out)``: a thread adds the elements of a plane in their order, since positions may be equal."""
    out = f.param("out")
    with f.loop(threads.number(f), I64(spec.planes * spec.size), threads.total) as flat:
        f.store(literal(0, spec.dtype), f.at(out, flat, spec.dtype))
    threads.barrier(f)
    with f.loop(threads.number(f), I64(spec.planes), threads.total) as plane, f.loop(I64(0), I64(spec.count)) as i:
        place = total(f, [plane, i], [spec.count, 1])
        at = checked(f, f.at(f.param("index"), place, spec.index), spec.index, spec.size)
        here = f.at(out, total(f, [plane, at], [spec.size, 1]), spec.dtype)
        more = f.load(f.at(f.param("x"), place, spec.dtype), spec.dtype)
        f.store(pooling.added(f, f.load(here, spec.dtype), more), here)


def _pick(f: Function, spec: Scattered, threads: Threads) -> None:
    """``(x, index, out)``"""
    with f.loop(threads.number(f), I64(spec.planes * spec.count), threads.total) as flat:
        plane = f.op(f"udiv {flat}, {spec.count}", "int64")
        at = checked(f, f.at(f.param("index"), flat, spec.index), spec.index, spec.size)
        value = f.load(f.at(f.param("x"), total(f, [plane, at], [spec.size, 1]), spec.dtype), spec.dtype)
        f.store(value, f.at(f.param("out"), flat, spec.dtype))


def _divided(f: Function, value: IRValue, by: int) -> IRValue:
    return value if by == 1 else f.op(f"udiv {value}, {by}", value.dtype)


@contextmanager
def _places(f: Function, sizes: Sequence[int]) -> Iterator[list[tuple[IRValue, IRValue, IRValue]]]:
    """All places of an array of these sizes, in row-major order, for straight code; or one, inside of a loop."""
    if math.prod(sizes) <= UNROLLED:
        a, b, c = map(range, sizes)
        yield [(I64(i), I64(j), I64(k)) for i in a for j in b for k in c]
        return
    with rolled(f, I64(0), I64(math.prod(sizes))) as flat:
        i, j, k = digits(f, flat, sizes)
        yield [(i, j, k)]


@contextmanager
def _when_below(f: Function, places: Sequence[IRValue], limits: Sequence[int]) -> Iterator[None]:
    """The instructions inside the context run if each place is at least 0 and below its limit; a limit of 0 is none."""
    tests = [f.compare("icmp ult", p, I64(n)) for p, n in zip(places, limits, strict=True) if n]
    both: Callable[[IRValue, IRValue], IRValue] = lambda a, b: f.binary("and", a, b)
    with f.when(reduce(both, tests) if tests else literal(True, "bool")):
        yield


POOLING: dict[str, tuple[tuple[str, ...], Callable[[Function, Any, Threads], None]]] = {
    "pool": (("x", "out", "index"), _pool),
    "cover": (("ct", "out"), _cover),
    "chosen_cover": (("ct", "chosen", "out"), _cover),
    "unpool": (("x", "index", "out"), _unpool),
    "pick": (("x", "index", "out"), _pick),
}
"""The names of the arrays of each kind of kernel, and its writer."""
