"""Memory budgets: the chosen plan fits when it runs, changes no gradient, and has the least work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import core.backward.append_backward as passes
from core.backward.append_backward import Options, append_backward
from core.compiler.compile import Budget, Executable, GradientQuery, Optimizer, compile_gradient, compile_training
from core.cost import count_work, predict_memory
from core.ir.errors import ProgramError
from core.wire import read
from tests.core.analysis.test_report import wide_chain
from tests.core.passes.loops import POLICIES, tanh_loop
from tests.core.wire.constructs import elman
from tests.laws.random_programs import ALL, leaves
from tests.programs import Sketch, close, grads, traced_peak
from tests.strategies import programs

TRIPS = 200
SIZE = 4000
TOLERANCE = 1.1
"""Ratio of measured to predicted peak. The prediction omits temporary memory of kernels and Python's objects."""


def two_loops() -> Sketch:
    """A loop that carries a wide value, then a loop that carries a narrow value and contains another loop."""
    s = Sketch()
    s.param("w", np.linspace(0.5, 0.7, SIZE))
    s.op("sin", "w", out="h")
    with s.repeat(TRIPS):
        s.op("scale", s.op("tanh", s.op("mul", "h", "w")), out="h", scale=1.5)
    s.op("sin", s.op("slice", "h", axes=[0], starts=[0], ends=[SIZE // 20]), out="k")
    with s.repeat(TRIPS):
        with s.repeat(3):
            s.op("sin", s.op("mul", "k", s.op("cos", "k")), out="k")
        s.op("scale", "k", out="k", scale=1.1)
    s.op("add", s.op("reduce_sum", "h"), s.op("reduce_sum", "k"), out="loss")
    return s


def choice(s: Sketch, limit: int, trips: int = TRIPS, **more: object):
    budget = Budget(limit, trips)
    query = GradientQuery(loss="loss", **({"loop_memory": budget} if not more else dict.fromkeys(more, budget)))  # type: ignore[arg-type]
    exe = compile_gradient(read(s.document), query)
    assert exe.choice is not None
    return exe


def stored_peak(s: Sketch, trips: int = TRIPS) -> int:
    return predict_memory(compile_gradient(read(s.document), GradientQuery(loss="loss")).interpreter.block, trips).peak


def smallest(s: Sketch, **more: object) -> int:
    with pytest.raises(ProgramError) as error:
        choice(s, 1, **more)
    assert error.value.code == "budget_too_small"
    return int(error.value.message.split()[-2])


PROGRAMS = {"one": tanh_loop(TRIPS, SIZE), "two": two_loops(), "scan": elman("all", False, "scan")}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("share", [1.0, 0.6, 0.3, 0.1, 0.0])
def test_a_chosen_plan_stays_within_its_budget_and_changes_no_gradient(name, share):
    s = PROGRAMS[name]
    least, most = smallest(s), stored_peak(s)
    limit = round(least + share * (most - least))

    exe = choice(s, limit)

    assert exe.choice.peak <= limit
    assert exe.choice.peak == predict_memory(exe.interpreter.block, TRIPS).peak
    if name != "scan":  # of three trips, where Python's own objects weigh more than the arrays
        assert traced_peak(s, loop_memory=Budget(limit, TRIPS)) < TOLERANCE * limit
    wanted = grads(s)
    for found, value in exe.step(s.values).gradients.items():
        close(value, wanted[found], 1e-13)


def nest() -> Sketch:
    s = Sketch()
    s.param("w", np.linspace(0.5, 0.7, 50))
    s.op("sin", "w", out="h")
    with s.repeat(5):
        s.op("tanh", s.op("mul", "h", "w"), out="h")
        with s.repeat(5):
            s.op("sin", s.op("mul", "h", s.op("cos", "h")), out="h")
    s.total("h")
    return s


@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.3, 0.7, 0.99, 1.0])
def test_no_plan_that_fits_has_less_work_than_the_chosen_one(share):
    """The reference compiles the program with every combination of policies of its two nested loops."""
    peaks = {}
    for outer in POLICIES:
        for inner in POLICIES:
            s = nest()
            for block, policy in ((0, outer), (1, inner)):
                next(op for op in s.blocks[block]["ops"] if op["type"] == "while")["attrs"]["memory"] = policy
            step = compile_gradient(read(s.document), GradientQuery(loss="loss")).interpreter.block
            peaks[outer, inner] = predict_memory(step, 30).peak, sum(count_work(step, 30).values())
    least, most = min(peaks.values())[0], peaks["store", "store"][0]
    limit = round(least + share * (most - least))
    fitting = {policies: work for policies, (peak, work) in peaks.items() if peak <= limit}

    exe = choice(nest(), limit, 30)

    chosen = tuple(policy for _, policy in exe.choice.policies)
    assert peaks[chosen][0] == exe.choice.peak <= limit
    assert fitting[chosen] == min(fitting.values())
    assert exe.choice.extra == fitting[chosen] - peaks["store", "store"][1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("which", ["loop_memory", "checkpoints"])
def test_a_larger_budget_never_recomputes_more(which):
    s = two_loops() if which == "loop_memory" else wide_chain()
    least, most = smallest(s, **{which: True}), stored_peak(s)

    extra = [choice(s, round(limit), **{which: True}).choice.extra for limit in np.linspace(least, most, 9)]

    assert extra == sorted(extra, reverse=True)
    assert extra[0] > 0
    assert extra[-1] == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", [1.0, 0.7, 0.4, 0.0])
def test_a_budget_for_checkpoints_cuts_only_the_necessary_part_of_the_program(share):
    s = wide_chain()
    least, most = smallest(s, checkpoints=True), stored_peak(s)
    limit = round(least + share * (most - least))

    exe = choice(s, limit, checkpoints=True)

    assert exe.choice.peak <= limit
    assert traced_peak(s, checkpoints=Budget(limit, TRIPS)) < TOLERANCE * limit
    assert bool(exe.choice.checkpoints) == (share < 1)
    for name, value in exe.step(s.values).gradients.items():
        assert value.tobytes() == grads(s)[name].tobytes()


def test_all_cuts_of_a_budget_share_one_walk_through_the_forward_ops(monkeypatch: pytest.MonkeyPatch):
    walks, cuts = [], []
    walk, backward = passes._walk, passes._backward
    monkeypatch.setattr(passes, "_walk", lambda *given: walks.append(given) or walk(*given))
    monkeypatch.setattr(passes, "_backward", lambda *given: cuts.append(given) or backward(*given))

    smallest(wide_chain(), checkpoints=True)

    assert len(walks) == 1
    assert len(cuts) > 10


def test_one_budget_may_cover_loops_and_checkpoints():
    s = Sketch()
    s.param("w", np.linspace(0.5, 0.7, SIZE))
    h = "w"
    for _ in range(30):
        h = s.op("sin", s.op("mul", h, "w"))
    s.op("assign", h, out="h")
    with s.repeat(30):
        s.op("sin", s.op("mul", "h", "w"), out="h")
    s.total("h")
    both = {"loop_memory": True, "checkpoints": True}
    least = smallest(s, **both)
    assert least < min(smallest(s), smallest(s, checkpoints=True))

    exe = choice(s, least, **both)

    assert exe.choice.peak == least
    assert exe.choice.checkpoints
    assert {policy for _, policy in exe.choice.policies} != {"store"}
    wanted = grads(s)
    close(exe.step(s.values).gradients["w"], wanted["w"], 1e-13)


def test_a_training_step_with_its_update_stays_within_its_budget():
    s = tanh_loop(TRIPS, SIZE)
    program, adam = read(s.document), Optimizer("adam", {"learning_rate": 0.1})
    stored = compile_training(program, GradientQuery(loss="loss"), adam)
    limit = predict_memory(stored.interpreter.block, TRIPS).peak // 3

    exe = compile_training(program, GradientQuery(loss="loss", loop_memory=Budget(limit, TRIPS)), adam)

    assert exe.choice.peak == predict_memory(exe.interpreter.block, TRIPS).peak <= limit
    zeros = exe.initial_state()
    wanted = stored.step(s.values | zeros).parameters
    for name, value in exe.step(s.values | zeros).parameters.items():
        close(value, wanted[name], 1e-12)


def test_a_budget_counts_hooks_and_loops_with_their_own_policy():
    from tests.core.autodiff.test_hooks import hook

    s = two_loops()
    s.blocks[0]["ops"][-4]["attrs"]["memory"] = "recompute"
    assert s.blocks[0]["ops"][-4]["type"] == "while"
    query = {"loss": "loss", "hooks": (hook({"variable": "1:h"}, "scale", factor=2.0),)}
    stored = compile_gradient(read(s.document), GradientQuery(**query))
    limit = predict_memory(stored.interpreter.block, TRIPS).peak // 4

    exe = compile_gradient(read(s.document), GradientQuery(**query, loop_memory=Budget(limit, TRIPS)))

    assert exe.choice.peak == predict_memory(exe.interpreter.block, TRIPS).peak <= limit
    assert (0, len(s.blocks[0]["ops"]) - 4) not in dict(exe.choice.policies)
    wanted = stored.step(s.values).gradients["w"]
    close(exe.step(s.values).gradients["w"], wanted, 1e-13)


def test_the_result_lists_the_chosen_policy_of_each_loop():
    options = Options(loop_memory=Budget(stored_peak(two_loops()) // 4, TRIPS))
    backward = append_backward(read(two_loops().document), "loss", options=options)

    told = backward.as_document()["memory"]

    assert told["predicted_peak"] <= told["bytes"] == options.loop_memory.bytes
    assert told["loops"][0]["block"] == 0
    assert len(told["loops"]) == 3
    assert told["extra_flops"] > 0
    assert told["checkpoints"] == []


def test_each_of_many_loops_gets_its_own_policy():
    s = Sketch()
    s.param("w", np.linspace(0.5, 0.7, 100))
    s.op("sin", "w", out="h")
    for _ in range(12):
        with s.repeat(5):
            s.op("tanh", s.op("mul", "h", "w"), out="h")
    s.total("h")
    least, most = smallest(s), stored_peak(s)

    exe = choice(s, (least + most) // 2)

    assert exe.choice.peak <= (least + most) // 2
    assert len({policy for _, policy in exe.choice.policies}) > 1


@pytest.mark.parametrize(
    "raw", [{}, {"bytes": 0}, {"bytes": 1.5}, {"bytes": True}, {"bytes": 9, "trips": -1}, {"byte": 9}]
)
def test_invalid_budgets_are_refused(raw):
    with pytest.raises(ProgramError) as error:
        Budget.read(raw)
    assert error.value.code == "bad_query"


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(document=programs(), seed=st.integers(0, 2**16), both=st.booleans())
def test_random_programs_at_their_smallest_peak_keep_their_gradients(document, seed, both):
    program, values = read(document), leaves(seed)
    query = {"targets": ("loss",), **ALL}
    stored = compile_gradient(program, GradientQuery(**query))
    wanted = stored.step(values).gradients

    def within(limit: int) -> Executable:
        budget = Budget(limit, 20)
        return compile_gradient(program, GradientQuery(**query, loop_memory=budget, checkpoints=budget if both else ()))

    with pytest.raises(ProgramError) as error:
        within(1)
    smallest = int(error.value.message.split()[-2])
    exe = within(smallest)

    assert exe.choice.peak == predict_memory(exe.interpreter.block, 20).peak == smallest
    for name, value in exe.step(values).gradients.items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-11, atol=1e-13)
