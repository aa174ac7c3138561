"""Evaluations of a session beside its gradients."""

from __future__ import annotations

import numpy as np

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
