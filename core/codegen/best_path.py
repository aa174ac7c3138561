"""The best path through the labels of a sequence (see `core.plan.lookups.BestPath`).

A step takes each label before in turn, and a vector of labels after it. The label before each one goes to scratch
memory, which is read backwards from the best last label.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
    back = f.at(f.param("scratch"), I64(2 * _room(spec) * itemsize(spec.dtype)), "uint8")
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        out = move(f, f.param("out"), "int64", (unit, spec.time))
        with f.loop(I64(0), I64(spec.time)) as t:
            f.store(I64(0), f.at(out, t, "int64"))
        count = f.load(f.at(f.param("counts"), unit, "int64"), "int64")
        count = f.intrinsic("smin", count, I64(spec.time))
        emission = move(f, f.param("emission"), spec.dtype, (unit, spec.time * spec.labels))
        paths = _Paths(f, spec, emission, back)
        with f.when(f.compare("icmp sgt", count, I64(0))):
            paths.begin()
            with f.loop(I64(1), count, polls=True) as t:
                paths.step(t)
            last = f.binary("sub", count, I64(1))
            now = paths.best_end(last)
            with f.loop(I64(0), count, polls=True) as step:
                t = f.binary("sub", last, step)
                label_now = f.read(now, "int64")
                f.store(label_now, f.at(out, t, "int64"))
                with f.when(f.compare("icmp sgt", t, I64(0))):
                    f.write(paths.label_before(t, label_now), now)


@dataclass(frozen=True, slots=True)
class _Paths:
    """The best paths to each label of a sequence, step by step.

    emission: the scores of the labels in each step, [time, labels].
    back:     for each label of each step the label before, [time, room], behind the scores of two steps.

    Of the transitions, row 0 has the scores of first labels, row 1 those of last labels.
    """

    f: Function
    spec: BestPath
    emission: IRValue
    back: IRValue

    def begin(self) -> None:
        """Write the scores of the first step."""
        f, transition = self.f, self.f.param("transition")
        for at, which in self._pieces():
            score = self._add(self._load(self.emission, at, which), self._load(transition, at, which))
            f.store(score, f.at(f.param("scratch"), I64(at), self.spec.dtype), which)

    def step(self, t: IRValue) -> None:
        """Write the scores of step `t`, and the label before each label."""
        f, dtype, labels, width = self.f, self.spec.dtype, self.spec.labels, lanes(self.spec.dtype)
        odd = f.binary("and", t, I64(1))
        before, after = self._scores(f.binary("sub", I64(1), odd)), self._scores(odd)
        here = move(f, self.emission, dtype, (t, labels))
        for at, which in self._pieces():
            best, label = f.slot(dtype, width), f.slot("int64", width)
            f.write(f.splat(f.constant(-math.inf, IRValue("", dtype)), width), best)
            f.write(f.splat(I64(0), width), label)
            with f.loop(I64(0), I64(labels)) as i:
                score = f.splat(f.load(f.at(before, i, dtype), dtype), width)
                row = move(f, f.param("transition"), dtype, (f.binary("add", i, I64(2)), labels))
                way, old = self._add(score, self._load(row, at, which)), f.read(best, dtype, width)
                larger = _larger(f, way, old)
                f.write(f.select(larger, way, old), best)
                f.write(f.select(larger, f.splat(i, width), f.read(label, "int64", width)), label)
            total = self._add(self._load(here, at, which), f.read(best, dtype, width))
            f.store(total, f.at(after, I64(at), dtype), which)
            f.store(f.read(label, "int64", width), move(f, self.back, "int64", (t, _room(self.spec)), by=at))

    def best_end(self, last: IRValue) -> IRValue:
        """A variable with the last label of the best path. last: the number of the last step."""
        f, dtype, labels = self.f, self.spec.dtype, self.spec.labels
        end = self._scores(f.binary("and", last, I64(1)))
        final, now = f.slot(dtype), f.slot("int64")
        f.write(f.constant(-math.inf, IRValue("", dtype)), final)
        f.write(I64(0), now)
        with f.loop(I64(0), I64(labels)) as i:
            leave = f.load(move(f, f.param("transition"), dtype, (i, 1), by=labels), dtype)
            total, old = self._add(f.load(f.at(end, i, dtype), dtype), leave), f.read(final, dtype)
            larger = _larger(f, total, old)
            f.write(f.select(larger, total, old), final)
            f.write(f.select(larger, i, f.read(now, "int64")), now)
        return now

    def label_before(self, t: IRValue, label: IRValue) -> IRValue:
        """The label before `label` of step `t` on the best path to it."""
        f = self.f
        return f.load(move(f, self.back, "int64", (t, _room(self.spec)), (label, 1)), "int64")

    def _scores(self, odd: IRValue) -> IRValue:
        """The address of the scores of an odd or even step."""
        return move(self.f, self.f.param("scratch"), self.spec.dtype, (odd, _room(self.spec)))

    def _pieces(self) -> list[tuple[int, IRValue | None]]:
        """The vectors of a row of labels, and their masks."""
        labels, width = self.spec.labels, lanes(self.spec.dtype)
        return [(at, mask(labels - at, width)) for at in range(0, labels, width)]

    def _add(self, a: IRValue, b: IRValue) -> IRValue:
        return apply(self.f, "add", {}, [a, b])

    def _load(self, address: IRValue, at: int, which: IRValue | None) -> IRValue:
        f, dtype = self.f, self.spec.dtype
        return f.load(f.at(address, I64(at), dtype), dtype, lanes(dtype), which)


def _larger(f: Function, value: IRValue, old: IRValue) -> IRValue:
    """Whether `value` replaces `old` as the largest so far: a NaN replaces a number, and nothing replaces a NaN."""
    return f.binary("and", f.compare("fcmp ugt", value, old), f.compare("fcmp ord", old, old))
