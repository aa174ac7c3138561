"""Case 34 of docs/semantics.md: the forward program of a program with a backward pass."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from core.backward.append_backward import Options, append_backward
from core.backward.forward_only import clone
from core.compiler.compile import compile_forward
from core.ir.errors import ProgramError
from core.wire import read, write
from tests.core.wire.constructs import array_in_a_loop, cases, elman
from tests.programs import Sketch


def trained() -> Sketch:
    s = Sketch()
    s.param("w", np.linspace(0.5, 0.7, 6).reshape(2, 3))
    s.feed("c", True, "bool")
    with s.repeat(3):
        with s.block() as yes:
            s.op("dropout", s.op("tanh", "w"), out="w", p=0.5)
        s.branch("c", yes, None)
    s.total("w")
    return s


def normal(document: dict[str, Any]) -> str:
    """The text of a program with sorted variables and without memory policies."""
    for block in document["blocks"]:
        block["vars"].sort(key=lambda v: v["name"])
        for op in block["ops"]:
            op.get("attrs", {}).pop("memory", None)
    return json.dumps(document, sort_keys=True)


@pytest.mark.parametrize("s", [trained(), cases(1), elman("all"), array_in_a_loop()])
@pytest.mark.parametrize("policy", ["store", "recompute"])
def test_34_a_clone_is_the_forward_program_byte_for_byte(s, policy):
    program = read(s.document)
    answer = append_backward(program, "loss", options=Options(loop_memory=policy)).program

    for each in (answer, read(write(answer))):
        assert normal(write(clone(each))) == normal(write(program))


def test_a_clone_for_test_draws_no_mask():
    program = clone(append_backward(read(trained().document), "loss").program, for_test=True)
    document = json.dumps(write(program))

    assert '"is_test": true' in document
    assert "GRAD" not in document


def test_a_backward_program_written_read_and_written_again_stays_the_same():
    for s in (trained(), elman("all")):
        document = write(append_backward(read(s.document), "loss").program)
        assert normal(write(read(document))) == normal(document)


def test_a_clone_keeps_an_op_that_only_writes_a_state():
    s = Sketch()
    s.param("w", 2.0)
    s._leaf("state", "seen", 0.0, "float32")
    s.op("increment", "seen", out="seen", step=1)
    s.op("square", "w", out="loss")
    assert [op.type for op in clone(read(s.document), for_test=True).block.ops] == ["increment", "square"]


def slope_of(type: str, **more: str) -> Sketch:
    """s = sum(y^2) with y = op(x), and g = ds/dx as part of the program."""
    s = Sketch()
    s.feed("x", np.random.default_rng(0).normal(size=(4, 3)))
    values = {"scale": 1.5, "bias": 0.3, "mean": 0.2, "variance": 2.0}
    for name in more:
        s._leaf("state" if name in ("mean", "variance") else "parameter", name, np.full(3, values[name]), "float64")
    inputs, outputs = (
        {"x": ["x"], **{n: [n] for n in more}},
        {"out": ["y"], **{f"{n}_out": [n] for n in more.values() if n}},
    )
    s.raw({"type": type, "inputs": inputs, "outputs": outputs})
    s.total(s.op("square", "y"), "s")
    s.raw({"type": "gradients", "inputs": {"targets": ["s"], "inputs": ["x"]}, "outputs": {"out": ["g"]}})
    return s


@pytest.mark.parametrize(
    "s", [slope_of("dropout"), slope_of("batch_norm", scale="", bias="", mean="mean", variance="variance")]
)
def test_a_derivative_inside_of_a_program_is_that_of_the_test_in_a_test(s: Sketch):
    program = read(s.document)
    step = compile_forward(clone(read(s.document, for_test=True), for_test=True), ["s", "g"])

    total = lambda x: float(step.step(s.values | {"x": x}).fetched["s"])
    moved = [s.values["x"] + h * np.ones((4, 3)) * 1e-6 for h in (1, -1)]
    slope = (total(moved[0]) - total(moved[1])) / 2e-6
    np.testing.assert_allclose(step.step(s.values).fetched["g"].sum(), slope, rtol=1e-6)
    for each in (program, read(write(program))):
        with pytest.raises(ProgramError, match="derivatives of ops that behave differently"):
            clone(each, for_test=True)
    assert clone(program).block.ops
