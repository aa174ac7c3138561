"""Carried values whose shape changes from trip to trip, and the limit of trips, under every memory policy of a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.cost.budget import Budget
from core.ir.errors import ExecutionError, ProgramError
from core.ops.control.inner_blocks import LoopMemory
from core.runtime.reference import RunLimits
from core.wire import read
from tests.programs import Sketch, check, close, grads, step

POLICIES: tuple[LoopMemory, ...] = ("store", "recompute", "sqrt", "binomial")


def doubled(trips: int) -> Sketch:
    """h := [h, h] `trips` times from h = w, one number; the loss is the sum of h * h, that is 2^trips w^2."""
    s = Sketch()
    s.param("w", [0.3])
    s.op("assign", "w", out="h")
    with s.repeat(trips):
        s.op("concat", ["h", "h"], out="h", axis=0)
    s.total(s.op("mul", "h", "h"))
    return s


def scanned(steps: int, reverse: bool = False) -> Sketch:
    """The same growth as the state of a scan: h := [h, w x] for each x."""
    s = Sketch()
    s.param("w", [0.3])
    s.feed("xs", np.linspace(0.5, 1.5, steps).reshape(steps, 1))
    with s.block() as body:
        s.op("concat", ["state", s.op("mul", "w", "x")], out="state", axis=0)
    attrs = {"sub_block": body, "states": ["state"], "elements": ["x"], "outputs": [], "reverse": reverse}
    s.construct("scan", {"initial": ["w"], "sequences": ["xs"]}, {"final": ["h"]}, **attrs)
    s.total(s.op("mul", "h", "h"))
    return s


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("trips", [0, 1, 2, 3, 6])
def test_a_carried_value_that_doubles_has_its_gradient_under_every_policy(policy, trips):
    found = grads(doubled(trips), loop_memory=policy)

    close(found["w"], [2 * 0.3 * 2**trips], 1e-14)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_state_of_a_scan_that_grows_has_its_gradient_under_every_policy(policy, reverse, steps):
    xs = np.linspace(0.5, 1.5, steps)

    found = grads(scanned(steps, reverse), loop_memory=policy)

    close(found["w"], [2 * 0.3 * (1 + np.sum(xs * xs))], 1e-14)


@pytest.mark.parametrize("make", [doubled, scanned])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_gradient_of_the_gradient_of_a_growing_value_agrees_with_differences(policy, make):
    s = make(3)
    for op in s.blocks[0]["ops"]:
        if op["type"] in ("while", "scan"):
            op["attrs"]["memory"] = policy

    check(s)


def test_a_policy_chosen_for_a_budget_keeps_the_gradient_of_a_growing_value():
    def query(budget: int) -> GradientQuery:
        return GradientQuery(loss="loss", loop_memory=Budget(bytes=budget, trips=100))

    s = doubled(4)
    program = read(s.document)
    smallest = 2**20
    while True:  # the budget falls until nothing fits
        try:
            executable = compile_gradient(program, query(smallest - 1))
        except ProgramError as error:
            assert error.code == "budget_too_small"
            break
        assert executable.choice is not None
        smallest = min(smallest - 1, executable.choice.peak)
    executable = compile_gradient(program, query(smallest))

    assert executable.choice is not None
    assert "store" not in dict(executable.choice.policies).values()
    close(executable.step(s.values).gradients["w"], [2 * 0.3 * 2**4], 1e-14)


def repeated(policy: LoopMemory, trips: int) -> Sketch:
    """h := tanh(h w), `trips` times."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("assign", "w", out="h")
    with s.repeat(trips):
        s.op("tanh", s.op("mul", "h", "w"), out="h")
    s.blocks[0]["ops"][-1]["attrs"]["memory"] = policy
    s.total("h")
    return s


