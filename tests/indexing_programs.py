"""Random programs of computed positions, ordered elements, running totals, transforms and masks, in loops and branches.

All values of the pool are matrices of one size, and parameters and feeds are so small that no function leaves its
domain. A counter of a loop around a statement may be part of its positions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.programs import Sketch

__all__ = ["MEMORY", "POOL", "STATEMENTS", "Statement", "Writer", "indexing_program", "written"]

POOL = ("a", "b", "c", "d")
MEMORY = ("store", "recompute", "sqrt", "binomial")
DEPTH = 3


class Writer:
    """Writes a program to `sketch`; rows, columns: the size of all matrices."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.sketch = Sketch()
        self.op, self.const = self.sketch.op, self.sketch.const
        self.rows, self.columns = self.pick(1, 2, 3, 4, 5, 8, 17), self.pick(1, 2, 3, 4, 5, 6, 16, 19)
        self.counters: list[str] = []
        self.budget = self.draw.randint(3, 8)

    def pick(self, *options: Any) -> Any:
        return self.draw.choice(options)

    def one(self) -> str:
        return self.draw.choice(POOL)

    def whole(self, number: int) -> str:
        return self.const(number, dtype="int64")

    def within(self, index: str, size: int) -> str:
        return self.op("mod", index, self.whole(size))

    def positions(self) -> str:
        """An array of as many positions of rows as there are rows, mostly with duplicates."""
        order = lambda: self.op(
            "argsort", self.op("reduce_sum", self.one(), axes=[-1]), descending=self.pick(True, False)
        )
        moved = lambda: self.op("add", order(), self.counters[-1] if self.counters else self.whole(3))
        rounded = lambda: self.op(
            "cast",
            self.op("scale", self.op("abs", self.op("reduce_sum", self.one(), axes=[-1])), scale=3.0),
            dtype="int64",
        )
        same = lambda: self.const(self.draw.randrange(self.rows), [self.rows], "int64")
        largest = lambda: self.op("argmax", self.one(), axis=1)
        return self.within(self.pick(order, moved, rounded, same, largest)(), self.rows)

    def mask(self) -> str:
        """A mask of a matrix, which may be true everywhere or nowhere."""
        compared = lambda: self.op("greater_than", self.one(), self.one())
        bounded = lambda: self.op("greater_than", self.one(), self.const(self.pick(-9.0, 0.0301, 9.0)))
        return self.pick(compared, bounded)()

    # --- control flow --------------------------------------------------------------------------------------------

    def fill(self, depth: int) -> None:
        for _ in range(self.draw.randint(1, 3) if depth else self.draw.randint(2, 5)):
            if self.budget <= 0:
                return
            self.budget -= 1
            if depth < DEPTH and self.draw.random() < 0.35:
                self.pick(self.branch, self.repeat, self.repeat)(depth + 1)
            else:
                self.statement()

    def statement(self) -> None:
        axis = self.pick(0, 1, -1, -2)
        found = self.draw.choice(STATEMENTS)(self, self.one(), self.one(), axis)
        self.op(self.pick("tanh", "sin"), found, out=self.one())

    def branch(self, depth: int) -> None:
        flag = self.op("less_than", self.op("reduce_sum", self.one()), self.const(self.pick(0.07, 5.0, -5.0)))
        with self.sketch.block() as yes:
            self.fill(depth)
        with self.sketch.block() as no:
            self.fill(depth)
        self.sketch.branch(flag, yes, no)

    def repeat(self, depth: int) -> None:
        """A loop of a constant number of trips, or of as many as the loop around it has made. It may have a counter
        that moves by 2, and may end early if a sum is large."""
        end = self.pick(*self.counters[-1:], *(self.whole(n) for n in (0, 1, 2, 3)))
        counter = self.op("assign", self.whole(0), out=f"trip{self.sketch.count}")
        go = self.op("less_than", counter, end, out=f"go{self.sketch.count}")
        step, early = self.pick(1, 1, 2), self.pick(True, False)
        with self.sketch.loop(go):
            self.counters.append(counter)
            self.fill(depth)
            self.counters.pop()
            self.op("increment", counter, out=counter, step=step)
            more = self.op("less_than", counter, end)
            small = self.op("less_than", self.op("reduce_sum", self.one()), self.const(1.3)) if early else more
            self.op("logical_and", small, more, out=go)
        loop = self.sketch.blocks[self.sketch.at]["ops"][-1]
        loop["attrs"]["memory"] = self.pick(*MEMORY)


Statement = Callable[[Writer, str, str, int], str]


def _size(w: Writer, axis: int) -> int:
    return w.rows if axis in (0, -2) else w.columns


