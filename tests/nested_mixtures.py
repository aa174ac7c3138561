"""Random mixtures whose statements are in the bodies of loops and branches, over whole sequences."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from tests.mixtures import POLICIES, Mixture

__all__ = ["nested_mixture"]


class NestedMixture(Mixture):
    """A mixture of loops and branches, in which all other statements are."""

    def statement(self) -> None:
        if self.depth < 2 and self.chance(1.0 if self.depth == 0 else 0.15):
            self.draw.choice((self.repeated, self.repeated, self.chosen))()
        else:
            super().statement()

    def body(self) -> NestedMixture:
        """A mixture for a block inside of this one, without statements."""
        inner = NestedMixture.__new__(NestedMixture)
        inner.draw, inner.rare, inner.dtype, inner.rng = self.draw, self.rare, self.dtype, self.rng
        inner.last, inner.newest = self.last, self.newest
        inner.batch, inner.time, inner.width, inner.depth = self.batch, self.time, self.width, self.depth + 1
        inner.scored = self.scored
        inner.b, inner.values, inner.wrt, inner.pool, inner.kept = BlockBuilder(), [], [], [], []
        return inner

    def operands(self, names: list[str], inner: NestedMixture) -> list[Value]:
        """Operands of this block for the parameters `names` of an inner one, in which `inner.values` are."""
        found = []
        for name, value in zip(names, inner.values, strict=True):
            found.append(self.fixed(value))
            if name in inner.wrt:
                self.wrt.append(found[-1].name)
        return found

    def repeated(self) -> None:
        """A loop that carries two states: over rows, or until a counter ends it."""
        counted, trips = self.chance(0.4), self.draw.choice((1, 2, 3))
        inner = self.body()
        state = TensorType(self.shape, self.dtype)
        first = [inner.b.param(TensorType((), t)) for t in ("bool", "int64")] if counted else []
        carried = [inner.b.param(state) for _ in range(2)]
        number = len(inner.b.params)
        inner.pool = list(carried)
        for _ in range(self.draw.choice((1, 1, 2))):
            inner.statement()
        captured = list(inner.b.params[number:])
        x, y = carried
        element = None if counted else inner.b.param(TensorType((self.batch, 1, self.width), self.dtype))
        new = [inner.emit("tanh", inner.one() + x * 0.5), y * 0.5 + inner.one() * 0.3]
        if element is not None:
            new[1] = new[1] * element
        records = [inner.one()] if self.chance(0.4) and not counted else []
        if counted:
            count = first[1] + inner.b.constant(1, "int64")
            new = [inner.emit("less_than", count, inner.b.constant(trips, "int64")), count, *new]
        body = inner.b.build([*new, *records])
        start: list[Value] = [self.one(), self.one()]
        if counted:
            start = [self.fixed(np.array(True)), self.b.constant(0, "int64"), *start]
        operands = self.operands(captured, inner)
        rows = () if counted else (self.emit("array_unstack", self.given(trips, self.batch, 1, self.width, scale=1.0)),)
        more: dict[str, Any] = {"condition": counted, "memory": self.draw.choice(POLICIES)}
        if not counted:
            more["reverse"] = self.chance(0.4)
        outs = self.emit(
            "loop", *start, *operands, *rows, sub_block=body, carried=len(start), captured=len(operands), **more
        )
        *_, x, y = outs[: len(start)]
        if records:
            stacked = self.emit("array_stack", outs[-1])
            x = x + self.emit("reduce_mean", stacked, axes=(0,))
        self.pool += [y, x]

    def chosen(self) -> None:
        """A branch; each side has statements of its own."""
        state = TensorType(self.shape, self.dtype)
        sides = [self.body(), self.body()]
        names: list[list[str]] = []
        states = [self.one(), self.one()]
        for i, side in enumerate(sides):
            side.pool = [side.b.param(state) for _ in states]
            if i:  # parameters of the other side come first
                for value in sides[0].values:
                    side.b.param(TensorType(value.shape, value.dtype.name))
            number = len(side.b.params)
            for _ in range(self.draw.choice((0, 1, 2))):
                side.statement()
            names.append(list(side.b.params[number:]))
        for value in sides[1].values:
            sides[0].b.param(TensorType(value.shape, value.dtype.name))
        blocks = [side.b.build([side.pool[-1], side.one()]) for side in sides]
        operands = [v for side, each in zip(sides, names, strict=True) for v in self.operands(each, side)]
        condition = self.fixed(np.array(self.chance(0.5)))
        outs = self.emit("if_else", condition, *states, *operands, true_block=blocks[0], false_block=blocks[1])
        self.pool += [outs[1], outs[0]]


def nested_mixture(seed: int, dtype: str, statements: int) -> tuple[Block, list[np.ndarray], list[str]]:
    """A block, operands for it, and the parameters that have gradients."""
    m = NestedMixture(random.Random(seed), dtype)
    m.pool = [m.given(*m.shape, scale=1.0)]
    for _ in range(statements):
        m.statement()
    result = m.pool[-1]
    return m.b.build([m.emit("mean", m.emit("square", result)) if m.chance(0.5) else result]), m.values, m.wrt
