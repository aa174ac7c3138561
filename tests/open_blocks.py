"""Blocks of random programs on batches of sequences, whose number and length are open: what their statements use, and
the bodies of loops and branches.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from tests.mixtures import POLICIES

__all__ = ["Body", "Statement", "States", "branched", "called", "looped"]

FEEDS = ("x", "words", "lengths", "mask", "other", "key")
DEEPEST = 2


class States:
    """A block under construction: its `pool` of states [batch, time, width], and the feeds.

    statements: those that it and its inner blocks may have. kinds: the names of those that they have.
    depth:      of loops and branches around it.
    """

    draw: random.Random
    dtype: str
    width: int
    depth: int
    b: BlockBuilder
    pool: list[Value]
    kinds: list[str]
    statements: tuple[Statement, ...]
    x: Value
    words: Value
    lengths: Value
    mask: Value
    other: Value
    key: Value

    def given(self, *shape: int, role: str = "parameter", scale: float | None = None) -> Value:
        """A new parameter or state of the program. The numbers of states are positive."""
        raise NotImplementedError

    def one(self) -> Value:
        return self.draw.choice(self.pool[-3:])

    def emit(self, type: str, *inputs: Value | None, **attrs: Any) -> Any:
        return self.b.emit(type, *inputs, **attrs)

    def dense(self, x: Value, width: int | None = None) -> Value:
        made: Value = self.emit("matmul", x, self.given(self.width, width or self.width))
        return made

    def statement(self) -> None:
        make = self.draw.choice(self.statements)
        self.kinds.append(make.__name__)
        made = make(self)
        self.pool.append(self.emit("tanh", made) if self.draw.random() < 0.5 else made * 0.5 + self.one() * 0.3)


Statement = Callable[[States], Value]


class Body(States):
    """A block inside of `outer`, whose parameters are `states`, `elements`, and values of `outer` that it captures."""

    def __init__(self, outer: States, states: list[Value], elements: list[TensorType]) -> None:
        self.outer, self.b = outer, BlockBuilder()
        self.draw, self.dtype, self.width = outer.draw, outer.dtype, outer.width
        self.kinds, self.statements, self.depth = outer.kinds, outer.statements, outer.depth + 1
        self.states = [self.b.param(each.type) for each in states]
        self.elements = [self.b.param(each) for each in elements]
        self.captured: list[tuple[Value, Value]] = []
        for name in FEEDS:
            setattr(self, name, self.capture(getattr(outer, name)))
        self.pool = list(self.states)

    def capture(self, value: Value) -> Value:
        self.captured.append((value, self.b.param(value.type)))
        return self.captured[-1][1]

    def given(self, *shape: int, role: str = "parameter", scale: float | None = None) -> Value:
        return self.capture(self.outer.given(*shape, role=role, scale=scale))

    def block(self, results: list[Value], before: int = 0, operands: list[Value] | None = None) -> Block:
        """Its parameters are states, captured values, and elements.

        operands: all captured values, with `before` of them ahead of those of this block; only its own by default.
        """
        own = [inner.name for _, inner in self.captured]
        operands = [outer for outer, _ in self.captured] if operands is None else operands
        others = [self.b.param(each.type).name for each in (*operands[:before], *operands[before + len(own) :])]
        names = [each.name for each in self.states] + others[:before] + own + others[before:]
        names += [each.name for each in self.elements]
        return replace(self.b.build(results), params=tuple(names))


def looped(p: States) -> Value:
    """A loop that carries two states, with one trip for each step of the sequences, or as many as data say."""
    if p.depth == DEEPEST:
        return p.one() * 0.5
    counted = p.draw.random() < 0.4
    start = [p.one(), p.one()]
    if counted:
        trips = p.emit("reduce_max", p.lengths, axes=(0,))
        none = p.emit("full_like", trips, value=0)
        start = [p.emit("less_than", none, trips), none, *start]
    body = Body(p, start, [] if counted else [TensorType((p.x.shape[0], p.width), p.dtype)])
    *first, x, y = body.states
    body.pool = [x, y]
    for _ in range(p.draw.choice((0, 1, 1, 2))):
        body.statement()
    new = [body.emit("tanh", body.one() + x * 0.5), y * 0.5 + body.one() * 0.3]
    stacks, more = [], {}
    if counted:
        count = first[1] + 1
        new = [body.emit("less_than", count, body.capture(trips)), count, *new]
    else:
        stacks = [p.emit("array_unstack", p.emit("transpose", p.one(), axes=(1, 0, 2)))]
        new[1] = new[1] * body.emit("unsqueeze", body.elements[0], axes=(1,))
        more["reverse"] = p.draw.random() < 0.4
        if p.draw.random() < 0.4:
            new.append(body.emit("reduce_mean", body.one(), axes=(1,)))
    captured = [outer for outer, _ in body.captured]
    outs = p.emit(
        "loop", *start, *captured, *stacks, sub_block=body.block(new), carried=len(start), captured=len(captured),
        condition=counted, memory=p.draw.choice(POLICIES), **more,
    )  # fmt: skip
    x, y = outs[len(start) - 2 : len(start)]
    if len(new) > len(start):
        y = y * p.emit("tanh", p.emit("transpose", p.emit("array_stack", outs[-1]), axes=(1, 0, 2)))
    p.pool.append(y)
    made: Value = x
    return made


def branched(p: States) -> Value:
    """A branch with statements of its own on each side."""
    if p.depth == DEEPEST:
        return p.one() * 0.5
    states = [p.one(), p.one()]
    sides = [Body(p, states, []) for _ in range(2)]
    for side in sides:
        for _ in range(p.draw.choice((0, 1, 2))):
            side.statement()
    operands = [outer for side in sides for outer, _ in side.captured]
    blocks = [
        side.block([side.pool[-1], side.one()], before, operands)
        for side, before in zip(sides, (0, len(sides[0].captured)), strict=True)
    ]
    total = p.emit("reduce_sum", p.one())
    condition = p.emit("greater_than", total, p.emit("full_like", total, value=0.0))
    x, y = p.emit("if_else", condition, *states, *operands, true_block=blocks[0], false_block=blocks[1])
    p.pool.append(y)
    made: Value = x
    return made


def called(p: States) -> Value:
    """A call of a function with statements of its own. Some functions define a gradient other than their own."""
    if p.depth == DEEPEST:
        return p.one() * 0.5
    states = [p.one(), p.one()]
    body = Body(p, states, [])
    for _ in range(p.draw.choice((0, 1, 2))):
        body.statement()
    block = body.block([body.pool[-1], body.one() * body.pool[0]])
    operands = [*states, *(outer for outer, _ in body.captured)]
    gradient, inputs = None, ()
    if p.draw.random() < 0.6:
        b = BlockBuilder()
        params = [b.param(type) for type in (*(each.type for each in operands), *block.result_types * 2)]
        *_, last, first, second = params
        mean = b.emit("reduce_mean", second, axes=(0, 1))
        gradient = b.build([first * b.emit("tanh", last) + mean, second * 0.5 + first * params[0]])
        inputs = (0, 1)
    x, y = p.emit("call", *operands, block=block, gradient=gradient, inputs=inputs)
    p.pool.append(y)
    made: Value = x
    return made
