"""Compositions of random ops in loops and branches: machine code agrees with the reference executor.

Each op of a composition is one of its examples. The test adds a small multiple of existing values to its inputs,
reshaped, repeated, reversed and sliced to fit. The fusions and the memory layouts of operands are therefore random.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import CoreError, ExecutionError
from core.ir.registry import as_tuple, lookup
from core.runtime.native import native_interpreter
from core.runtime.reference import execute, interpreter_of
from core.runtime.run import Run
from tests.laws.examples import CASES, OPS, arrays, examples_of
from tests.laws.random_programs import EXAMPLES, PARTS

LARGEST = 400
"""The largest number of elements of an input of an op."""

TOLERANCE = {"float64": 1e-8, "float32": 2e-3}
"""Relative to the largest element, because compositions may be badly conditioned."""


def fits(name: str, number: int) -> bool:
    values = arrays(examples_of(OPS[name])[number])
    plain = all(not isinstance(x, list) and 0 < x.size <= LARGEST and x.dtype.itemsize != 2 for x in values)
    return plain and OPS[name].kind != "control"


CHOICES = [case for case in CASES if fits(*case)]
Leaf = Callable[[np.ndarray], Value]


class Composition:
    """A random program.

    values: of its parameters. wrt: parameters to differentiate with respect to.
    """

    def __init__(self, seed: int) -> None:
        self.draw, self.rng = random.Random(seed), np.random.default_rng(seed)
        self.dtype = self.draw.choice(("float64", "float64", "float32"))
        self.builder = BlockBuilder()
        self.values: list[np.ndarray] = []
        self.wrt: list[str] = []
        pool = [self.leaf(self.rng.uniform(-1.0, 1.0, shape)) for shape in ((3,), (4, 5), (self.draw.randint(1, 40),))]
        first = len(pool)
        for _ in range(self.draw.randint(2, 7)):
            self.statement(self.builder, pool, self.leaf, 0)
        self.block = self.builder.build(pool[first:][-8:] or pool[:1])

    def leaf(self, x: np.ndarray) -> Value:
        """A parameter of the program."""
        if x.dtype == np.float64:
            x = x.astype(self.dtype)
        self.values.append(x)
        found = self.builder.param(TensorType(x.shape, str(x.dtype)))
        if x.dtype.kind == "f" and self.draw.random() < 0.6:
            self.wrt.append(found.name)
        return found

    def statement(self, b: BlockBuilder, pool: list[Value], leaf: Leaf, depth: int) -> None:
        """Add one op, a loop or a branch; its results go to `pool`. leaf: adds a parameter of the program, visible in
        `b`.
        """
        kind = self.draw.random()
        if depth < 3 and kind < 0.12:
            self.loop(b, pool, leaf, depth)
        elif depth < 3 and kind < 0.22:
            self.branch(b, pool, leaf, depth)
        else:
            self.op(b, pool, leaf)

    def op(self, b: BlockBuilder, pool: list[Value], leaf: Leaf) -> None:
        name, number = self.draw.choice(CHOICES)
        example = examples_of(OPS[name])[number]
        inputs = [self.near(b, pool, leaf(x)) for x in arrays(example)]
        attrs = {k: self.dtype if (k, v) == ("dtype", "float64") else v for k, v in example.attrs.items()}
        try:
            made = as_tuple(b.emit(name, *inputs, **attrs))
        except CoreError:  # an attribute requires float64
            return
        pool.extend(v for v in made if isinstance(v.type, TensorType) and self.takes(v.type))

    def takes(self, type: TensorType) -> bool:
        return type.is_static and type.dtype == self.dtype and 0 < math.prod(type.shape) <= 5 * LARGEST

    def near(self, b: BlockBuilder, pool: list[Value], x: Value) -> Value:
        """`x`, usually with a small multiple of values in `pool` added."""
        if x.dtype != self.dtype or self.draw.random() < 0.2:
            return x
        other = self.adapted(self.draw.choice(pool), x.shape)
        bounded = b.emit(self.draw.choice(("tanh", "sin")), other)
        return x + bounded * self.draw.choice((0.0, 0.03, 0.1))

    def adapted(self, v: Value, shape: tuple[int, ...]) -> Value:
        """Elements of `v` as an array of another shape."""
        many, wanted = math.prod(v.shape), math.prod(shape)
        if v.rank > 1 and self.draw.random() < 0.3:
            v = lookup("transpose")(v, axes=tuple(self.draw.sample(range(v.rank), v.rank)))
        flat = lookup("reshape")(v, shape=(many,))
        if many < wanted:
            times = -(-wanted // many)
            flat = lookup("expand")(lookup("reshape")(flat, shape=(1, many)), shape=(times, many))
            flat = lookup("reshape")(flat, shape=(times * many,))
            many *= times
        start, step = self.draw.choice(((0, 1), (many - wanted, 1), (-1, -1)))
        if step < 0:
            flat = lookup("slice")(flat, axes=(0,), starts=(-1,), ends=(-(2**31),), steps=(-1,))
            start = 0
        if many > wanted:
            flat = lookup("slice")(flat, axes=(0,), starts=(start,), ends=(start + wanted,))
        return lookup("reshape")(flat, shape=shape)

    def loop(self, b: BlockBuilder, pool: list[Value], leaf: Leaf, depth: int) -> None:
        count = self.draw.choice((0, 1, 2, 3, 5))
        trips = leaf(np.asarray(count)) if self.draw.random() < 0.5 else b.constant(count, "int64")
        start, states, captured = b.constant(0, "int64"), self.some(pool, 2), [*self.some(pool, 3), trips]
        body = BlockBuilder()
        _, at, *inner = (body.param(t) for t in (TensorType((), "bool"), start.type, *(v.type for v in states)))
        seen = [body.param(v.type) for v in captured]
        inside, extra = [*inner, *seen[:-1]], []
        for _ in range(self.draw.randint(1, 3)):
            self.statement(body, inside, captures(body, leaf, extra), depth + 1)
        following = [
            lookup("tanh")(v * 0.5 + self.adapted(self.draw.choice(inside), v.shape)) if self.draw.random() < 0.8 else v
            for v in inner
        ]
        after = at + 1
        block = body.build([lookup("less_than")(after, seen[-1]), after, *following])
        carried = [lookup("less_than")(start, trips), start, *states]
        memory = self.draw.choice(("store", "store", "recompute", "sqrt"))
        attrs = {"sub_block": block, "carried": len(carried), "captured": len(captured) + len(extra), "memory": memory}
        pool.extend(as_tuple(b.emit("loop", *carried, *captured, *extra, **attrs))[2:])

    def branch(self, b: BlockBuilder, pool: list[Value], leaf: Leaf, depth: int) -> None:
        total = lookup("reduce_sum")(self.draw.choice(pool))
        fed = self.draw.random() < 0.5
        flag = leaf(np.asarray(True)) if fed else lookup("less_than")(total, b.constant(0.1, self.dtype))
        captured, shape = self.some(pool, 3), self.draw.choice(pool).shape
        sides, extras = [], []
        for _ in range(2):
            side, extra = BlockBuilder(), []
            inside = [side.param(v.type) for v in captured]
            for _ in range(self.draw.randint(0, 2)):
                self.statement(side, inside, captures(side, leaf, extra), depth + 1)
            sides.append((side, lookup("sin")(self.adapted(self.draw.choice(inside), shape))))
            extras.append(extra)
        (yes, first), (no, second) = sides
        for v in extras[1]:
            yes.param(v.type)
        own = no.params[len(captured) :]
        del no.params[len(captured) :]
        for v in extras[0]:
            no.param(v.type)
        no.params.extend(own)
        blocks = {"true_block": yes.build([first]), "false_block": no.build([second])}
        pool.extend(as_tuple(b.emit("if_else", flag, *captured, *extras[0], *extras[1], **blocks)))

    def some(self, pool: list[Value], most: int) -> list[Value]:
        return self.draw.sample(pool, min(len(pool), self.draw.randint(1, most)))


def captures(inner: BlockBuilder, leaf: Leaf, extra: list[Value]) -> Leaf:
    """A `leaf` for an inner block. `extra` collects the operands that the outer op must capture."""

    def captured(x: np.ndarray) -> Value:
        extra.append(leaf(x))
        return inner.param(extra[-1].type)

    return captured


def cotangents(rng: np.random.Generator, block: Block, values: list[Any]) -> list[np.ndarray]:
    """Random values for every float result of `block`; sometimes all ones."""
    found = []
    for name, value in zip(block.results, execute(block, values), strict=True):
        if block.types[name].is_float:
            x = np.asarray(value)
            found.append((rng.uniform(0.5, 1.5, x.shape) if rng.random() < 0.7 else np.ones(x.shape)).astype(x.dtype))
    return found


def compare(block: Block, values: list[Any], tolerance: float) -> bool:
    """Whether the program runs. Asserts that machine code raises the same error, or gives equal results up to
    rounding.
    """
    with np.errstate(all="ignore"):
        native = native_interpreter(block, CPU)
        try:
            wanted = interpreter_of(block)(Run(), *values)
        except ExecutionError as refused:
            with pytest.raises(ExecutionError) as caught:
                native(Run(), *values)
            assert caught.value.code == refused.code
            return False
        for found, want in zip(native(Run(), *values), wanted, strict=True):
            if isinstance(want, list) or want is None:
                continue
            found, want = np.asarray(found), np.asarray(want)
            assert (found.shape, found.dtype) == (want.shape, want.dtype)
            if want.dtype.kind == "f":
                scale = np.abs(want[np.isfinite(want)]).max(initial=1.0)
                np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance * scale)
            else:
                np.testing.assert_array_equal(found, want)
    return True


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", range(PARTS))
@settings(max_examples=-(-EXAMPLES // (10 * PARTS)), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**48))
def test_machine_code_agrees_on_a_composition_and_its_gradients_of_both_orders(part, seed):
    made, rng = Composition(seed), np.random.default_rng(seed)
    block, values = made.block, list(made.values)
    for order in range(3):
        needed = optimize(block)  # without unused ops, which may fail
        if not compare(needed, values, TOLERANCE[made.dtype] * 10**order):
            return
        if order < 2 and made.wrt:
            values += cotangents(rng, needed, values)
            try:
                block = vjp(block, made.wrt)
            except CoreError:  # an op without a gradient
                return