def _reversed(w: Writer, x: str, y: str, axis: int) -> str:
    n = _size(w, axis)
    return w.op("add", y, w.op("strided_slice", x, axes=[axis], starts=[-1], ends=[-n - 1], strides=[-1]))


def _stepped(w: Writer, x: str, y: str, axis: int) -> str:
    n, step = _size(w, axis), w.pick(-3, -2, 2, 3)
    start, end = (n - 1, -n - 1) if step < 0 else (0, n)
    part = w.op("strided_slice", x, axes=[axis], starts=[start], ends=[end], strides=[step])
    return w.op("add", y, w.op("reduce_sum", part, axes=[axis], keepdims=True))


def _exchanged(w: Writer, x: str, y: str, axis: int) -> str:
    n = _size(w, axis)
    at = w.draw.randint(0, n)
    last = w.op("slice", x, axes=[axis], starts=[at - n if at < n else n], ends=[n])
    return w.op("concat", [last, w.op("slice", y, axes=[axis], starts=[0], ends=[at])], axis=axis)


def _running(w: Writer, x: str, y: str, axis: int) -> str:
    how = {"exclusive": w.pick(True, False), "reverse": w.pick(True, False)}
    return w.op("mul", y, w.op(w.pick("cumsum", "cumprod"), x, axis=axis, **how))


def _greatest(w: Writer, x: str, y: str, axis: int) -> str:
    count = w.draw.randint(1, _size(w, axis))
    found = w.op("topk", x, k=count, axis=axis, largest=w.pick(True, False))
    return w.op("add", y, w.op("reduce_sum", found, axes=[axis], keepdims=True))


def _put(w: Writer, x: str, y: str, axis: int) -> str:
    index = w.op("argsort", w.one(), axis=axis)
    index = w.pick(index, w.op("floor_div", index, w.whole(2)))
    return w.op("put_along_axis", x, index, y, axis=axis, reduce=w.pick("assign", "add", "mul", "max", "min"))


def _logarithm_of_positive(w: Writer, x: str, y: str, axis: int) -> str:
    positive = w.op("greater_than", x, w.const(0.0123))
    safe = w.op("where", positive, x, w.op("full_like", x, value=1.0))
    return w.op("where", positive, w.op("log", safe), y)


def _masked_softmax(w: Writer, x: str, y: str, axis: int) -> str:
    mask = w.mask()
    scores = w.op("masked_fill", x, mask, fill=-1e30)
    if w.draw.random() < 0.5:
        return w.op("mul", y, w.op("softmax", scores, axis=axis))
    return w.op("masked_fill", w.op("log_softmax", scores, axis=axis), mask, fill=0.1)


def _frequencies(w: Writer, x: str, y: str, axis: int) -> str:
    along = axis if axis >= 0 else axis - 1
    pairs = w.op("fft", w.op("stack", [x, y], axis=-1), axis=along, norm="ortho", inverse=w.pick(True, False))
    pairs = w.op("mul", pairs, w.op("unsqueeze", w.one(), axes=[-1]))
    return w.op("reduce_sum", w.op("fft", pairs, axis=along, norm="ortho", inverse=True), axes=[-1])


def _real_frequencies(w: Writer, x: str, y: str, axis: int) -> str:
    pairs = w.op("tanh", w.op("rfft", x, axis=axis, norm="ortho"))
    return w.op("irfft", pairs, n=_size(w, axis), axis=axis if axis >= 0 else axis - 1, norm="ortho")


def _segments(w: Writer, x: str, y: str, axis: int) -> str:
    ids = w.op("gather", positions := w.positions(), w.op("argsort", positions), axis=0)
    kind = w.pick("segment_sum", "segment_mean", "segment_max", "segment_min", "segment_prod")
    found = w.op(kind, x, ids, num_segments=w.rows)
    return w.op("mul", y, w.op("where", w.op("isfinite", found), found, w.op("fill_zeros_like", found)))


def _padded(w: Writer, x: str, y: str, axis: int) -> str:
    n, sizes = _size(w, axis), [0] * 4
    sizes[axis % 2 * 2 : axis % 2 * 2 + 2] = [w.draw.randint(0, n - 1) for _ in range(2)]
    padded = w.op("pad", x, paddings=sizes, mode=w.pick("constant", "reflect", "replicate", "circular"))
    return w.op("add", y, w.op("reduce_sum", w.op("sin", padded), axes=[axis], keepdims=True))


