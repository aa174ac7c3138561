"""Training steps: optimisers against hand-written loops, states, updates with a client's gradients, initial values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, Optimizer, compile_forward, compile_training, compile_update
from core.ir import TensorType, Variable
from core.ir.builder import BlockBuilder
from core.ir.errors import ProgramError
from core.ir.registry import as_tuple
from core.ops.common.types import as_dtype
from core.optim.initializers import initial_parameters
from core.optim.optimizers import OPTIMIZERS, state_types
from core.runtime.reference import execute
from core.wire import read
from tests.programs import Sketch, close

P0 = np.array([1.0, -2.0, 0.5])
A = np.array([0.3, 0.7, -0.4])


def quadratic() -> Sketch:
    """loss = sum((w - a)^2): its gradient is 2 (w - a)."""
    s = Sketch()
    s.param("w", P0)
    s.feed("a", A)
    s.total(s.op("square", s.op("sub", "w", "a")))
    return s


def by_hand(kind: str, steps: int) -> np.ndarray:
    w, m, v, most = P0.copy(), np.zeros(3), np.zeros(3), np.zeros(3)
    for t in range(1, steps + 1):
        g = 2 * (w - A)
        if kind == "sgd":
            w = w - 0.1 * g
        elif kind == "momentum":
            m = 0.9 * m + g
            w = w - 0.1 * m
        else:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            most = np.maximum(most, v) if kind == "amsgrad" else v
            if kind == "adamw":
                w = w * (1 - 0.1 * 0.01)
            w = w - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(most / (1 - 0.999**t)) + 1e-8)
    return w


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "adamw", "amsgrad"])
def test_twenty_steps_equal_a_loop_written_by_hand(kind):
    s = quadratic()
    exe = compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer(kind, {"learning_rate": 0.1}))
    values: dict[str, Any] = s.values | exe.initial_state()
    losses = []
    for _ in range(20):
        out = exe.step(values)
        losses.append(float(out.loss))
        values = values | out.parameters | out.optimizer_state

    close(values["w"], by_hand(kind, 20), 1e-12)
    assert losses[-1] < losses[0]


def test_updates_with_gradients_from_the_client_equal_the_training_step():
    s = quadratic()
    program = read(s.document)
    optimizer = Optimizer("adam", {"learning_rate": 0.1})
    trained = compile_training(program, GradientQuery(loss="loss"), optimizer)
    update = compile_update(program, ["w"], optimizer)
    state = update.executable.initial_state()

    inside = trained.step(s.values | trained.initial_state())
    outside = update.step({"w": P0}, {"w": 2 * (P0 - A)}, state)

    np.testing.assert_array_equal(inside.parameters["w"], outside.parameters["w"])
    assert inside.optimizer_state.keys() == outside.optimizer_state.keys()


def test_running_statistics_are_states_updated_once_a_step():
    s = Sketch()
    x = np.random.default_rng(0).standard_normal((8, 3))
    s.feed("x", x)
    s.param("scale", np.ones(3))
    s.param("bias", np.zeros(3))
    for name, value in (("mean", np.zeros(3)), ("variance", np.ones(3))):
        s._leaf("state", name, value, "float64")
    s.op("batch_norm", "x", "scale", "bias", "mean", "variance", out=["y", "mean", "variance"], momentum=0.8)
    s.total(s.op("square", "y"))
    exe = compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer("sgd"))

    out = exe.step(s.values)

    close(out.states["mean"], 0.2 * x.mean(0))
    close(out.states["variance"], 0.8 + 0.2 * x.var(0))
    forward = compile_forward(read(s.document), ["y"]).step(s.values)
    close(forward.fetched["y"], (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"w": None}, "feed_missing"),
        ({"w": np.zeros(4)}, "feed_shape"),
        ({"w": np.zeros(3, "float32")}, "feed_dtype"),
        ({"nobody": np.zeros(3)}, "feed_unknown"),
    ],
)
def test_wrong_values_are_refused(change, code):
    s = quadratic()
    exe = compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer("sgd"))
    values = {k: v for k, v in (s.values | change).items() if v is not None}

    with pytest.raises(ProgramError) as error:
        exe.step(values)
    assert error.value.code == code


@pytest.mark.parametrize(
    ("kind", "attrs", "code"),
    [("sdg", {}, "unknown_optimizer"), ("sgd", {"lr": 0.1}, "bad_attr"), ("adam", {"beta1": "0.9"}, "bad_attr")],
)
def test_wrong_optimisers_are_refused(kind, attrs, code):
    with pytest.raises(ProgramError) as error:
        Optimizer(kind, attrs)
    assert error.value.code == code


def variables() -> list[Variable]:
    shapes = {"w": (50, 200), "b": (200,), "f": (8, 4, 3, 3)}
    return [Variable(name, TensorType(shape, "float32"), "parameter") for name, shape in shapes.items()]


def test_initial_values_follow_their_rules_in_any_order_of_declaration():
    found = initial_parameters(variables(), {"f": {"type": "he_normal"}}, seed=3)
    again = initial_parameters(list(reversed(variables())), {"f": {"type": "he_normal"}}, seed=3)

    limit = np.sqrt(6 / 250)
    assert np.abs(found["w"]).max() <= limit and np.abs(found["w"]).max() > 0.95 * limit
    assert abs(found["f"].std() - np.sqrt(2 / 36)) < 0.03
    assert not found["b"].any()
    for name, value in found.items():
        np.testing.assert_array_equal(value, again[name])
        assert value.dtype == np.float32
    assert not np.array_equal(found["w"], initial_parameters(variables(), {}, seed=4)["w"])


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "nonsense"},
        {},
        {"type": "uniform", "low": 0},
        {"type": "normal", "std": -1.0},
        {"type": "constant", "value": "1"},
    ],
)
def test_wrong_initialisers_are_refused(spec):
    with pytest.raises(ProgramError) as error:
        initial_parameters(variables(), {"w": spec})
    assert error.value.code == "bad_initializer"


QUADRATIC = np.array([3.0, -2.0, 0.5])
FAST = {"adadelta": 20.0, "lars": 20.0, "ftrl": 0.5, "sgd": 0.1, "momentum": 0.05, "lamb": 0.02}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_lowers_a_quadratic(name):
    s = Sketch()
    s.param("w", QUADRATIC)
    s.total(s.op("square", s.op("scale", "w", bias=-1.0)))
    optimizer = Optimizer(name, {"learning_rate": FAST.get(name, 0.05)})
    exe = compile_training(read(s.document), GradientQuery(loss="loss"), optimizer)
    values, state = dict(s.values), exe.initial_state()
    losses = []
    for step in range(200):
        out = exe.step(values | state, step=step)
        values, state = {**values, **out.parameters}, state | out.optimizer_state
        losses.append(float(out.loss))

    assert losses[-1] < 0.5 * losses[0]
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_constant_schedule_equals_a_number(name):
    level = {"schedule": "piecewise_decay", "boundaries": [], "values": [0.05]}
    found = []
    for rate in (0.05, level):
        s = quadratic()
        exe = compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer(name, {"learning_rate": rate}))
        values: dict[str, Any] = s.values | exe.initial_state()
        for _ in range(8):
            out = exe.step(values)
            values = values | out.parameters | out.optimizer_state
        found.append(values["w"])

    close(found[1], found[0], 1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_keeps_16_bit_dtypes_and_lowers_the_loss(name, dtype):
    b = BlockBuilder()
    whole = TensorType((2,), "float32")
    types = {s: t if t != whole else TensorType((2,), dtype) for s, t in state_types(Optimizer(name), whole).items()}
    params = [b.param(TensorType((2,), dtype)) for _ in range(2)] + [b.param(t) for t in types.values()]
    block = b.build(as_tuple(b.emit(name, *params, learning_rate=0.25)))
    half = as_dtype(dtype)
    zeros = [np.zeros(t.shape, as_dtype(t.dtype)) for t in types.values()]

    out = execute(block, [np.array([1.0, -2.0]).astype(half), np.array([4.0, -4.0]).astype(half), *zeros])

    assert [str(np.asarray(v).dtype) for v in out] == [dtype, *(t.dtype for t in types.values())]
    assert np.isfinite(out[0].astype("float64")).all()
    if name not in ("adadelta", "lars"):  # their first updates are tiny
        assert abs(float(out[0][0])) < 1.0 and abs(float(out[0][1])) < 2.0


def test_a_schedule_sets_the_rate_of_every_step():
    s = Sketch()
    s.param("w", [1.0, 2.0])
    s.total("w")
    rate = {"schedule": "exponential_decay", "learning_rate": 0.1, "decay_steps": 1, "decay_rate": 0.5}
    exe = compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer("sgd", {"learning_rate": rate}))
    values, state = dict(s.values), exe.initial_state()
    moves = []
    for step in range(4):
        out = exe.step(values | state, step=step)
        moves.append(float(values["w"][0] - out.parameters["w"][0]))
        values, state = {**values, **out.parameters}, state | out.optimizer_state

    close(moves, [0.1, 0.05, 0.025, 0.0125], 1e-12)
    with pytest.raises(ProgramError) as error:
        Optimizer("sgd", {"learning_rate": {"schedule": "steep"}})
    assert error.value.code == "unknown_schedule"
    with pytest.raises(ProgramError, match="a learning rate is a number or has a schedule"):
        Optimizer("sgd", {"learning_rate": {"decay_steps": 1}})
