"""Machine code agrees with the reference executor on every op and its gradient, and on random programs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.compiler.compile import GradientQuery, compile_gradient, key_of
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.laws.agreement import WIDTHS, both, has_lists, in_dtype, like, moved_as_far, step_of, values_like
from tests.laws.examples import CASES
from tests.laws.random_programs import EVERY, EXAMPLES, PARTS, POLICIES, second_order
from tests.strategies import programs


def sampled() -> Iterator[Any]:
    """(op, number of its example, dtype). Only the first example of an op in the narrower dtype is not slow.

    `test_guarded.py` compares the first example in float64, unless it has lists of arrays.
    """
    for name, i in CASES:
        narrow = in_dtype(name, i, "float32") is not None
        for dtype in ("float64", "float32"):
            if in_dtype(name, i, dtype) is not None:
                fast = i == 0 and (dtype == "float32" or has_lists(name, i) or not narrow)
                yield pytest.param(name, i, dtype, marks=[] if fast else [pytest.mark.slow])


@pytest.mark.parametrize(("name", "i", "dtype"), list(sampled()))
def test_an_op_and_its_gradient_agree_with_the_reference_executor(name, i, dtype):
    both(*step_of(name, i, dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_only_the_results_of_an_ill_conditioned_program_may_move_by_roundings(dtype):
    """The reciprocal of a small difference is ill-conditioned, and the sine of the same numbers is not."""
    b, eps = BlockBuilder(), float(np.finfo(dtype).eps)
    x, one = b.param(TensorType((3,), dtype)), b.constant(1.0, dtype)
    block = b.build([b.emit("div", one, b.emit("sub", x, one)), b.emit("sin", x)])
    args = [np.array([1 + 100 * eps, 1 + 90 * eps, 1 + 110 * eps], dtype)]
    inverse, sine = interpreter_of(block)(Run(), *args)
    wanted = [inverse, sine]

    assert moved_as_far(block, args, [inverse * 1.05, sine], wanted) == {0}
    assert moved_as_far(block, args, [inverse * 2, sine], wanted) == set()
    assert moved_as_far(block, args, [inverse * 1.05, sine * 1.001], wanted) == {0}
    assert moved_as_far(block, args, wanted, wanted) == set()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@settings(max_examples=-(-EXAMPLES // (4 * PARTS)), deadline=None, suppress_health_check=list(HealthCheck))
@given(document=programs(), seed=st.integers(0, 2**16), width=st.sampled_from(WIDTHS))
def test_a_random_program_agrees_with_the_reference_executor(part, dtype, document, seed, width):
    values = values_like(seed, dtype, width)
    program = read(like(document, dtype, width))
    draw = random.Random(seed)
    query = GradientQuery(targets=("loss",), loop_memory=draw.choice(POLICIES), **EVERY)
    known = {"shapes": {name: np.shape(value) for name, value in values.items()}} if draw.random() < 0.5 else {}
    for executable in (
        compile_gradient(program, query, fetch=["loss"], **known),
        second_order(program, memory=(draw.choice(POLICIES), draw.choice(POLICIES)), **known),
    ):
        args = [key_of(0, 0) if v.role == "key" else values[v.name] for v in executable.inputs]
        both(executable.interpreter.block, args, rounds=True)