def _triangle(w: Writer, x: str, y: str, axis: int) -> str:
    products = w.op("matmul", x, y, transpose_y=True)
    return w.op("matmul", w.op(w.pick("tril", "triu"), products, diagonal=w.draw.randint(-2, 2)), x)


def _reversed_starts(w: Writer, x: str, y: str, axis: int) -> str:
    lengths = w.op("add", w.within(w.positions(), w.columns), w.whole(1))
    return w.op("mul", y, w.op("reverse_sequence", x, lengths, time_axis=1, batch_axis=0))


def _shifted(w: Writer, x: str, y: str, axis: int) -> str:
    n = _size(w, axis)
    if w.draw.random() < 0.5:
        return w.op("mul", y, w.op("roll", x, shifts=[w.draw.randint(-7, 7)], axes=[axis]))
    return w.op("add", y, w.op("shift", x, axis=axis, steps=w.draw.randint(-n, n)))


def _positive(w: Writer, x: str) -> str:
    return w.op("scale", w.op("square", x), bias=0.5)


STATEMENTS: tuple[Statement, ...] = (
    *(_reversed, _stepped, _exchanged, _running, _greatest, _put, _logarithm_of_positive, _masked_softmax),
    *(_frequencies, _real_frequencies, _segments, _padded, _triangle, _reversed_starts, _shifted),
    lambda w, x, y, axis: w.op("logcumsumexp", x, axis=axis),
    lambda w, x, y, axis: w.op("add", y, w.op(w.pick("cummax", "cummin"), x, axis=axis)),
    lambda w, x, y, axis: w.op("mul", y, w.op("sort", x, axis=axis, descending=w.pick(True, False))),
    lambda w, x, y, axis: w.op(
        "add", y, w.op("kthvalue", x, k=w.draw.randint(1, _size(w, axis)), axis=axis, keepdims=True)
    ),
    lambda w, x, y, axis: w.op("mul", y, w.op("median", x, axis=axis, keepdims=True)),
    lambda w, x, y, axis: w.op("add", y, w.op("gather", x, w.positions(), axis=0)),
    lambda w, x, y, axis: w.op("scatter", x, w.positions(), y, overwrite=w.pick(True, False)),
    lambda w, x, y, axis: w.op("index_add", x, w.positions(), y, axis=w.pick(0, -2)),
    lambda w, x, y, axis: w.op("add", y, w.op("take_along_axis", x, w.op("argsort", y, axis=axis), axis=axis)),
    lambda w, x, y, axis: w.op("masked_fill", x, w.mask(), fill=0.3),
    lambda w, x, y, axis: w.op("masked_scatter", x, w.mask(), y),
    lambda w, x, y, axis: w.op("add", y, w.op("logsumexp", x, axes=[axis], keepdims=True)),
    lambda w, x, y, axis: w.op("mul", y, w.op("flip", x, axes=[axis])),
    lambda w, x, y, axis: w.op("add", y, w.op("reduce_prod", x, axes=[axis], keepdims=True)),
    lambda w, x, y, axis: w.op(
        "mul", y, w.op("reduce_max", x, axes=[axis], keepdims=True, tie=w.pick("even", "first"))
    ),
    lambda w, x, y, axis: w.op("mul", y, w.op("norm", x, p=w.pick(1.0, 2.0, 3.0), axes=[axis], keepdims=True)),
    lambda w, x, y, axis: w.op("linear_scan", w.op("tanh", x), y, axis=axis, reverse=w.pick(True, False)),
    lambda w, x, y, axis: w.op("div", x, _positive(w, y)),
    lambda w, x, y, axis: w.op("pow", _positive(w, x), y),
    lambda w, x, y, axis: w.op("atan2", x, _positive(w, y)),
)


def indexing_program(seed: int) -> Sketch:
    """A program of `seed` with parameters w and v, a feed x, and a scalar `loss`."""
    return written(Writer(seed), seed, ("w", "v"))


def written(writer: Writer, seed: int, parameters: Sequence[str]) -> Sketch:
    """A program of `seed` with statements of `writer`, a feed x, and a scalar `loss`. parameters: w, v and others."""
    rng, s = np.random.default_rng(seed), writer.sketch
    for name in parameters:
        s.param(name, rng.uniform(-1.2, 1.2, (writer.rows, writer.columns)))
    s.feed("x", rng.uniform(-1, 1, (writer.rows, writer.columns)))
    for name, start in zip(POOL, (("assign", "w"), ("tanh", "v"), ("sub", "w", "v"), ("assign", "x")), strict=True):
        s.op(*start, out=name)
    writer.fill(0)
    s.total(s.op("add", s.op("mul", "a", "b"), s.op("sin", s.op("add", "c", "d"))))
    return s
