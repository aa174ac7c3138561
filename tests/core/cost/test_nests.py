"""Estimated memory and work of a step under a memory policy, against the step compiled under that policy."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings

from core.analysis import analyse
from core.backward.append_backward import append_backward
from core.compiler.compile import GradientQuery, compile_gradient
from core.cost import predict_memory
from core.cost.step import Step
from core.runtime.outputs import gradient_step
from core.wire import read
from tests.core.autodiff.test_hooks import in_a_loop
from tests.core.passes.loops import POLICIES, tanh_loop
from tests.core.wire.constructs import array_in_a_loop, cases, elman
from tests.paths import ROOT
from tests.programs import Sketch
from tests.strategies import programs

TRIPS = 30
EXAMPLES = ROOT / "examples" / "programs"


def nested() -> Sketch:
    """Two loops with a loop inside, one of them in a branch, among straight-line ops with residuals."""
    s = Sketch()
    s.param("w", [0.5, 0.7, 0.1])
    s.feed("c", True, "bool")
    s.op("sin", "w", out="h")
    for _ in range(2):
        with s.block() as yes, s.repeat(4):
            s.op("tanh", s.op("mul", "h", "w"), out="h")
            with s.repeat(3):
                s.op("sin", s.op("mul", "h", s.op("cos", "h")), out="h")
        s.branch("c", yes, None)
        with s.repeat(2):
            s.op("tanh", s.op("mul", "h", "w"), out="h")
        s.op("square", s.op("sin", "h"), out="h")
    s.total("h")
    return s


def rows_of_a_table() -> Sketch:
    """A loop over the rows of a table. Its gradient is a loop that records rows, and ops that join them."""
    s = Sketch()
    s.param("table", [[0.5, 0.7], [0.1, 0.2], [0.3, 0.4]])
    s.feed("ids", [2, 0], "int64")
    s.op("fill_constant", shape=[2], value=0.5, dtype="float64", out="h")
    with s.repeat(4):
        row = s.op("reduce_sum", s.op("embedding", "table", "ids", is_sparse=True), axes=[0])
        s.op("tanh", s.op("mul", s.op("sin", s.op("mul", "h", row)), s.op("cos", row)), out="h")
    s.total("h")
    return s


def rnn() -> object:
    return json.loads((EXAMPLES / "rnn_text.json").read_text())["program"]


DOCUMENTS = {
    "while": tanh_loop(3, 50).document,
    "nested": nested().document,
    "scan": elman("all", False, "scan").document,
    "reversed": elman("all", True, "scan").document,
    "recurrent": elman("last").document,
    "array": array_in_a_loop().document,
    "captured": in_a_loop().document,
    "branches": cases(1).document,
    "rows": rows_of_a_table().document,
    "rnn": rnn(),
}


def compiled_peaks(document: object, **query: tuple[str, ...]) -> dict[str, int]:
    program = read(document)
    query = query or {"loss": "loss"}
    queries = {policy: GradientQuery(**query, loop_memory=policy) for policy in POLICIES}
    return {
        policy: predict_memory(compile_gradient(program, q).interpreter.block, TRIPS).peak
        for policy, q in queries.items()
    }


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_estimated_peak_of_each_policy_equals_the_peak_of_the_compiled_step(name):
    report = analyse(read(DOCUMENTS[name]), GradientQuery(loss="loss"), trips=TRIPS)

    assert report["memory"]["by_loop_memory"] == compiled_peaks(DOCUMENTS[name])


def test_estimates_count_a_gradient_whose_forward_loop_is_dead():
    s = Sketch()
    s.param("h0", [0.5, 0.7])
    s.feed("xs", [[1.0, 2.0]] * 5)
    with s.block() as body:
        s.op("scale", "h", out="h", scale=0.5)
    s.construct(
        "scan",
        {"initial": "h0", "sequences": "xs"},
        {"final": "h", "stacked": []},
        sub_block=body,
        states=["h"],
        elements=["x"],
        outputs=[],
    )
    s.total("h")
    query = {"targets": ("loss",), "inputs": ("h0",)}  # the step returns the gradient, but not the loss

    report = analyse(read(s.document), GradientQuery(**query), trips=TRIPS)

    found = report["memory"]["by_loop_memory"]
    assert found == compiled_peaks(s.document, **query)
    assert found["sqrt"] != found["store"]


@pytest.mark.parametrize("policy", POLICIES)
def test_each_loop_may_have_its_own_policy(policy):
    s = nested()
    program = read(s.document)
    backward = append_backward(program, "loss")
    whole = Step(backward.forward, backward.rule_calls, gradient_step(backward, GradientQuery(loss="loss")), TRIPS)
    assert whole.nests is not None
    assert [len(n.loops) for n in whole.nests] == [2, 1, 2, 1]

    found = whole.peak([whole.variant(n, (policy, "sqrt")[: len(n.loops)]) for n in whole.nests])

    outer = {n.loops[0] for n in whole.nests}
    for block in s.blocks:
        for i, op in enumerate(block["ops"]):
            if op["type"] == "while":
                op["attrs"]["memory"] = policy if (None, block["idx"], i) in outer else "sqrt"
    wanted = predict_memory(
        compile_gradient(read(s.document), GradientQuery(loss="loss")).interpreter.block, TRIPS
    ).peak
    assert found == wanted


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(document=programs())
def test_estimates_of_random_programs_equal_their_compiled_steps(document):
    for block in document["blocks"]:
        for op in block["ops"]:
            op.get("attrs", {}).pop("memory", None)
    program = read(document)
    query = {"targets": ("loss",), "inputs": tuple(v.name for v in program.variables if v.type.is_float)}
    report = analyse(program, GradientQuery(**query), trips=TRIPS)

    assert report["memory"]["by_loop_memory"] == compiled_peaks(document, **query)
