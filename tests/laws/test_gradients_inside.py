"""Derivatives inside of a program are the gradients of a query, on random programs, at first and second order."""

from __future__ import annotations

import os

import numpy as np
import pytest

from core.backward.forward_only import clone
from core.compiler.compile import GradientQuery, compile_forward, compile_gradient
from core.wire import read, write
from tests.laws.random_programs import INPUTS, POLICIES, first_order, flat, leaves, second_order
from tests.programs import close
from tests.strategies import written

EXAMPLES = int(os.environ.get("BACKPASS_TEST_PROGRAMS", "200"))
SLICES = 4
INSIDE = tuple(f"d_{name}" for name in INPUTS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(SLICES))
def test_a_derivative_inside_of_a_program_is_the_gradient_of_a_query(part):
    for seed in range(part, EXAMPLES // 8, SLICES):
        document, values = written(seed, depth=3, keeps_parameters=True), leaves(seed)
        wanted = flat(first_order(read(document)).step(values).gradients)
        again = flat(second_order(read(document)).step(values).gradients)

        names = {"inputs": {"targets": ["loss"], "inputs": [*INPUTS]}, "outputs": {"out": [*INSIDE]}}
        document["blocks"][0]["ops"].append({"type": "gradients", **names})
        program = read(document)

        policy = POLICIES[seed % len(POLICIES)]
        query = GradientQuery(targets=INSIDE, inputs=INPUTS, unconnected="zeros", loop_memory=policy)
        found = compile_gradient(program, query, fetch=INSIDE).step(values)
        close(np.concatenate([found.fetched[name].ravel() for name in INSIDE]), wanted, 1e-10)
        close(flat(found.gradients), again, 1e-10)
        for other in (clone(program), read(write(program))):
            alone = compile_forward(other, INSIDE).step(values).fetched
            close(np.concatenate([alone[name].ravel() for name in INSIDE]), wanted, 1e-10)
