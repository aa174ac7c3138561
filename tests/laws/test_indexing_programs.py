"""Gradients of first to third order of programs of computed positions, ordered elements, running totals, transforms and
masks, alone and crossed with other features, agree with finite differences, and machine code with the reference
executor.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.wire import read
from tests.crossed_programs import TABLE, crossed_program
from tests.indexing_programs import indexing_program
from tests.laws.random_programs import POLICIES, nth_order
from tests.programs import Sketch, whole

SHORT = 45
"""The largest number of ops of a program whose gradient is differentiated twice."""

STEPS = (1e-5, 1e-6, 1e-4)
"""Of differences; a kink may be nearer than the first one."""


def agree(sketch: Sketch, wrt: tuple[str, ...], seed: int) -> None:
    """Under any memory policy of the loops; each order has its own policy."""
    program, draw = read(sketch.document), random.Random(seed)
    memory = [draw.choice(POLICIES) for _ in range(3)]
    direction = {name: np.random.default_rng(seed).normal(size=sketch.values[name].shape) for name in wrt}

    def moved(by: float) -> dict[str, np.ndarray]:
        return sketch.values | {name: sketch.values[name] + by * direction[name] for name in wrt}

    before = lambda values: float(first.step(values, seed).fetched["loss"])
    first = nth_order(program, "loss", wrt, memory[:1], fetch=["loss"])
    orders = 3 if sum(len(block["ops"]) for block in sketch.document["blocks"]) <= SHORT else 2
    for order in range(1, orders + 1):
        step = nth_order(program, "loss", wrt, memory[:order])
        found = whole(step.step(sketch.values, seed).gradients)
        compiled = whole(step.compiled().step(sketch.values, seed).gradients)

        slope = sum(float(np.sum(found[name] * direction[name])) for name in wrt)
        differences = [(before(moved(by)) - before(moved(-by))) / (2 * by) for by in STEPS]
        assert min(abs(slope - each) for each in differences) <= 1e-4 * (1 + abs(slope)), f"order {order}"
        size = max(1.0, *(float(np.abs(found[name]).max()) for name in wrt))
        for name in wrt:
            np.testing.assert_allclose(compiled[name], found[name], rtol=1e-7, atol=1e-9 * size)
        before = lambda values, step=step: sum(
            float(g.sum()) for g in whole(step.step(values, seed).gradients).values()
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(96))
def test_gradients_of_all_orders_agree_with_differences_and_machine_code(seed):
    agree(indexing_program(seed), ("w", "v"), seed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(96))
def test_gradients_of_crossed_features_agree_with_differences_and_machine_code(seed):
    agree(crossed_program(seed), ("w", "v", TABLE), seed)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(100, 132))
def test_checkpoints_and_machine_code_change_no_gradient_of_a_program_with_stops(seed):
    """Of crossed features, with random names in `no_grad_set`."""
    sketch, draw = crossed_program(seed), random.Random(seed)
    places = [
        (f"{block['idx']}:{name}" if block["idx"] else name)
        for block in sketch.document["blocks"]
        for op in block["ops"]
        if op["type"] in ("add", "mul", "sin", "tanh")
        for name in op["outputs"]["out"]
        if name != "loss"
    ]
    stopped, cuts = (draw.sample(places, min(len(places), count)) for count in (draw.choice((0, 1, 2)), 3))
    compiled = partial(_compiled, sketch, no_grad_set=tuple(stopped), seed=seed)

    wanted = compiled(False)
    found = compiled(False, checkpoints=draw.choice(("auto", tuple(cuts))), loop_memory=draw.choice(POLICIES))
    coded = compiled(True, checkpoints=draw.choice(("auto", ())), loop_memory=draw.choice(POLICIES))

    for name, value in wanted.items():
        size = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-11 * size)
        np.testing.assert_allclose(coded[name], value, rtol=1e-7, atol=1e-9 * size)


def _compiled(sketch: Sketch, machine_code: bool, seed: int, **options: Any) -> dict[str, np.ndarray]:
    wrt = ("w", "v", TABLE)
    query = GradientQuery(targets=("loss",), inputs=wrt, unconnected="zeros", **options)
    executable = compile_gradient(read(sketch.document), query)
    return whole((executable.compiled() if machine_code else executable).step(sketch.values, seed).gradients)
