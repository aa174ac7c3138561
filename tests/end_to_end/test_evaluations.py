"""Evaluations of a session beside its gradients."""

from __future__ import annotations

import numpy as np

import backpass_client as bp
from backpass_client import Program, Service

DROPOUT = {
    "blocks": [
        {
            "idx": 0,
            "parent_idx": -1,
            "vars": [
                {"name": "x", "dtype": "float32", "shape": [64], "role": "feed"},
                {"name": "w", "dtype": "float32", "shape": [64], "role": "parameter"},
            ],
            "ops": [
                {"type": "mul", "inputs": {"x": "x", "y": "w"}, "outputs": {"out": "product"}},
                {"type": "dropout", "inputs": {"x": "product"}, "outputs": {"out": "y"}, "attrs": {"p": 0.5}},
            ],
        }
    ]
}


def test_an_evaluation_draws_the_numbers_of_the_next_accumulating_call(service: Service):
    program = Program(service, DROPOUT)
    x, w = np.ones(64, "f"), np.ones(64, "f")
    seen = []
    with program.session(targets=["y"], inputs=["w", "x"], parameters={"w": w}) as session:
        for _ in range(3):
            y = session.evaluate({"x": x}, fetch=["y"])["y"]
            found = session.gradients({"x": x}, accumulate=True, return_gradients=["x"])
            seen.append(y)
            np.testing.assert_array_equal(found.gradients["x"], y)

    assert not np.array_equal(seen[0], seen[1])


def test_an_evaluation_for_test_passes_dropout_and_the_next_step_does_not(service: Service):
    program = Program(service, DROPOUT)
    x, w = np.ones(64, "f"), np.full(64, 3, "f")
    with program.session(targets=["y"], parameters={"w": w}) as session:
        in_test = session.evaluate({"x": x}, fetch=["y"], for_test=True)["y"]
        in_training = session.evaluate({"x": x}, fetch=["y"])["y"]

    np.testing.assert_array_equal(in_test, x * w)
    assert set(in_training) == {0.0, 6.0}


def test_a_derivative_through_dropout_is_that_of_the_test_in_an_evaluation_for_test(service: Service):
    @bp.program
    def slope(x: bp.f32[8]):
        w = bp.parameter("w", [8])
        return {"slope": bp.grad(lambda x: bp.dropout(x * w, p=0.5).sum())(x)}

    w = np.arange(1, 9, dtype="f")
    with service.create_session(slope, targets=["slope"], parameters={"w": w}) as session:
        in_test = session.evaluate({"x": np.ones(8, "f")}, ["slope"], for_test=True)["slope"]
        in_training = session.evaluate({"x": np.ones(8, "f")}, ["slope"])["slope"]

    np.testing.assert_array_equal(in_test, w)
    np.testing.assert_array_equal(in_training[in_training != 0], 2 * w[in_training != 0])
