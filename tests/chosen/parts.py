"""The parts that all statements of a random program share: groups of rows, values, weights, the loss."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.programs import Sketch

__all__ = ["ALONE", "SEGMENTS", "WIDTHS", "Group", "Parts"]

ALONE = ("unary", "binary", "product", "softmax", "gram", "shape", "attention", "order")
"""Statements that need nothing but values."""

SEGMENTS = 3
WIDTHS = (1, 2, 3, 5)


@dataclass(eq=False)
class Group:
    """Rows: their variables.

    at:            their positions in the rows of `outer`.
    masks, labels: vectors with an element for each row.
    values:        matrices with their numbers of columns.
    """

    outer: Group | None = None
    at: str = ""
    masks: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    values: list[tuple[str, int]] = field(default_factory=list)


class Parts:
    """A random program that grows. A statement is a method `do_...` of a subclass, which takes the group to work in."""

    draw: random.Random
    rng: np.random.Generator
    rows: int
    dtype: str
    sketch: Sketch
    inputs: list[str]
    weights: dict[tuple[int, ...], str]
    table: str
    sum: str
    depth: int
    lengths: str
    yes: str
    trips: str
    from_: str
    until: str
    one: str

    def pick(self, of: Any) -> Any:
        return self.draw.choice(list(of))

    def op(self, type: str, *inputs: Any, **attrs: Any) -> Any:
        return self.sketch.op(type, *inputs, **attrs)

    def number(self, value: float) -> str:
        return self.sketch.const(value, dtype=self.dtype)

    def weight(self, *shape: int) -> str:
        if shape not in self.weights:
            name = self.weights[shape] = f"w{len(self.weights)}"
            self.inputs.append(
                self.sketch.param(name, self.rng.uniform(-1, 1, shape) / (shape or (1,))[0] ** 0.5, self.dtype)
            )
        return self.weights[shape]

    def add_loss(self, term: str) -> None:
        self.op("add", self.sum, term, out=self.sum)

    def value(self, g: Group) -> tuple[str, int]:
        return self.pick(g.values[-3:] if self.draw.random() < 0.7 else g.values)

    def keep(self, g: Group, name: str, columns: int) -> None:
        g.values.append((name, columns))

    def with_columns(self, g: Group, columns: int) -> str:
        fitting = [n for n, c in g.values if c == columns]
        if fitting and self.draw.random() < 0.8:
            return self.pick(fitting)
        x, c = self.value(g)
        return self.op("matmul", x, self.weight(c, columns))

    def total(self, g: Group) -> None:
        """A scalar of the rows of a group, into the loss."""
        x, _ = self.value(g)
        kind = self.pick(("sum", "mean", "columns", "max", "entropy", "prod"))
        if kind == "entropy":
            logits = self.with_columns(g, SEGMENTS)
            labels = g.labels[0]
            each = self.op("softmax_with_cross_entropy", logits, self.op("unsqueeze", labels, axes=[1]))
            self.add_loss(self.op(self.pick(("reduce_sum", "reduce_mean")), each))
            return
        if kind == "columns":
            x = self.op("tanh", self.op(self.pick(("reduce_sum", "reduce_mean")), x, axes=[0]))
            self.add_loss(self.op("reduce_sum", x))
            return
        if kind == "max":
            x = self.op(self.pick(("reduce_max", "reduce_min")), x, axes=[1])
            self.add_loss(self.op("reduce_sum", self.op("square", x)))
            return
        if kind == "prod":
            x = self.op("scale", self.op("tanh", x), scale=0.1, bias=1.0)
            self.add_loss(self.op("reduce_sum", self.op("reduce_prod", x, axes=[0])))
            return
        x = self.op(self.pick(("square", "sin")), x)
        self.add_loss(self.op({"sum": "reduce_sum", "mean": "reduce_mean"}[kind], x))

    def fill(self, g: Group, count: int) -> None:
        for _ in range(count):
            names = [n[3:] for n in dir(self) if n.startswith("do_")] + ["choose"] * 4 + ["order"] * 3
            getattr(self, f"do_{self.pick(names)}")(g)

    def finish(self, g: Group) -> None:
        self.total(g)
        if g.outer is None or self.draw.random() < 0.4:
            self.total(g)
