"""Random blocks of elementwise ops, reductions over any axes, and other layouts, on arrays of one size.

Passes over memory that reduce different axes of the same arrays meet in them: rows of one axis, of several, of all, and
sums that no row contains.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from core.ops.common.types import as_dtype

__all__ = ["reductions"]

SHAPES = (
    (2, 20),
    (3, 33),
    (8, 40),
    (33, 4),
    (1, 50),
    (3, 1, 20),
    (2, 3, 20),
    (2, 20, 17),
    (2, 2, 48),
    (5, 7, 1),
    (2, 3, 4, 5),
)
"""Mostly with rows that are long beside a number for each of them."""


class _Reductions:
    """A block under construction. full: values of the whole shape. all: these, and others that broadcast to it."""

    def __init__(self, draw: random.Random, dtype: str) -> None:
        self.draw, self.dtype = draw, dtype
        self.rng = np.random.default_rng(draw.getrandbits(32))
        self.shape = draw.choice(SHAPES)
        self.b = BlockBuilder()
        self.values: list[np.ndarray] = []
        self.full = [self.given(self.shape), self.given(self.shape)]
        self.all = [*self.full]
        for _ in range(draw.randrange(3)):
            sizes = tuple(draw.choice((1, n)) for n in self.shape)
            self.all.append(self.given(sizes[draw.randrange(len(sizes)) :]))

    def given(self, shape: tuple[int, ...]) -> Value:
        self.values.append(self.rng.uniform(-1.0, 1.0, shape).astype(as_dtype(self.dtype)))
        return self.b.param(TensorType(shape, self.dtype))

    def emit(self, type: str, *inputs: Value, **attrs: Any) -> Any:
        return self.b.emit(type, *inputs, **attrs)

    def one(self) -> Value:
        return self.draw.choice(self.all[-6:])

    def whole(self) -> Value:
        return self.draw.choice(self.full[-5:])

    def axes(self) -> tuple[int, ...] | None:
        rank = len(self.shape)
        if (kind := self.draw.random()) < 0.6:
            return None if kind < 0.35 else (rank - 1,)
        return tuple(sorted(self.draw.sample(range(rank), self.draw.randint(1, rank))))

    def statement(self) -> None:
        twice = (self.arithmetic, self.reduction)
        once = (
            self.function,
            self.centred,
            self.unit,
            self.normalised,
            self.layout,
            self.flat,
            self.parts,
            self.rounded,
        )
        form = self.draw.choice((*twice, *twice, *once))
        found = form()
        (self.full if found.shape == self.shape else self.all).append(found)
        if found.shape == self.shape:
            self.all.append(found)

    def arithmetic(self) -> Value:
        x, y = self.whole(), self.one()
        kind = self.draw.choice(("add", "sub", "mul", "maximum", "div", "where", "average"))
        if kind == "div":
            return self.emit("div", x, self.emit("scale", self.emit("square", y), scale=1.0, bias=0.5))
        if kind == "where":
            return self.emit("where", self.emit("greater_than", x, self.moved(y)), x, y * 0.5)
        if kind == "maximum":
            y = self.moved(y)
        if kind == "average":
            return self.emit("scale", x + y, scale=0.5, bias=0.0)
        return self.emit(kind, x, y)

    def function(self) -> Value:
        kind = self.draw.choice(("tanh", "sigmoid", "relu", "abs", "rsqrt", "sin"))
        x = self.one()
        if kind in ("relu", "abs"):
            x = self.moved(x)
        return self.emit(
            kind, self.emit("scale", self.emit("square", x), scale=1.0, bias=0.5) if kind == "rsqrt" else x
        )

    def moved(self, x: Value) -> Value:
        """Moved a little, so that no rounding decides a comparison: a mean of deviations is zero up to rounding."""
        return self.emit("scale", x, scale=0.7, bias=0.013)

    def reduction(self) -> Value:
        kind = self.draw.choice(("reduce_mean", "reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "logsumexp"))
        found = self.emit(kind, self.whole(), axes=self.axes(), keepdims=True)
        return self.emit("tanh", found) if kind == "reduce_sum" else found

    def centred(self) -> Value:
        x = self.whole()
        return x - self.emit("reduce_mean", x, axes=self.axes(), keepdims=True)

    def unit(self) -> Value:
        """Divided by a norm, as in clipping by a norm of all elements."""
        x = self.whole()
        squares = self.emit("reduce_mean", self.emit("square", x), axes=self.axes(), keepdims=True)
        return x * self.emit("rsqrt", self.emit("scale", squares, scale=1.0, bias=0.1))

    def normalised(self) -> Value:
        kind = self.draw.choice(("softmax", "log_softmax", "cumsum", "layer_norm"))
        axis = self.draw.randrange(len(self.shape))
        if kind == "layer_norm":
            return self.emit(kind, self.whole(), None, None, begin_norm_axis=max(1, axis), epsilon=0.1)
        found = self.emit(kind, self.whole(), axis=axis)
        return self.emit("tanh", found) if kind == "cumsum" else found

    def layout(self) -> Value:
        """Work on the axes in another order."""
        order = tuple(self.draw.sample(range(len(self.shape)), len(self.shape)))
        x = self.emit("tanh", self.emit("transpose", self.whole(), axes=order))
        if self.draw.random() < 0.6:
            over = tuple(sorted(self.draw.sample(range(len(order)), self.draw.randint(1, len(order)))))
            x = x - self.emit("reduce_mean", x, axes=over, keepdims=True)
        return self.emit("transpose", x, axes=tuple(int(i) for i in np.argsort(order)))

    def flat(self) -> Value:
        """Work on the elements as a vector, or as rows of another length."""
        count = int(np.prod(self.shape))
        lengths = [n for n in range(1, count + 1) if count % n == 0]
        x = self.emit("reshape", self.whole(), shape=(count // (n := self.draw.choice(lengths)), n))
        squares = self.emit(
            "reduce_mean", self.emit("square", x), axes=self.draw.choice(((0,), (1,), (0, 1))), keepdims=True
        )
        return self.emit("reshape", x * self.emit("tanh", squares), shape=self.shape)

    def parts(self) -> Value:
        """The halves along an axis, exchanged or reversed."""
        axis = max(range(len(self.shape)), key=lambda i: self.shape[i])
        x, at = self.whole(), self.draw.randint(1, self.shape[axis] - 1)
        if self.draw.random() < 0.4:
            return self.emit("flip", x, axes=(axis,)) * 0.5
        first = self.emit("slice", x, axes=(axis,), starts=(0,), ends=(at,))
        last = self.emit("slice", x, axes=(axis,), starts=(at,), ends=(self.shape[axis],))
        return self.emit("concat", last, self.emit("tanh", first), axis=axis)

    def rounded(self) -> Value:
        """A detour through a dtype that holds every value."""
        wider = self.draw.choice(("float32", "float64"))
        x = self.emit("cast", self.whole(), dtype="float64" if self.dtype == "float64" else wider)
        x = x - self.emit("reduce_mean", x, axes=self.axes(), keepdims=True) if self.draw.random() < 0.5 else x * 0.5
        return self.emit("cast", x, dtype=self.dtype)


def reductions(seed: int, dtype: str, statements: int) -> tuple[Block, list[np.ndarray]]:
    """A block whose parameters all have gradients, and operands for it."""
    r = _Reductions(random.Random(seed), dtype)
    for _ in range(statements):
        r.statement()
    results = [r.full[-1], *r.draw.sample(r.all, min(len(r.all), r.draw.randrange(3)))]
    if r.draw.random() < 0.4:
        results[0] = r.emit("mean", r.emit("square", results[0]))
    return r.b.build(results), r.values
