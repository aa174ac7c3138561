"""Hooks: ops on gradients during the backward pass, chosen by data."""

from __future__ import annotations

import numpy as np
import pytest

from core.autodiff.hooks import ACTIONS, Hook
from core.backward.append_backward import Options, append_backward
from core.ir.errors import ExecutionError, ProgramError
from core.wire import read
from tests.programs import Sketch, close, grads, step

EXAMPLES: dict[str, dict[str, float]] = {
    "clip_value": {"min": -0.5, "max": 0.25},
    "clip_norm": {"max_norm": 0.5},
    "scale": {"factor": -3.0},
    "check_finite": {},
    "record": {},
}
"""Action -> its settings, for tests of every action: over HTTP as in the library, on rows as on the dense table."""


def test_every_action_has_an_example():
    assert EXAMPLES.keys() == ACTIONS.keys()


def hook(match: dict[str, str], do: str, **more: object) -> Hook:
    return Hook.read({"match": match, "do": do, **more})


def three_readers() -> Sketch:
    """Contributions 2, 3 and 4 to the gradient of h = w + 0."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("scale", "w", out="h", bias=1.0)
    s.total(s.op("sum", [s.op("scale", "h", scale=k) for k in (2.0, 3.0, 4.0)]))
    return s


def test_32_a_clip_on_a_variable_with_three_contributions_acts_once_after_the_sum():
    clip = hook({"variable": "h"}, "clip_value", min=-5, max=5)
    b = append_backward(read(three_readers().document), "loss", options=Options(hooks=(clip,)))

    assert [op.type for op in b.program.block.ops].count("clip") == 1
    close(grads(three_readers(), hooks=(clip,))["w"], [5, 5])


def test_a_hook_on_each_contribution_acts_before_the_sum():
    clip = hook({"variable": "h"}, "clip_value", max=2.5, when="each_contribution")

    close(grads(three_readers(), hooks=(clip,))["w"], [7, 7])


def test_33_hooks_are_listed_in_the_order_of_the_ops_and_every_gradient_is_in_the_map():
    hooks = (
        hook({"op": "scale"}, "scale", factor=2.0),
        hook({"role": "parameter"}, "scale", factor=10.0),
        hook({"variable": "h"}, "scale", factor=0.5),
    )
    b = append_backward(read(three_readers().document), "loss", options=Options(hooks=hooks))

    assert [n for n, _ in b.hooked] == [0, 0, 0, 0, 2, 1]
    inserted = b.program.block.ops[len(read(three_readers().document).block.ops) :]
    assert len(b.forward_of) == len(inserted)
    made = {name for op in inserted for name in op.outputs}
    assert {n for n in made if n.endswith("@GRAD") or "@GRAD@" in n} <= b.grad_to_var.keys()
    close(grads(three_readers(), hooks=hooks)["w"], 10 * 2 * 0.5 * 2 * np.array([9, 9]))


def test_hooks_clip_by_norm_and_scale():
    s = three_readers()

    close(grads(s, hooks=(hook({"role": "parameter"}, "clip_norm", max_norm=1.0),))["w"], [0.5**0.5, 0.5**0.5])
    close(grads(s, hooks=(hook({"variable": "w"}, "scale", factor=1 / 9),))["w"], [1, 1])


def test_check_finite_names_the_place():
    s = Sketch()
    s.param("w", [0.0, 0.7])
    s.total(s.op("sqrt", "w", out="h"))

    with pytest.raises(ExecutionError) as error:
        grads(s, hooks=(hook({"variable": "w"}, "check_finite"),))
    assert error.value.code == "not_finite"
    assert error.value.location is not None and error.value.location.type == "sqrt"


def in_a_loop() -> Sketch:
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("x", [1.0, 2.0])
    s.op("assign", "x", out="h")
    with s.repeat(3):
        s.op("tanh", s.op("mul", "h", "w"), out="h")
    s.total("h")
    return s


@pytest.mark.parametrize("policy", ["store", "recompute", "sqrt", "binomial"])
def test_the_gradient_of_every_trip_can_be_recorded(policy):
    found = step(in_a_loop(), hooks=(hook({"variable": "1:h"}, "record"),), loop_memory=policy)

    w, h, states = np.array([0.5, 0.7]), np.array([1.0, 2.0]), []
    for _ in range(3):
        h = np.tanh(h * w)
        states.append(h)
    ct, wanted = np.ones(2), []
    for h in reversed(states):
        wanted.append(ct)
        ct = ct * (1 - h * h) * w
    close(found.recorded["1:h"], wanted[::-1])


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_records_a_gradient_for_each_element_in_their_order(reverse):
    s = Sketch()
    s.param("w", 1.0)
    s.feed("xs", np.array([2.0, 3.0, 5.0]))
    with s.block() as body:
        s.op("mul", "h", "e", out="h")
    given = {"initial": ["w"], "sequences": ["xs"]}
    attrs = {"sub_block": body, "states": ["h"], "elements": ["e"], "reverse": reverse}
    s.raw({"type": "scan", "inputs": given, "outputs": {"final": ["f"]}, "attrs": attrs})
    s.total("f")

    found = step(s, hooks=(hook({"variable": "1:h"}, "record"),))

    close(found.recorded["1:h"], [1.0, 2.0, 6.0] if reverse else [15.0, 5.0, 1.0])


def in_a_function(inside: bool) -> Sketch:
    """``sum(sin(w) ** 2)``, whose sine is in a function that is called in a function, or in block 0."""
    s = Sketch()
    s.param("w", np.array([0.5, 1.0]))
    if inside:
        parameter = {"name": "p", "dtype": "float64", "shape": [2], "role": "feed"}
        for name, op, attrs in (("f", "call", {"function": "g"}), ("g", "sin", {})):
            body = {"type": op, "inputs": {"x": ["p"]}, "outputs": {"out": ["q"]}, "attrs": attrs}
            block = {"idx": 0, "parent_idx": -1, "vars": [parameter], "ops": [body]}
            s.functions[name] = {"program": {"blocks": [block]}, "results": ["q"]}
        s.raw({"type": "call", "inputs": {"x": ["w"]}, "outputs": {"out": ["y"]}, "attrs": {"function": "f"}})
    else:
        s.op("sin", "w", out="y")
    s.total(s.op("square", "y"))
    return s


@pytest.mark.parametrize("name", sorted(EXAMPLES))
@pytest.mark.parametrize("when", ["after_accumulation", "each_contribution"])
def test_a_hook_on_an_op_acts_inside_functions(name, when):
    if name == "record":
        assert step(in_a_function(True), hooks=(hook({"op": "sin"}, name),)).recorded == {}
        return
    hooks = (hook({"op": "sin"}, name, when=when, **EXAMPLES[name]),)

    close(grads(in_a_function(True), hooks=hooks)["w"], grads(in_a_function(False), hooks=hooks)["w"])


def test_a_clip_inside_a_loop_acts_on_every_trip():
    found = grads(in_a_loop(), hooks=(hook({"variable": "1:h"}, "clip_value", min=-0.1, max=0.1),))

    w, h, states = np.array([0.5, 0.7]), np.array([1.0, 2.0]), []
    for _ in range(3):
        states.append(h)
        h = np.tanh(h * w)
    ct, dw = np.ones(2), np.zeros(2)
    for h in reversed(states):
        inner = np.clip(ct, -0.1, 0.1) * (1 - np.tanh(h * w) ** 2)
        dw, ct = dw + inner * h, inner * w
    close(found["w"], dw)
    close(found["x"], ct)


def test_a_gradient_recorded_in_a_branch_is_zero_where_it_did_not_run():
    for taken in (True, False):
        s = Sketch()
        s.param("w", [0.5, 0.7])
        s.feed("c", taken, "bool")
        with s.block() as yes:
            s.op("square", s.op("scale", "w", out="k", scale=3.0), out="y")
        with s.block() as no:
            s.op("scale", "w", out="y", scale=2.0)
        s.branch("c", yes, no)
        s.total("y")
        found = step(s, hooks=(hook({"variable": "1:k"}, "record"),))

        close(found.recorded["1:k"], 6 * np.array([0.5, 0.7]) if taken else [0, 0])


@pytest.mark.parametrize(
    "raw",
    [
        {"match": {"variable": "h"}, "do": "allreduce"},
        {"match": {"variable": "h", "op": "tanh"}, "do": "scale", "factor": 2},
        {"match": {"variable": "nothing"}, "do": "scale", "factor": 2},
        {"match": {"variable": "3:h"}, "do": "scale", "factor": 2},
        {"match": {"op": "tan"}, "do": "scale"},
        {"match": {"variable": "h"}, "do": "clip_norm"},
        {"match": {"variable": "h"}, "do": "clip_value"},
        {"match": {"variable": "h"}, "do": "clip_value", "min": 2, "max": 1},
        {"match": {"variable": "h"}, "do": "record", "when": "each_contribution"},
        {"match": {"variable": "h"}, "do": "scale", "factor": "2"},
        {"match": [], "do": "scale", "factor": 2},
        {"match": {"variable": 1}, "do": "scale", "factor": 2},
        {"do": "scale", "factor": 2},
        {"match": {"variable": "h"}, "do": "scale", "factor": 2, "colour": "red"},
    ],
)
def test_invalid_hooks_are_refused(raw):
    with pytest.raises(ProgramError) as error:
        grads(three_readers(), hooks=(Hook.read(raw),))
    assert error.value.code == "bad_hook"
