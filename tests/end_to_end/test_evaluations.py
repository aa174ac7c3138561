"""Evaluations of a session, compared with its gradients, and evaluations of a program without a session."""

from __future__ import annotations

import numpy as np
import pytest

import backpass_client as bp
from backpass_client import BackpassError, Program, Refused, Service

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


@bp.program
def line(x=bp.f32["batch", 2], y=bp.f32["batch"]):
    prediction = x @ bp.parameter("w", [2]) + bp.parameter("b", init=0.5)
    return {"loss": bp.mse_loss(prediction, y), "prediction": prediction}


X, Y, W = np.array([[1, 2], [3, 4]], "f"), np.array([1, 0], "f"), np.array([0.5, -0.25], "f")
PREDICTION = np.array([0.5, 1.0], "f")  # x w + 0.5


def test_a_program_is_evaluated_without_a_session_for_its_outputs(service: Service):
    found = service.programs.create(line).evaluate({"x": X, "y": Y}, {"w": W})

    assert found.keys() == {"loss", "prediction"}
    np.testing.assert_array_equal(found["prediction"], PREDICTION)
    np.testing.assert_array_equal(found["loss"], np.mean((PREDICTION - Y) ** 2))


def test_an_evaluation_of_a_program_takes_lists_and_only_the_feeds_that_the_fetched_values_need(service: Service):
    program = service.programs.create(line)

    for how in ({}, {"compile": "always"}, {"compile": "dynamic"}):
        found = program.evaluate({"x": X.tolist()}, {"w": W.tolist(), "b": 0}, fetch="prediction", **how)
        assert found.keys() == {"prediction"}
        np.testing.assert_array_equal(found["prediction"], PREDICTION - 0.5)
    with pytest.raises(Refused, match="no value is given for 'y'"):
        program.evaluate({"x": X}, {"w": W}, fetch="loss")
    with pytest.raises(Refused, match="sum"):
        program.evaluate({"x": X}, {"w": W}, fetch="sum")


def test_a_program_with_dropout_is_evaluated_for_test_and_with_a_seed(service: Service):
    program, values = Program(service, DROPOUT), ({"x": np.ones(64, "f")}, {"w": np.full(64, 3, "f")})

    in_test = program.evaluate(*values, fetch=["y"], for_test=True)["y"]
    first, again, other = (program.evaluate(*values, fetch=["y"], seed=seed)["y"] for seed in (0, 0, 1))

    np.testing.assert_array_equal(in_test, values[1]["w"])
    assert set(first) == {0.0, 6.0}
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_program_without_a_floating_point_output_is_evaluated(service: Service):
    @bp.program
    def counted(ids=bp.i64["n"]):
        return {"large": bp.cast(ids > 2, dtype="int64").sum()}

    assert service.programs.create(counted).evaluate({"ids": [1, 2, 3, 4]})["large"] == 2


def test_an_evaluation_of_a_document_names_the_variables_to_compute(service: Service):
    with pytest.raises(BackpassError, match=r"name the variables to compute, fetch=\[\.\.\.\]"):
        Program(service, DROPOUT).evaluate({"x": np.ones(64, "f")}, {"w": np.ones(64, "f")})
    with pytest.raises(TypeError, match="values are given as a dictionary"):
        Program(service, DROPOUT).evaluate({"x": np.ones(64, "f")}, ["y"])  # type: ignore[arg-type]


def test_calls_without_a_session_send_the_constant_initial_values_of_a_built_program(service: Service):
    @bp.program
    def normalised(x=bp.f64["batch", 2]):
        shift = bp.parameter("shift", bp.f64[2], init=-1.5)
        gain = bp.parameter("gain", bp.f64[2], init="ones")
        drawn = bp.parameter("drawn", bp.f64[2], init="he_normal")
        count = bp.state("count", dtype="int64", init=3)
        half = bp.parameter("half", dtype="bfloat16", init="zeros")
        bp.update(count, count + 1)
        return {"loss": (x * gain * drawn + shift).sum(), "before": count, "half": half}

    program, x, drawn = service.programs.create(normalised), X.astype(np.float64), np.array([0.5, 2.0])

    found = program.evaluate({"x": x}, {"drawn": drawn}, fetch=["loss", "before"])
    changed = program.evaluate({"x": x}, {"drawn": drawn, "gain": [2, 0]}, fetch="loss")
    gradients = program.gradients(feeds={"x": x}, parameters={"drawn": drawn}).gradients
    streamed = dict(program.stream_gradients(feeds={"x": x}, parameters={"drawn": drawn}))

    assert (found["loss"], found["before"]) == ((x * drawn - 1.5).sum(), 3)
    assert changed["loss"] == (x * drawn * [2, 0] - 1.5).sum()
    np.testing.assert_allclose(gradients["gain"], x.sum(0) * drawn)
    np.testing.assert_allclose(streamed["drawn"], x.sum(0))
    with pytest.raises(Refused, match="no value is given for 'drawn'"):
        program.evaluate({"x": x}, fetch="loss")
