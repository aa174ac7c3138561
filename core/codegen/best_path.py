"""The best path through the labels of a sequence (see `core.plan.lookups.BestPath`).

A step takes each label before in turn, and a vector of labels after it. The label before each one goes to scratch
memory, which is read backwards from the best last label.
"""

from __future__ import annotations

import math

from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.scalar import apply
from core.codegen.vector_slices import mask, move
from core.plan.lookups import BestPath

__all__ = ["best_path", "best_path_scratch"]


def _room(spec: BestPath) -> int:
    """Labels as whole vectors."""
    width = lanes(spec.dtype)
    return -(-spec.labels // width) * width


def best_path_scratch(spec: BestPath) -> int:
    """Bytes: the best scores before and after a step, and for each label of each step the label before."""
    return _room(spec) * (2 * itemsize(spec.dtype) + 8 * spec.time)


def best_path(_: Module, f: Function, spec: BestPath) -> None:
    """``(emission, transition, counts, out)``; a unit is a sequence."""
    dtype, labels, room, width = spec.dtype, spec.labels, _room(spec), lanes(spec.dtype)
    emission, transition = f.param("emission"), f.param("transition")
    scores = f.param("scratch")
    back = f.at(scores, I64(2 * room * itemsize(dtype)), "uint8")
    pieces = [(at, mask(labels - at, width)) for at in range(0, labels, width)]

    def add(a: IRValue, b: IRValue) -> IRValue:
        return apply(f, "add", {}, [a, b])

    def load(address: IRValue, at: int, which: IRValue | None) -> IRValue:
        return f.load(f.at(address, I64(at), dtype), dtype, width, which)

    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        out = move(f, f.param("out"), "int64", (unit, spec.time))
        with f.loop(I64(0), I64(spec.time)) as t:
            f.store(I64(0), f.at(out, t, "int64"))
        count = f.load(f.at(f.param("counts"), unit, "int64"), "int64")
        count = f.intrinsic("smin", count, I64(spec.time))
        own = move(f, emission, dtype, (unit, spec.time * labels))
        with f.when(f.compare("icmp sgt", count, I64(0))):
            for at, which in pieces:
                f.store(add(load(own, at, which), load(transition, at, which)), f.at(scores, I64(at), dtype), which)
            with f.loop(I64(1), count, polls=True) as t:
                odd = f.binary("and", t, I64(1))
                before = move(f, scores, dtype, (f.binary("sub", I64(1), odd), room))
                after = move(f, scores, dtype, (odd, room))
                here = move(f, own, dtype, (t, labels))
                for at, which in pieces:
                    best, label = f.slot(dtype, width), f.slot("int64", width)
                    f.write(f.splat(f.constant(-math.inf, IRValue("", dtype)), width), best)
                    f.write(f.splat(I64(0), width), label)
                    with f.loop(I64(0), I64(labels)) as i:
                        score = f.splat(f.load(f.at(before, i, dtype), dtype), width)
                        row = move(f, transition, dtype, (f.binary("add", i, I64(2)), labels))
                        way, old = add(score, load(row, at, which)), f.read(best, dtype, width)
                        larger = _larger(f, way, old)
                        f.write(f.select(larger, way, old), best)
                        f.write(f.select(larger, f.splat(i, width), f.read(label, "int64", width)), label)
                    f.store(add(load(here, at, which), f.read(best, dtype, width)), f.at(after, I64(at), dtype), which)
                    f.store(f.read(label, "int64", width), move(f, back, "int64", (t, room), by=at))
            last = f.binary("sub", count, I64(1))
            end = move(f, scores, dtype, (f.binary("and", last, I64(1)), room))
            final, now = f.slot(dtype), f.slot("int64")
            f.write(f.constant(-math.inf, IRValue("", dtype)), final)
            f.write(I64(0), now)
            with f.loop(I64(0), I64(labels)) as i:
                leave = f.load(move(f, transition, dtype, (i, 1), by=labels), dtype)
                total, old = add(f.load(f.at(end, i, dtype), dtype), leave), f.read(final, dtype)
                larger = _larger(f, total, old)
                f.write(f.select(larger, total, old), final)
                f.write(f.select(larger, i, f.read(now, "int64")), now)
            with f.loop(I64(0), count, polls=True) as step:
                t = f.binary("sub", last, step)
                label_now = f.read(now, "int64")
                f.store(label_now, f.at(out, t, "int64"))
                with f.when(f.compare("icmp sgt", t, I64(0))):
                    f.write(f.load(move(f, back, "int64", (t, room), (label_now, 1)), "int64"), now)


def _larger(f: Function, value: IRValue, old: IRValue) -> IRValue:
    """Whether `value` replaces `old` as the largest so far: a NaN replaces a number, and nothing replaces a NaN."""
    return f.binary("and", f.compare("fcmp ugt", value, old), f.compare("fcmp ord", old, old))
