"""Gradients of first to third order of programs of computed positions, ordered elements, running totals, transforms and
masks agree with finite differences, and machine code with the reference executor.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from core.wire import read
from tests.indexing_programs import indexing_program
from tests.laws.random_programs import POLICIES, nth_order
from tests.programs import whole

SHORT = 45
"""The largest number of ops of a program whose gradient is differentiated twice."""

STEPS = (1e-5, 1e-6)
"""Of differences; a kink may be nearer than the first one."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(96))
def test_gradients_of_all_orders_agree_with_differences_and_machine_code(seed):
    sketch, draw = indexing_program(seed), random.Random(seed)
    program = read(sketch.document)
    memory = [draw.choice(POLICIES) for _ in range(3)]
    wrt = ("w", "v")
    direction = {name: np.random.default_rng(seed).normal(size=sketch.values[name].shape) for name in wrt}

    def moved(by: float) -> dict[str, np.ndarray]:
        return sketch.values | {name: sketch.values[name] + by * direction[name] for name in wrt}

    before = lambda values: float(first.step(values).fetched["loss"])
    first = nth_order(program, "loss", wrt, memory[:1], fetch=["loss"])
    orders = 3 if sum(len(block["ops"]) for block in sketch.document["blocks"]) <= SHORT else 2
    for order in range(1, orders + 1):
        step = nth_order(program, "loss", wrt, memory[:order])
        found = whole(step.step(sketch.values).gradients)
        compiled = whole(step.compiled().step(sketch.values).gradients)

        slope = sum(float(np.sum(found[name] * direction[name])) for name in wrt)
        differences = [(before(moved(by)) - before(moved(-by))) / (2 * by) for by in STEPS]
        assert min(abs(slope - each) for each in differences) <= 1e-4 * (1 + abs(slope)), f"order {order}"
        size = max(1.0, *(float(np.abs(found[name]).max()) for name in wrt))
        for name in wrt:
            np.testing.assert_allclose(compiled[name], found[name], rtol=1e-7, atol=1e-9 * size)
        before = lambda values, step=step: sum(float(g.sum()) for g in whole(step.step(values).gradients).values())
