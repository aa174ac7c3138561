"""Parameter groups equal optimisers by hand, and rates as inputs equal rates as constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from core.compiler.compile import Clip, GradientQuery, Optimizer, compile_training
from core.ir.errors import ProgramError
from core.ir.patterns import first_match, matches
from core.optim.optimizers import OPTIMIZERS
from core.optim.rates import Rates
from core.wire import read
from tests.programs import Sketch

RNG = np.random.default_rng(5)
COSINE = {"schedule": "cosine_decay", "learning_rate": 0.1, "decay_steps": 10}


def model() -> Sketch:
    """Mean square of tanh(x w + b) v, with the parameters enc.w, enc.b and head.v."""
    s = Sketch()
    s.feed("x", RNG.standard_normal((5, 3)))
    s.param("enc.w", RNG.standard_normal((3, 4)))
    s.param("enc.b", RNG.standard_normal(4))
    s.param("head.v", RNG.standard_normal((4, 2)))
    s.op("matmul", s.op("tanh", s.op("add", s.op("matmul", "x", "enc.w"), "enc.b")), "head.v", out="y")
    s.op("mean", s.op("square", "y"), out="loss")
    return s


def trained(s: Sketch, optimizer: Optimizer, steps: int, rates: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    """All values after `steps` steps. rates: of each step, as inputs; None for constants."""
    opened = rates is not None
    program = read(s.document)
    compiled = Rates.of(optimizer).optimizer if opened else optimizer
    exe = compile_training(program, GradientQuery(loss="loss"), compiled, open_rates=opened, **more)
    values: dict[str, Any] = s.values | exe.initial_state()
    for i in range(steps):
        given = Rates.of(optimizer, rates[i]).inputs if rates else {}
        out = exe.step(values | {n: v for n, v in given.items() if n in exe.input_names})
        values = values | out.parameters | out.optimizer_state
    return values


@pytest.mark.parametrize("type", ["sgd", "adamw"])
def test_a_parameter_without_a_gradient_keeps_its_value_and_has_no_slots(type):
    s = model()
    s.param("unused", RNG.standard_normal(3))
    start = s.values["unused"].copy()

    found = trained(s, Optimizer(type, {"learning_rate": 0.1, "weight_decay": 0.5}), 3)

    np.testing.assert_array_equal(found["unused"], start)
    assert not any(name.startswith("unused/") for name in found)
    assert np.all(found["enc.b"] != s.values["enc.b"])


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("w", "w", True), ("w", "w1", False), ("*.bias", "enc.0.bias", True), ("*.bias", "bias", False),
        ("*", "a/b.c-d", True), ("enc.?.w", "enc.1.w", True), ("enc.?.w", "enc.10.w", False),
        ("layer[0-3].w", "layer2.w", True), ("layer[!0].w", "layer0.w", False), ("W", "w", False),
    ],
)  # fmt: skip
def test_a_pattern_covers_the_whole_name(pattern, name, fits):
    assert matches(pattern, name) == fits


def test_the_first_matching_list_of_patterns_decides():
    lists = [["enc.w"], ["*.b", "*.w"], ["*"]]

    assert [first_match(lists, name) for name in ("enc.w", "dec.w", "enc.b", "v")] == [0, 1, 1, 2]
    assert first_match(lists[:2], "v") is None


@pytest.mark.parametrize("opened", [False, True])
def test_groups_equal_one_optimiser_for_each_parameter(opened):
    groups = [
        {"match": "enc.b", "learning_rate": 0.5, "weight_decay": 0.0},
        {"match": ["head.*", "enc.*"], "type": "sgd", "learning_rate": COSINE},
    ]
    parts = {
        "enc.b": Optimizer("adamw", {"learning_rate": 0.5, "weight_decay": 0.0}),
        "enc.w": Optimizer("sgd", {"learning_rate": COSINE}),
        "head.v": Optimizer("sgd", {"learning_rate": COSINE}),
    }
    s = model()
    whole = Optimizer("adamw", {"learning_rate": 0.01, "groups": groups})
    query = GradientQuery(loss="loss")
    values: dict[str, Any] = dict(s.values)
    slots: dict[str, dict[str, Any]] = {}
    exes = {name: compile_training(read(s.document), query, each) for name, each in parts.items()}
    for name, exe in exes.items():
        slots[name] = exe.initial_state()
    for _ in range(4):  # each parameter by a whole step with its own optimiser, of which the others are dropped
        outs = {name: exe.step(values | slots[name]) for name, exe in exes.items()}
        values |= {name: out.parameters[name] for name, out in outs.items()}
        for name, out in outs.items():
            slots[name] |= out.optimizer_state

    found = trained(s, whole, 4, [None] * 4 if opened else None)

    for name in parts:
        np.testing.assert_array_equal(found[name], values[name])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rates_as_inputs_equal_constant_rates(name):
    s, rates = model(), [0.5, 0.01]

    found = trained(s, Optimizer(name, {"learning_rate": 0.25}), 2, rates)

    exes = [compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer(name, {"learning_rate": r})) for r in rates]  # fmt: skip # noqa: E501
    values: dict[str, Any] = s.values | exes[0].initial_state()
    for exe in exes:
        out = exe.step(values)
        values = values | out.parameters | out.optimizer_state
    for key in ("enc.w", "enc.b", "head.v"):
        np.testing.assert_allclose(found[key], values[key], rtol=1e-13)


def test_a_rate_of_one_step_replaces_the_schedule_of_that_step_only():
    s = model()
    scheduled = Optimizer("sgd", {"learning_rate": COSINE})
    cosine = [0.1 * (1 + math.cos(math.pi * n / 10)) / 2 for n in range(3)]

    found = trained(s, scheduled, 3, [None, 0.7, None])

    wanted = trained(s, Optimizer("sgd"), 3, [cosine[0], 0.7, cosine[2]])
    np.testing.assert_allclose(found["enc.w"], wanted["enc.w"], rtol=1e-13)
    assert found["@STEPS"] == 3


def test_decay_before_clipping_is_that_of_each_group():
    s, clip = model(), Clip.read({"by": "value", "max": 0.01, "decay_first": True})
    groups = [{"match": "head.*", "weight_decay": 0.0}]
    whole = trained(s, Optimizer("sgd", {"weight_decay": 5.0, "groups": groups}), 2, clip=clip)
    parts = [trained(s, Optimizer("sgd", {"weight_decay": decay}), 1, clip=clip) for decay in (5.0, 0.0)]

    first = trained(s, Optimizer("sgd", {"weight_decay": 5.0, "groups": groups}), 1, clip=clip)
    np.testing.assert_array_equal(first["enc.w"], parts[0]["enc.w"])
    np.testing.assert_array_equal(first["head.v"], parts[1]["head.v"])
    assert not np.array_equal(whole["head.v"], first["head.v"])


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"match": "w"}, "list of objects"),
        ([{"learning_rate": 1.0}], "group 0"),
        ([{"match": []}], "group 0"),
        ([{"match": "a"}, {"match": "b", "name": "a"}], "group 1"),
        ([{"match": "a", "name": "default"}], "group 0"),
        ([{"match": "a", "groups": []}], "group 0"),
        ([{"match": "a", "beta": 1.0}], "group 0"),
        ([{"match": "a", "type": "nonsense"}], "group 0"),
    ],
)
def test_wrong_groups_are_refused_with_their_number(groups, words):
    with pytest.raises(ProgramError, match=words):
        Optimizer("adam", {"groups": groups})


@pytest.mark.parametrize("patterns", [["decoder.*"], ["enc.*", "enc.w"]])
def test_a_group_without_parameters_is_refused(patterns):
    optimizer = Optimizer("sgd", {"groups": [{"match": each} for each in patterns]})

    with pytest.raises(ProgramError) as error:
        optimizer.check_groups(["enc.w", "enc.b", "head.v"])

    assert error.value.code == "bad_group"
    assert patterns[-1] in error.value.message


@pytest.mark.parametrize("given", [{"nobody": 0.1}, {"default": True}, math.nan, "0.1"])
def test_wrong_rates_of_a_step_are_refused(given):
    with pytest.raises(ProgramError):
        Rates.of(Optimizer("sgd"), given)


@pytest.mark.parametrize(
    "schedule",
    [
        {"schedule": "exponential_decay", "learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.0},
        {"schedule": "exponential_decay", "learning_rate": 0.1, "decay_steps": 10, "decay_rate": -0.5},
        {"schedule": "polynomial_decay", "learning_rate": 0.1, "decay_steps": 10, "power": 0.0},
        {"schedule": "polynomial_decay", "learning_rate": 0.1, "decay_steps": 10, "power": -1.0},
        {"schedule": "piecewise_decay", "boundaries": [3], "values": [0.1]},
        {"schedule": "one_cycle", "learning_rate": 0.1, "total_steps": 1},
    ],
)
def test_a_schedule_whose_formula_has_no_rate_at_some_step_is_refused(schedule):
    with pytest.raises(ProgramError) as error:
        Optimizer("sgd", {"learning_rate": schedule})
    assert error.value.code == "bad_attr"
    assert error.value.pointer.startswith("/learning_rate")
