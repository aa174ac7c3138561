"""Every op, with its examples and its backward pass, survives `write` and `read`."""

from __future__ import annotations

import json

import pytest

from core.backward.append_backward import gradients
from core.ir import Program, TensorType, Variable
from core.ir.exact import exact
from core.wire import read, write
from tests.laws.examples import CASES, OPS, block_for, examples_of

SENT = [c for c in CASES if not any(isinstance(x, list) for x in examples_of(OPS[c[0]])[c[1]].inputs)]


def program_of(name: str, i: int) -> Program:
    block = block_for(OPS[name], examples_of(OPS[name])[i])
    types = [(p, block.types[p]) for p in block.params]
    variables = tuple(Variable(p, t, "feed") for p, t in types if isinstance(t, TensorType))
    return Program(block, variables)


def round_trip(program: Program) -> Program:
    return read(json.loads(json.dumps(write(program), allow_nan=False)))


@pytest.mark.sampled(1, each="name")
@pytest.mark.parametrize(("name", "i"), SENT)
def test_an_op_survives_write_and_read(name: str, i: int) -> None:
    program = program_of(name, i)
    again = round_trip(program)
    assert [(op.type, exact(op.attrs)) for op in again.block.ops] == [
        (op.type, exact(op.attrs)) for op in program.block.ops
    ]


@pytest.mark.sampled(3, each="name")
@pytest.mark.parametrize(("name", "i"), [c for c in SENT if OPS[c[0]].differentiable])
def test_a_backward_pass_survives_write_and_read(name: str, i: int) -> None:
    program = round_trip(program_of(name, i))
    block = program.block
    written = [n for op in block.ops for n in op.outputs]
    targets = [n for n in written if block.types[n].is_float and isinstance(block.types[n], TensorType)]
    wrt = [p for p in block.params if block.types[p].is_float]
    if not targets or not wrt:
        pytest.skip("nothing to differentiate")
    backward = gradients(program, targets, wrt)
    assert exact(round_trip(backward.program)) == exact(backward.program)  # == takes 0.0 for -0.0
