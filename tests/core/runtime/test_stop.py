"""A deadline stops machine code in every loop."""

from __future__ import annotations

import time

import numpy as np
import pytest

from core.compiler.compile import compile_forward
from core.ir.errors import ExecutionError
from core.runtime.run import RunLimits
from core.wire import read
from examples.models import block, constant, feed, op


def long_loop(in_a_branch: bool) -> dict:
    """A `while` of 10^12 trips, as it is or on one side of an `if_else`."""
    variables = [feed("x", [4]), feed("go", [], "bool")]
    loop = [
        constant("i", 0, [], "int64"),
        constant("n", 10**12, [], "int64"),
        op("less_than", "more", x="i", y="n"),
        {"type": "while", "inputs": {"condition": ["more"]}, "outputs": {}, "attrs": {"sub_block": 1}},
    ]
    body = [
        op("tanh", "h", x="h"),
        op("increment", "i", x="i", attrs={"step": 1}),
        op("less_than", "more", x="i", y="n"),
    ]
    start, end = op("assign", "h", x="x"), op("reduce_sum", "loss", x="h")
    if not in_a_branch:
        return {"blocks": [block([start, *loop, end], variables), block(body, idx=1, parent_idx=0)]}
    choice = {
        "type": "if_else",
        "inputs": {"condition": ["go"]},
        "outputs": {},
        "attrs": {"true_block": 2, "false_block": 3},
    }
    blocks = [
        block([start, choice, end], variables),
        block(body, idx=1, parent_idx=2),
        block(loop, idx=2, parent_idx=0),
        block([op("abs", "h", x="h")], idx=3, parent_idx=0),
    ]
    return {"blocks": blocks}


@pytest.mark.parametrize("in_a_branch", [False, True])
def test_a_deadline_ends_a_loop(in_a_branch):
    executable = compile_forward(read(long_loop(in_a_branch)), ["loss"]).compiled()
    values = {"x": np.ones(4, "float32"), "go": np.asarray(True)}
    values = {v.name: values[v.name] for v in executable.inputs}
    limits = RunLimits(max_trips=10**13, max_ops=10**13, deadline=time.monotonic() + 0.1)

    with pytest.raises(ExecutionError, match="the deadline passed"):
        executable.step(values, limits=limits)
