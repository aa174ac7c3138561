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
from tests.core.wire.test_constructs import array_in_a_loop, cases, elman
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


@pytest.mark.parametrize("is_test", [False, True])
def test_derivatives_of_training_are_refused_in_a_test(is_test):
    s = Sketch()
    s.param("w", [2.0, 3.0])
    s.op("reduce_sum", s.op("dropout", s.op("square", "w"), p=0.5, is_test=is_test), out="total")
    document = json.loads(json.dumps(s.document))
    names = {"inputs": {"targets": ["total"], "inputs": ["w"]}, "outputs": {"out": ["slope"]}}
    document["blocks"][0]["ops"].append({"type": "gradients", **names})
    program = read(document)

    if is_test:
        assert compile_forward(clone(program, for_test=True), ["slope"]).step(s.values).fetched["slope"].tolist() == [
            4,
            6,
        ]
    else:
        with pytest.raises(ProgramError, match="has dropout, which behaves differently in a test"):
            clone(program, for_test=True)
        assert "slope" in clone(program).block.types
