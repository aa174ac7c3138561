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


# --- states ------------------------------------------------------------------------------------------------------


@bp.program
def with_states(x=bp.f64["batch", 3], y=bp.f64["batch", 3]):
    calls = bp.state("calls", init=0.0)
    bp.update(calls, calls + 1.0)
    out = bp.nn.BatchNorm(momentum=0.8, name="norm")(x * bp.parameter("w", bp.f64[3], init="ones"))
    return {"loss": bp.mse_loss(out, y), "out": out}


BATCHES = np.random.default_rng(3).normal(2.0, 3.0, size=(3, 16, 3))


def test_evaluations_carry_the_running_statistics_on_as_steps_of_a_session_do(service: Service):
    program = Program(service, with_states)
    states: dict[str, np.ndarray] = {}
    mean, variance = np.zeros(3), np.ones(3)
    with program.session(optimizer={"type": "sgd", "learning_rate": 0.0}) as session:
        for i, x in enumerate(BATCHES):
            found = program.evaluate({"x": x, "y": x}, states, return_states=True)
            session.step({"x": x, "y": x})
            states = found.states
            mean, variance = 0.8 * mean + 0.2 * x.mean(0), 0.8 * variance + 0.2 * x.var(0)

            assert set(found) == {"loss", "out"} and states["calls"] == i + 1
            np.testing.assert_allclose(states["norm.mean"], mean, rtol=1e-12)
            np.testing.assert_allclose(states["norm.variance"], variance, rtol=1e-12)
            kept = session.parameters()
            assert all(np.allclose(states[name], kept[name], rtol=1e-12) for name in states)


def test_an_evaluation_without_return_states_has_none_and_computes_none(service: Service):
    program = Program(service, with_states)

    found = program.evaluate({"x": BATCHES[0]}, fetch=["out"])

    assert found.states == {} and set(found) == {"out"}
    with pytest.raises(Refused, match="'y'"):
        program.evaluate({"x": BATCHES[0]}, fetch=["loss"])


def test_an_evaluation_for_test_leaves_the_running_statistics(service: Service):
    program = Program(service, with_states)
    given = {"norm.mean": np.full(3, 0.5), "norm.variance": np.full(3, 2.0)}

    states = program.evaluate({"x": BATCHES[0]}, given, fetch=["out"], for_test=True, return_states=True).states

    assert all((states[name] == given[name]).all() for name in given)


def test_gradients_have_the_states_after_the_pass_and_the_recorded_gradients(service: Service):
    program = Program(service, with_states)
    feeds = {"x": BATCHES[0], "y": BATCHES[1]}
    record = [{"match": {"variable": "out"}, "do": "record"}]

    found = program.gradients(feeds=feeds, hooks=record, fetch=["out"])
    streamed = program.stream_gradients(feeds=feeds, hooks=record, fetch=["out"]).result

    expected = 2 * (found.fetched["out"] - BATCHES[1]) / BATCHES[1].size
    for each in (found, streamed):
        np.testing.assert_allclose(each.states["norm.mean"], 0.2 * BATCHES[0].mean(0), rtol=1e-12)
        (recorded,) = each.recorded.values()
        np.testing.assert_allclose(recorded, expected, rtol=1e-9)
    with program.session(optimizer={"type": "sgd"}, hooks=record) as session:
        np.testing.assert_allclose(*session.step(feeds).recorded.values(), expected, rtol=1e-9)


def test_the_client_drops_no_tensor_of_an_answer(service: Service, monkeypatch: pytest.MonkeyPatch):
    """Each tensor that the service sends is in the result of the call."""
    program = Program(service, with_states)
    sent: list[np.ndarray] = []
    exchange = Service.exchange

    def seen(self, *args, **options):
        said, tensors = exchange(self, *args, **options)
        sent.extend(tensors.values())
        return said, tensors

    monkeypatch.setattr("backpass_client.connection.Service.exchange", seen)
    feeds = {"x": BATCHES[0], "y": BATCHES[1]}
    record = [{"match": {"variable": "out"}, "do": "record"}]
    with program.session(optimizer={"type": "sgd"}, hooks=record) as session:
        calls = [
            lambda: program.gradients(feeds=feeds, hooks=record, fetch=["out"]),
            lambda: program.evaluate(feeds, return_states=True),
            lambda: session.gradients(feeds, fetch=["out"]),
            lambda: session.step(feeds, fetch=["out"], return_gradients="all"),
            lambda: session.evaluate(feeds, fetch=["out"]),
        ]
        for call in calls:
            sent.clear()
            found = call()
            assert sent and all(any(each is mine for mine in arrays_of(found)) for each in sent)


def arrays_of(result) -> list[np.ndarray]:
    if isinstance(result, np.ndarray):
        return [result]
    if isinstance(result, dict):
        return [x for each in result.values() for x in arrays_of(each)] + arrays_of(getattr(result, "states", None))
    fields = getattr(type(result), "__slots__", ())
    return [x for name in fields for x in arrays_of(getattr(result, name))]
