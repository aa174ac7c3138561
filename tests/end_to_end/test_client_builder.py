"""Programs of the builder in the service: registered, differentiated and trained without a document by hand."""

from __future__ import annotations

import numpy as np
import pytest

import backpass_client as bp
from backpass_client.service import Service

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(32, 3)).astype("float32")
FEEDS = {"x": X, "label": (X.sum(1) > 0).astype("int64")}


def classifier(x=bp.f32["batch", 3], label=bp.i64["batch"]):
    h = bp.tanh(bp.nn.Linear(8, init={"type": "normal", "std": 0.5})(x))
    logits = bp.nn.Linear(2, name="head")(h)
    offset = bp.parameter("offset", [2], init=[0.25, -0.25])
    fixed = bp.parameter("fixed", [2], init=[1.0, 1.0], trainable=False)
    loss = bp.softmax_with_cross_entropy(logits * fixed + offset, label, reduction="mean")
    return {"loss": loss, "logits": logits}


BUILT = bp.program(classifier)


def test_a_session_trains_a_built_program_from_its_own_first_values(service: Service):
    with service.create_session(BUILT, optimizer={"type": "adam", "learning_rate": 0.05}) as session:
        first = session.parameters()
        losses = [float(session.step(FEEDS).loss) for _ in range(60)]
        last = session.parameters()

    assert first["offset"].tolist() == [0.25, -0.25]
    assert 0.2 < first["linear.weight"].std() < 0.9  # glorot would give at most 0.74 and no normal
    assert losses[-1] < 0.3 < losses[0]
    assert last["fixed"].tolist() == [1.0, 1.0]


def test_initializers_of_a_session_go_before_those_of_the_program(service: Service):
    program = service.programs.create(BUILT)
    init = {"seed": 3, "initializers": {"linear.*": {"type": "ones"}}}

    with program.session(parameters={"offset": np.array([1.0, 2.0], "float32")}, init=init) as session:
        values = session.parameters()

    assert (values["linear.weight"] == 1).all()
    assert values["offset"].tolist() == [1.0, 2.0]
    with pytest.raises(TypeError, match="give arrays as the argument `parameters`"):
        program.session(init={"parameters": values})


def test_the_service_keeps_the_given_values_with_the_program(service: Service):
    program = service.programs.get(service.programs.create(BUILT).id)
    zeros = {"initializers": {"offset": {"type": "zeros"}}}

    with program.session("loss") as session, service.create_session(BUILT, init=zeros) as other:
        values, changed = session.parameters(), other.parameters()

    assert values["offset"].tolist() == [0.25, -0.25]
    assert changed["offset"].tolist() == [0.0, 0.0]


def test_gradients_of_a_built_program_need_neither_its_loss_nor_its_given_values(service: Service):
    program = service.programs.create(BUILT)
    random = np.random.default_rng(1)
    drawn = {
        name: random.normal(size=type.wire_shape).astype("float32")
        for name, type in BUILT.parameters.items()
        if name not in BUILT.values
    }

    found = program.gradients(feeds=FEEDS, parameters=drawn, fetch=["logits"])

    h = np.tanh(X @ drawn["linear.weight"] + drawn["linear.bias"])
    np.testing.assert_allclose(found.fetched["logits"], h @ drawn["head.weight"] + drawn["head.bias"], rtol=1e-4)
    assert found.gradients.keys() == BUILT.parameters.keys() - {"fixed"}
    stored = service.programs.get(program.id).document()
    assert {name: each for name, each in stored.items() if name != "values"} == BUILT.document()


def test_a_refused_program_names_the_python_line_of_the_wrong_op(service: Service):
    def wrong(x=bp.f32[2, 3]):
        y = bp.array_stack(bp.array_unstack(x))  # a type that the client does not infer
        return y @ bp.constant(np.ones((4, 2), "float32"))

    with pytest.raises(bp.Refused) as caught:
        service.programs.create(bp.program(wrong))

    line = wrong.__code__.co_firstlineno + 2
    (note,) = caught.value.__notes__
    assert note.endswith(f"(matmul) is written at {__file__}:{line}")


def test_one_python_function_runs_on_a_tape_and_in_a_program(service: Service):
    def f(x, w):
        h = bp.tanh(x @ w) * 2.0 - x[:, :1] / 3.0
        return (h[1:] ** 2).sum() + bp.softmax(h, axis=0).max()

    x, w = RANDOM.normal(size=(3, 2)), RANDOM.normal(size=(2, 2))
    built = bp.program(lambda x=bp.f64[3, 2]: f(x, bp.parameter("w", bp.f64[2, 2], init=w)))
    found = service.programs.create(built).gradients(feeds={"x": x})
    with bp.Tape(service):
        weight = bp.Variable(w)
        value = f(bp.Variable(x, requires_grad=False), weight)
        value.backward()

    np.testing.assert_allclose(found.loss, value.value, rtol=1e-12)
    np.testing.assert_allclose(found.gradients["w"], weight.grad, rtol=1e-12)


def test_symbols_and_expressions_do_not_mix(service: Service):
    leaked = []
    bp.program(lambda x=bp.f64[2]: leaked.append(x) or x)

    with bp.Tape(service):
        y = bp.Variable([1.0, 2.0]) * 2.0
        with pytest.raises(TypeError, match="is a symbol of a program and has no value yet"):
            y + leaked[0]
        with pytest.raises(bp.InvalidOp, match="a Variable or an expression of a tape cannot be part of a program"):
            bp.program(lambda x=bp.f64[2]: x + y)
        assert (y + y).value.tolist() == [4.0, 8.0]  # the tape still works


def test_a_loop_with_a_state_trains_in_a_session(service: Service):
    @bp.program
    def f(n=bp.i64, y=bp.f64):
        w = bp.parameter("w", bp.f64[()], init=0.9)
        steps = bp.state("steps", bp.i64[()])
        bp.update(steps, steps + n)
        h, _ = bp.while_loop(lambda h, i: i < n, lambda h, i: (h * w, i + 1), (bp.constant(1.0, bp.f64), 0))
        return {"loss": (h - y) ** 2}

    with service.create_session(f, optimizer={"type": "sgd", "learning_rate": 0.02}) as session:
        for _ in range(200):
            session.step({"n": 3, "y": 0.125})
        values = session.parameters()

    assert values["w"] == pytest.approx(0.5, abs=0.02)
    assert values["steps"] == 600


def test_a_derivative_inside_of_a_program_is_without_dropout_in_a_test(service):
    @bp.program
    def dropped(x: bp.f32[64]):
        w = bp.parameter("w", init=1.0)
        slope = bp.grad(lambda x: (bp.dropout(x, p=0.5) ** 2).sum())(x)
        return {"loss": (slope * w).sum(), "slope": slope}

    x = np.arange(1, 65, dtype="float32")
    program = service.programs.create(dropped)
    tested = service.call("POST", f"/v1/programs/{program.id}/clone", {"for_test": True})
    with program.session() as session:
        trained = session.evaluate({"x": x}, ["slope"])["slope"]
    found = service.programs.get(tested["id"]).gradients("loss", {"x": x}, {"w": np.float32(1)}, fetch=["slope"])

    assert 10 < np.count_nonzero(trained == 0) < 54
    np.testing.assert_allclose(found.fetched["slope"], 2 * x)
    np.testing.assert_allclose(found.gradients["w"], 2 * x.sum())
