"""Steps whose updates are apart: machine code writes new values over the old ones when the step is kept."""

from __future__ import annotations

import numpy as np
import pytest

from bench.workloads import mlp
from core.compiler.compile import GradientQuery, compile_forward, compile_training
from core.ir.errors import CoreError
from core.optim.clipping import Clip, GlobalNorm, Norm
from core.optim.optimizers import OPTIMIZERS, Optimizer
from core.passes import updates
from core.runtime.bound_step import bind_step
from core.runtime.run import Run
from core.wire import read
from tests.programs import Sketch

RATE = {"learning_rate": 0.05}


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    monkeypatch.setattr(updates, "LEAST_BYTES", 0)


def training(optimizer="adam", **how):
    gives_gradients = how.get("gives_gradients", True)
    workload = mlp("mlp", 5 if gives_gradients else 1, (12, 9, 4))
    executable = compile_training(
        read(workload.program), GradientQuery(loss="loss"), Optimizer(optimizer, RATE), **how
    ).compiled()
    assert (executable.machine.apart is None) == (optimizer == "lamb")  # which needs a norm of the update
    return workload, executable


def bound_to(executable, values):
    held = {v.name: np.array(values[v.name]) for v in executable.inputs if v.role not in ("feed", "key")}
    return bind_step(executable, held), held


