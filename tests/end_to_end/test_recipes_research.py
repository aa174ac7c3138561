"""The recipes pinn, maml, reinforce and onnx_fine_tuning: their gradients against numpy, and the level they reach."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import backpass_client as bp
from backpass_client import Service
from examples.recipes import maml, pinn, private, reinforce
from tests.paths import ROOT

Arrays = dict[str, np.ndarray]


def double(values: Arrays) -> Arrays:
    return {name: np.asarray(value, "float64") for name, value in values.items()}


def first_values(service: Service, built: bp.BuiltProgram, seed: int = 3, **settings) -> Arrays:
    """Values of all parameters that are not zero."""
    with service.create_session(built, init={"seed": seed}, **settings) as session:
        drawn = session.parameters()
    random = np.random.default_rng(seed)
    return {name: value + 0.1 * random.normal(size=value.shape).astype("float32") for name, value in drawn.items()}


def assert_slopes(f: Callable[[Arrays], float], at: Arrays, gradients: Arrays, h: float = 1e-5) -> None:
    """The gradients agree with differences of `f`, computed in float64, along a random direction for each parameter."""
    random, at = np.random.default_rng(0), double(at)
    assert gradients.keys() == at.keys()
    for name, gradient in gradients.items():
        direction = random.normal(size=gradient.shape)
        above, below = (f({**at, name: at[name] + step * direction}) for step in (h, -h))
        np.testing.assert_allclose((gradient * direction).sum(), (above - below) / (2 * h), 2e-3, 2e-5, err_msg=name)


# --- pinn --------------------------------------------------------------------------------------------------------


def in_numpy(w: Arrays, points: np.ndarray) -> np.ndarray:
    h = points
    for i in range(3):
        h = np.tanh(h @ w[f"u.layer_{i}.weight"] + w[f"u.layer_{i}.bias"])
    return h @ w["u.last.weight"] + w["u.last.bias"]


def derivatives(w: Arrays, points: np.ndarray, h: float = 1e-3) -> dict[str, np.ndarray]:
    """u and its derivatives by differences of fourth order."""
    u = lambda x, t: in_numpy(w, points + np.array([x * h, t * h]))
    slope = lambda x, t: (8 * (u(x, t) - u(-x, -t)) - u(2 * x, 2 * t) + u(-2 * x, -2 * t)) / (12 * h)
    bend = (16 * (u(1, 0) + u(-1, 0)) - u(2, 0) - u(-2, 0) - 30 * u(0, 0)) / (12 * h * h)
    return {"u": u(0, 0), "u_x": slope(1, 0), "u_t": slope(0, 1), "u_xx": bend}


def test_the_derivatives_of_the_pinn_and_the_gradient_of_its_equation_agree_with_differences(service: Service) -> None:
    built = pinn.burgers(8)
    w, feeds = first_values(service, built), pinn.batches(1, np.random.default_rng(5))
    feeds = {name: value[0] for name, value in feeds.items()}

    found = service.programs.create(built).gradients(feeds=feeds, parameters=w, fetch=["u", "u_x", "u_t", "u_xx"])

    for name, wanted in derivatives(double(w), feeds["inside"]).items():
        np.testing.assert_allclose(found.fetched[name], wanted, 1e-3, 1e-4, err_msg=name)

    def equation(w: Arrays) -> float:
        d = derivatives(w, feeds["inside"])
        residual = d["u_t"] + d["u"] * d["u_x"] - pinn.NU * d["u_xx"]
        return (residual**2).mean() + ((in_numpy(w, feeds["edge"]) - feeds["known"]) ** 2).mean()

    assert_slopes(equation, w, found.gradients)


def test_the_front_of_the_pinn_satisfies_the_equation() -> None:
    x, t = np.random.default_rng(0).uniform((-1, 0), (1, 1), (50, 2)).T
    e = np.exp(-(x - t / 2) / (2 * pinn.NU))  # the front is e / (1 + e), a logistic curve
    u = e / (1 + e)
    slope = -u * (1 - u) / (2 * pinn.NU)
    bend = -(1 - 2 * u) * slope / (2 * pinn.NU)

    np.testing.assert_allclose(pinn.solution(np.stack([x, t], axis=1))[:, 0], u, atol=1e-6)
    np.testing.assert_allclose(-slope / 2 + u * slope, pinn.NU * bend, atol=1e-12)


@pytest.mark.slow
def test_the_pinn_finds_the_closed_form(service: Service) -> None:
    found = pinn.run(service, steps=600, hidden=16)

    assert found["rms"] < 0.05  # of a front of height 1
    assert found["last"] < 0.01 * found["first"]


# --- maml --------------------------------------------------------------------------------------------------------


def layers(w: Arrays, x: np.ndarray) -> list[np.ndarray]:
    a = np.maximum(x @ w["w0"] + w["b0"], 0)
    b = np.maximum(a @ w["w1"] + w["b1"], 0)
    return [x, a, b, b @ w["w2"] + w["b2"]]


def descended(w: Arrays, x: np.ndarray, y: np.ndarray, steps: int) -> Arrays:
    """The weights of one task after steps of gradient descent, by backpropagation as a formula."""
    for _ in range(steps):
        x, a, b, found = layers(w, x)
        d2 = 2 * (found - y) / len(y)
        d1 = (d2 @ w["w2"].T) * (b > 0)
        d0 = (d1 @ w["w1"].T) * (a > 0)
        slopes = {"w0": x.T @ d0, "w1": a.T @ d1, "w2": b.T @ d2} | {
            f"b{i}": d.sum(0) for i, d in enumerate((d0, d1, d2))
        }
        w = {name: value - maml.INNER_RATE * slopes[name] for name, value in w.items()}
    return w


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_the_gradient_through_gradient_descent_agrees_with_differences(service: Service, steps: int) -> None:
    built, feeds = maml.learner(6), maml.tasks(4, np.random.default_rng(2))
    w = first_values(service, built)

    program = service.programs.create(built)
    found = program.gradients(feeds={**feeds, "steps": np.array(steps)}, parameters=w, fetch=["y_found"])

    def predictions(w: Arrays) -> np.ndarray:
        each = zip(feeds["x"], feeds["y"], feeds["x_other"], strict=True)
        return np.stack([layers(descended(w, x, y, steps), other)[-1] for x, y, other in each])

    np.testing.assert_allclose(found.fetched["y_found"], predictions(double(w)), 1e-4, 1e-4)
    assert_slopes(lambda w: ((predictions(w) - feeds["y_other"]) ** 2).mean(), w, found.gradients, h=1e-6)


@pytest.mark.slow
def test_maml_learns_new_curves_from_five_points(service: Service) -> None:
    found = maml.run(service, steps=600, hidden=32)

    before, *_, after = found["learned to learn"]
    assert after < 0.75 * before
    assert after < 0.75 * found["learned the average"][-1]


# --- reinforce ---------------------------------------------------------------------------------------------------


def test_a_push_of_a_cart_follows_the_equations_of_motion() -> None:
    carts = reinforce.Carts(20, np.random.default_rng(0))
    carts.state = np.random.default_rng(1).uniform(-0.2, 0.2, (20, 4))
    before, action = carts.state.copy(), np.arange(20) % 2
    m, length, total = carts.POLE, carts.HALF_LENGTH, carts.POLE + carts.CART

    carts.push(action)

    for (_, v, angle, w), (_, v_then, _, w_then), right in zip(before, carts.state, action, strict=True):
        inertia = np.array([[total, m * length * np.cos(angle)], [m * length * np.cos(angle), m * length**2 * 4 / 3]])
        forces = [(10 if right else -10) + m * length * w**2 * np.sin(angle), m * 9.8 * length * np.sin(angle)]
        acceleration = np.linalg.solve(inertia, forces)
        np.testing.assert_allclose([v_then - v, w_then - w], carts.TICK * acceleration, rtol=1e-9)
    np.testing.assert_allclose(carts.state[:, [0, 2]], before[:, [0, 2]] + carts.TICK * before[:, [1, 3]])


def test_a_fallen_cart_stays_where_it_fell() -> None:
    carts = reinforce.Carts(2, np.random.default_rng(0))
    carts.state[0, 2] = 0.3
    carts.push(np.array([1, 1]))
    fallen = carts.state[0].copy()

    carts.push(np.array([1, 1]))

    assert carts.up.tolist() == [False, True]
    assert (carts.state[0] == fallen).all()


def test_an_update_of_the_policy_follows_the_cotangents_of_the_client(service: Service) -> None:
    built, random = reinforce.policy(5), np.random.default_rng(4)
    targets = {"targets": ["log_prob", "value"]}
    w = first_values(service, built, **targets)
    feeds = {"state": random.normal(size=(7, 4)).astype("float32"), "action": random.integers(0, 2, 7)}
    weights = [random.normal(size=7).astype("float32") for _ in range(2)]

    def weighted(w: Arrays) -> float:
        h = np.tanh(feeds["state"] * [0.4, 0.5, 5.0, 0.5] @ w["hidden.weight"] + w["hidden.bias"])
        logits = h @ w["actor.weight"] + w["actor.bias"]
        chance = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        value = (h @ w["critic.weight"] + w["critic.bias"])[:, 0]
        return float(weights[0] @ np.log(chance[np.arange(7), feeds["action"]]) + weights[1] @ value)

    sgd = {"type": "sgd", "learning_rate": 0.5}
    with service.create_session(built, parameters=w, optimizer=sgd, **targets) as session:
        session.step(feeds, target_gradients=weights)
        after = session.parameters()

    assert_slopes(weighted, w, {name: (w[name] - after[name]) / 0.5 for name in w})


def test_the_return_of_a_push_is_the_discounted_sum_of_the_rewards_until_the_fall(service: Service) -> None:
    with service.create_session(reinforce.policy(5), targets=["log_prob"], optimizer=reinforce.ADAM) as session:
        played = reinforce.play(session, 12, np.random.default_rng(0))

    longest = played.ticks.max()
    expected = [
        (1 - reinforce.DISCOUNT ** (ticks - t)) / (1 - reinforce.DISCOUNT)
        for t in range(longest)
        for ticks in played.ticks
        if t < ticks
    ]
    np.testing.assert_allclose(played.gain, expected)
    assert len(played.state) == len(played.action) == played.ticks.sum()


def test_a_policy_learns_to_balance_the_pole(service: Service) -> None:
    stood = reinforce.run(service, rounds=9, ticks=60)

    assert stood[0] < 30
    assert np.mean(stood[-2:]) > 1.5 * stood[0]


# --- private learning --------------------------------------------------------------------------------------------


def test_an_update_of_private_learning_is_the_mean_of_shortened_gradients(service: Service) -> None:
    built, random = private.private(hidden=5, noise=0.0), np.random.default_rng(6)
    image, digit = random.uniform(0, 4, (7, 64)).astype("float32"), random.integers(0, 10, 7)
    image[0] *= 0.01  # a gradient below the bound
    w = first_values(service, built, loss="surrogate")
    w["out.weight"] = w["out.weight"] * np.float32(0.1)

    expected, lengths = {name: np.zeros(value.shape) for name, value in w.items()}, []
    for x, label in zip(image, digit, strict=True):
        h = np.tanh(x @ w["hidden.weight"] + w["hidden.bias"])
        logits = h @ w["out.weight"] + w["out.bias"]
        error = np.exp(logits) / np.exp(logits).sum() - np.eye(10)[label]
        back = (w["out.weight"] @ error) * (1 - h**2)
        slopes = [np.outer(x, back), back, np.outer(h, error), error]
        lengths.append(np.sqrt(sum((each**2).sum() for each in slopes)))
        for name, slope in zip(private.NAMES, slopes, strict=True):
            expected[name] += slope * min(1.0, private.BOUND / lengths[-1]) / private.BATCH

    assert min(lengths) < private.BOUND < max(lengths)
    sgd = {"type": "sgd", "learning_rate": 1.0}
    with service.create_session(built, parameters=w, loss="surrogate", optimizer=sgd) as session:
        step = session.step({"image": image, "digit": digit}, fetch=["lengths"])
        after = session.parameters()

    np.testing.assert_allclose(step.fetched["lengths"], lengths, 1e-4)
    for name, value in expected.items():
        np.testing.assert_allclose(w[name] - after[name], value, 1e-3, 1e-6, err_msg=name)


def test_the_privacy_loss_of_whole_batches_is_that_of_gaussian_noise() -> None:
    orders = np.arange(2, 100)
    wanted = (20 * orders / (2 * 3.0**2) + np.log(1 / private.DELTA) / (orders - 1)).min()

    assert private.epsilon(3.0, 1 - 1e-12, 20) == pytest.approx(wanted, rel=1e-6)
    assert private.epsilon(1.0, 0.01, 1000) < private.epsilon(1.0, 0.1, 1000) < private.epsilon(0.8, 0.1, 1000)


def test_private_learning_learns(service: Service) -> None:
    found = private.run(service, steps=40, hidden=16, noise=0.5)

    assert found["accuracy"] > 0.6


# --- fine-tuning of an ONNX model --------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_onnx_model_is_fine_tuned_and_keeps_its_frozen_weights(service: Service, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator

    from examples.recipes import onnx_fine_tuning as recipe

    found = recipe.run(service, tmp_path, epochs=5, tuning_epochs=8)

    assert found["pretrained"] > 0.9
    assert found["first loss"] == pytest.approx(np.log(5), abs=1e-5)  # the new layer starts from zeros
    assert found["tuned"] > 0.7
    data = recipe.digits()["new test"]
    before, after = (
        {each.name: numpy_helper.to_array(each) for each in onnx.load(tmp_path / name).graph.initializer}
        for name in ("pretrained.onnx", "tuned.onnx")
    )
    frozen = sorted(before.keys() & after.keys())
    assert [name for name in frozen if name.endswith("weight")] == ["first.weight", "second.weight"]
    for name in frozen:
        np.testing.assert_array_equal(before[name], after[name])
    (logits,) = ReferenceEvaluator(str(tmp_path / "tuned.onnx")).run(["logits"], {"image": data["image"]})
    assert (logits.argmax(1) == data["digit"]).mean() == pytest.approx(found["tuned"], abs=0.005)

    model = recipe.with_new_head(tmp_path / "pretrained.onnx")
    head = ["new_head.weight", "new_head.bias"]
    program = service.programs.create_from_onnx(model, loss="cross_entropy", label="digit", trainable=head)
    gradients = program.gradients(feeds=data).gradients
    model.graph.output.append(onnx.helper.make_tensor_value_info("features", 1, ["batch", 128]))
    (features,) = ReferenceEvaluator(model).run(["features"], {"image": data["image"]})
    error = (0.2 - np.eye(5)[data["digit"]]) / len(features)  # of the probabilities, which are all equal
    assert gradients.keys() == {*head}
    np.testing.assert_allclose(gradients["new_head.weight"], features.T @ error, 1e-3, 1e-5)
    np.testing.assert_allclose(gradients["new_head.bias"], error.sum(0), 1e-3, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pinn", "maml", "reinforce", "private", "onnx_fine_tuning"])
def test_a_recipe_reaches_its_level_as_a_command(url: str, name: str) -> None:
    command = [sys.executable, "-m", f"examples.recipes.{name}", "--url", url]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)

    assert done.returncode == 0, done.stdout + done.stderr
