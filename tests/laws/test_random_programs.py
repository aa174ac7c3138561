"""Any program's gradients, first and second order, agree with finite differences and with the program unrolled."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from core.backward import Options, append_backward
from core.compile import GradientQuery, compile_gradient
from core.ir import Program
from core.wire import read, write
from tests.oracle import NearKink, unrolled
from tests.strategies import LEAVES, programs

EXAMPLES = int(os.environ.get("BACKPASS_TEST_PROGRAMS", "500"))
FIXED = {
    "yes": np.asarray(True),
    "no": np.asarray(False),
    "two": np.asarray(2, dtype=np.int64),
    "none": np.asarray(0, dtype=np.int64),
    "xs": np.array([[0.5, -0.7], [-0.3, 0.9], [0.8, 0.2]]),
    "nothing": np.zeros((0, 2)),
}
ALL = {"inputs": LEAVES, "unconnected": "zeros"}


def leaves(seed: int) -> dict[str, Any]:
    r = np.random.default_rng(seed)
    return {name: r.uniform(-1.2, 1.2, 2) for name in LEAVES} | FIXED


def flat(grads: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.asarray(grads[name]) for name in LEAVES])


def moved(values: dict[str, Any], direction: np.ndarray, by: float) -> dict[str, Any]:
    parts = dict(zip(LEAVES, np.split(direction * by, len(LEAVES)), strict=True))
    return values | {name: values[name] + parts[name] for name in LEAVES}


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(document=programs(), seed=st.integers(0, 2**16))
def test_gradients_of_both_orders_agree_with_two_other_ways_to_find_them(document, seed):
    values = leaves(seed)
    try:
        straight_document, loss = unrolled(document, values)
    except NearKink:
        assume(False)
    program, straight = read(document), read(straight_document)
    assert read(write(program)) == program
    direction = np.random.default_rng(seed + 1).standard_normal(6)

    first = compile_gradient(program, GradientQuery(targets=("loss",), **ALL), fetch=["loss"])
    out = first.step(values)
    found = flat(out.gradients)
    assert abs(float(out.fetched["loss"]) - loss) < 1e-12 * max(1.0, abs(loss))
    expected = flat(compile_gradient(straight, GradientQuery(targets=("loss",), **ALL)).step(values).gradients)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
    up, down = (unrolled_loss(document, moved(values, direction, by)) for by in (1e-5, -1e-5))
    np.testing.assert_allclose(found @ direction, (up - down) / 2e-5, rtol=2e-5, atol=2e-7)

    second, second_straight = second_order(program), second_order(straight)
    found = flat(second.step(values).gradients)
    np.testing.assert_allclose(found, flat(second_straight.step(values).gradients), rtol=1e-8, atol=1e-10)
    up, down = (flat(first.step(moved(values, direction, by)).gradients).sum() for by in (1e-5, -1e-5))
    np.testing.assert_allclose(found @ direction, (up - down) / 2e-5, rtol=2e-5, atol=2e-6)


def unrolled_loss(document: dict[str, Any], values: dict[str, Any]) -> float:
    try:
        return unrolled(document, values)[1]
    except NearKink:
        assume(False)
        raise


def second_order(program: Program) -> Any:
    """d sum(all first gradients) / d leaves, through the answer as JSON: what was sent out is read back in."""
    from core.backward import gradients

    backward = gradients(program, ["loss"], list(LEAVES), options=Options(unconnected="zeros"))
    answer = read(write(backward.program))
    assert answer == backward.program
    targets = tuple(backward.gradients.values())
    return compile_gradient(answer, GradientQuery(targets=targets, **ALL))


def test_append_backward_answers_are_legal_programs_with_the_same_gradients():
    s = {"blocks": [{"vars": [{"name": "w", "dtype": "float64", "shape": [2], "role": "parameter"}], "ops": [
        {"type": "square", "inputs": {"x": ["w"]}, "outputs": {"out": ["y"]}},
        {"type": "reduce_sum", "inputs": {"x": ["y"]}, "outputs": {"out": ["loss"]}}]}]}  # fmt: skip
    backward = append_backward(read(s), "loss")

    assert read(write(backward.program)) == backward.program