@pytest.mark.sampled(3)
@pytest.mark.parametrize("gives_gradients", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_bound_steps_have_the_bits_of_separate_steps_and_the_values_of_the_reference(optimizer, gives_gradients):
    workload, executable = training(optimizer, gives_gradients=gives_gradients)
    start = {**executable.initial_state(), **workload.parameters}
    bound, _ = bound_to(executable, start)
    separate, reference = dict(start), dict(start)

    for number in range(4):
        assert bound.takes(workload.feeds)
        out = bound.step(Run(), 0, number)
        loss = out.loss.copy()
        bound.keep()
        own = executable.step({**separate, **workload.feeds}, 0, number)
        wanted = executable.on(executable.backend).step({**reference, **workload.feeds}, 0, number)
        separate |= own.parameters | own.optimizer_state
        reference |= wanted.parameters | wanted.optimizer_state
        assert loss.tobytes() == own.loss.tobytes()
        for name, value in (out.parameters | out.optimizer_state).items():
            assert value.tobytes() == separate[name].tobytes(), name
            np.testing.assert_allclose(value, reference[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by", [GlobalNorm(0.01), Norm(0.01)], ids=lambda by: by.name)
def test_a_step_on_separate_arrays_clips_its_updates(by):
    workload, executable = training("sgd", clip=Clip(by))
    values = {**executable.initial_state(), **workload.parameters, **workload.feeds}

    found, wanted = executable.step(values).parameters, executable.on(executable.backend).step(values).parameters

    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-7)


def test_new_values_lie_where_the_old_ones_were():
    workload, executable = training()
    bound, held = bound_to(executable, {**executable.initial_state(), **workload.parameters})
    bound.takes(workload.feeds)

    out = bound.step(Run(), 0, 0)
    bound.keep()

    new = out.parameters | out.optimizer_state
    assert new.keys() == held.keys()
    assert all(np.shares_memory(value, held[name]) for name, value in new.items())


def test_a_step_that_fails_or_is_not_kept_changes_no_value():
    workload, executable = training()
    bound, held = bound_to(executable, {**executable.initial_state(), **workload.parameters})
    bound.takes(workload.feeds)
    bound.step(Run(), 0, 0)
    bound.keep()
    before = {name: value.copy() for name, value in held.items()}

    bound.takes(workload.feeds)
    dropped = bound.step(Run(), 0, 1).loss.copy()
    bound.takes(workload.feeds | {"y": workload.feeds["y"] + 100})
    with pytest.raises(CoreError, match="outside 0 to 3"):
        bound.step(Run(), 0, 1)

    for name, value in held.items():
        np.testing.assert_array_equal(value, before[name])
    bound.takes(workload.feeds)
    assert bound.step(Run(), 0, 1).loss == dropped


def test_a_feed_that_the_update_reads_may_change_before_the_step_is_kept():
    s = Sketch()
    s.param("w", np.ones((4, 4)))
    s.feed("rate", 0.5)
    s.total(s.op("mul", s.op("square", "w"), "rate"))
    executable = compile_training(
        read(s.document), GradientQuery(loss="loss"), Optimizer("sgd", RATE), open_rates=True
    ).compiled()
    feeds = {v.name: np.asarray(0.25, v.type.dtype) for v in executable.inputs if v.role == "feed"}
    bound, held = bound_to(executable, {"w": np.ones((4, 4))})
    bound.takes(feeds)
    bound.step(Run(), 0, 0)
    for each in feeds.values():
        each[...] = 1e9
    bound.drop_feeds()

    bound.keep()

    np.testing.assert_allclose(held["w"], 1 - 0.25 * 2 * 0.25)  # w - rate * d(w w 0.25)/dw


def states(*writes, count=3, size=37):
    """(executable, start values) of a program that writes states. writes: (type, operands, state, attributes)."""
    s = Sketch()
    rng = np.random.default_rng(3)
    for i in range(count):
        s._leaf("state", f"s{i}", rng.uniform(-1, 1, (size, size)), "float64")
    for type, operands, name, attrs in writes:
        s.op(type, *operands, out=name, **attrs)
    executable = compile_forward(read(s.document), []).compiled()
    return executable, s.values


HAZARDS = {
    "its transpose": [("transpose", ["s0"], "t", {"axes": [1, 0]}), ("add", ["s0", "t"], "s0", {})],
    "each other": [("assign", ["s0"], "t", {}), ("tanh", ["s1"], "s0", {}), ("tanh", ["t"], "s1", {})],
    "in turn": [("add", ["s0", "s1"], "s0", {}), ("mul", ["s0", "s1"], "s1", {}), ("add", ["s1", "s2"], "s2", {})],
    "a sum of each row": [
        ("reduce_sum", ["s0"], "t", {"axes": [1], "keepdims": True}),
        ("add", ["s0", "t"], "s0", {}),
    ],
    "its rows in reverse": [("flip", ["s0"], "t", {"axes": [0]}), ("sub", ["s0", "t"], "s0", {})],
    "two transposes": [
        ("transpose", ["s0"], "t", {"axes": [1, 0]}),
        ("transpose", ["s1"], "u", {"axes": [1, 0]}),
        ("add", ["s0", "u"], "s0", {}),
        ("add", ["s1", "t"], "s1", {}),
    ],
}


@pytest.mark.parametrize("writes", HAZARDS.values(), ids=HAZARDS.keys())
def test_states_that_read_each_other_have_the_values_of_separate_steps(writes):
    compare(*states(*writes))


def compare(executable, start):
    """Three bound steps against those of the reference executor, which computes each value in a new array."""
    bound, _ = bound_to(executable, start)
    if bound is None:  # two states have the same value
        return
    wanted = dict(start)
    for number in range(3):
        bound.takes({})
        out = bound.step(Run(), 0, number)
        bound.keep()
        wanted |= executable.on(executable.backend).step(wanted, 0, number).states
        for name, value in out.states.items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-9, atol=1e-12)


def random_writes(rng):
    found, names = [], ["s0", "s1", "s2"]
    for i in range(int(rng.integers(2, 9))):
        kind = str(rng.choice(["add", "mul", "sub", "transpose", "tanh", "sin"] * 3 + ["cumsum", "flip"]))
        x, y = (str(each) for each in rng.choice(names, 2))
        attrs = {"transpose": {"axes": [1, 0]}, "cumsum": {"axis": 0}, "flip": {"axes": [0]}}.get(kind, {})
        out = str(rng.choice([f"t{i}", "s0", "s1", "s2"]))
        found.append((kind, [x, y] if kind in ("add", "mul", "sub") else [x], out, attrs))
        names = list(dict.fromkeys([*names, out]))
    return [*found, ("tanh", [str(rng.choice(names))], "s0", {})]


READ_BY_OTHERS = (66, 71, 159, 165, 420)
"""Seeds of programs whose values are wrong without the conditions of `core.plan.in_place`."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [*range(10), *READ_BY_OTHERS])
def test_states_of_random_programs_have_the_values_of_separate_steps(seed, monkeypatch):
    monkeypatch.setattr(updates, "SMALL", 1)  # the update may read values of any size
    compare(*states(*random_writes(np.random.default_rng(seed))))