def sequence(policy: LoopMemory, trips: int) -> Sketch:
    """The same once for each element of a sequence."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.feed("xs", np.ones((trips, 2)))
    with s.block() as body:
        s.op("tanh", s.op("mul", s.op("mul", "state", "w"), "x"), out="state")
    attrs = {"sub_block": body, "states": ["state"], "elements": ["x"], "outputs": [], "memory": policy}
    s.construct("scan", {"initial": ["w"], "sequences": ["xs"]}, {"final": ["h"]}, **attrs)
    s.total("h")
    return s


def refusal(s: Sketch, limit: int, native: bool) -> tuple[Any, ...]:
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    if native:
        executable = executable.compiled()
    with pytest.raises(ExecutionError) as caught:
        executable.step(s.values, limits=RunLimits(max_trips=limit))
    return caught.value.code, caught.value.location


@pytest.mark.sampled(1)
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("make", [repeated, sequence])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_limit_of_trips_is_for_the_whole_loop_under_every_policy(policy, make, native):
    s = make(policy, 7)
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    if native:
        executable = executable.compiled()

    found = executable.step(s.values, limits=RunLimits(max_trips=7)).gradients["w"]

    close(found, executable.step(s.values).gradients["w"], 0)
    code, location = refusal(s, 6, native)
    assert (code, location) == refusal(make("store", 7), 6, native)
    assert code == "too_many_trips"


def closed(param: list[int], first: list[int]) -> dict[str, Any]:
    """A loop as a backward pass has it: h := [h, w] from v of the shape `first`; the body takes h of shape `param`."""

    def op(type: str, out: str, *names: str, **attrs: Any) -> dict[str, Any]:
        slots = {"x": list(names)} if type == "concat" else dict(zip(("x", "y"), ([n] for n in names), strict=False))
        return {"type": type, "inputs": slots, "outputs": {"out": [out]}, "attrs": attrs}

    leaves = [("v", "float64", first, "feed"), ("w", "float64", [-1], "feed"), ("n", "int64", [], "feed")]
    inside = [
        ("go", "bool", []),
        ("i", "int64", []),
        ("h", "float64", param),
        ("top", "int64", []),
        ("more_h", "float64", [-1]),
    ]
    loop = {"sub_block": 1, "carried": 3, "captured": 2, "condition": True}
    return {
        "form": "closed",
        "blocks": [
            {
                "idx": 0,
                "parent_idx": -1,
                "vars": [{"name": n, "dtype": d, "shape": s, "role": r} for n, d, s, r in leaves],
                "ops": [
                    op("fill_constant", "zero", shape=[], value=0, dtype="int64"),
                    op("less_than", "more", "zero", "n"),
                    {
                        "type": "loop",
                        "inputs": {"x": ["more", "zero", "v", "n", "w"]},
                        "outputs": {"out": ["stop", "trips", "last"]},
                        "attrs": loop,
                    },
                    op("reduce_sum", "loss", "last"),
                ],
            },
            {
                "idx": 1,
                "parent_idx": 0,
                "params": ["go", "i", "h", "top", "more_h"],
                "results": ["again", "next", "longer"],
                "vars": [{"name": n, "dtype": d, "shape": s} for n, d, s in inside],
                "ops": [
                    op("concat", "longer", "h", "more_h", axis=0),
                    op("increment", "next", "i", step=1),
                    op("less_than", "again", "next", "top"),
                ],
            },
        ],
    }


def test_a_body_that_changes_the_declared_size_of_a_carried_value_is_refused():
    with pytest.raises(ProgramError) as caught:
        read(closed([1], [1]))

    assert caught.value.code == "carry_type_changed"


def test_a_body_that_declares_a_known_size_for_a_value_of_unknown_size_is_refused():
    with pytest.raises(ProgramError) as caught:
        read(closed([1], [-1]))

    assert caught.value.code == "type_mismatch"


def test_a_carried_value_of_unknown_size_may_change_its_size():
    program = read(closed([-1], [1]))

    out = compile_gradient(program, GradientQuery(targets=("loss",), inputs=("w",))).step(
        {"v": np.array([0.7]), "w": np.array([0.3, 0.5]), "n": np.asarray(2)}
    )

    close(out.gradients["w"], [2.0, 2.0], 0)


def test_a_counter_of_trips_must_be_a_carried_whole_number():
    document = closed([-1], [1])
    document["blocks"][0]["ops"][2]["attrs"]["counter"] = 2

    with pytest.raises(ProgramError) as caught:
        read(document)

    assert caught.value.code == "bad_attr"


def test_a_counter_that_stands_still_does_not_lift_the_limit_of_trips():
    document = closed([-1], [1])
    loop, body = document["blocks"][0]["ops"][2], document["blocks"][1]
    loop["attrs"] |= {"counter": 2, "carried": 4}
    loop["inputs"]["x"].insert(2, "zero")
    loop["outputs"]["out"].insert(2, "still")
    body["params"].insert(2, "count")
    body["results"].insert(2, "count")
    body["vars"].append({"name": "count", "dtype": "int64", "shape": []})
    program = read(document)
    executable = compile_gradient(program, GradientQuery(targets=("loss",), inputs=("w",)))

    with pytest.raises(ExecutionError) as caught:
        executable.step({"v": np.array([0.7]), "w": np.array([0.3]), "n": np.asarray(5)}, limits=RunLimits(max_trips=4))

    assert caught.value.code == "too_many_trips"


def test_records_of_a_growing_loop_are_flat():
    s = doubled(5)

    out = step(s, fetch=["h"], loop_memory="binomial")

    np.testing.assert_array_equal(out.fetched["h"], np.full(32, 0.3))
