"""The op print: its messages, their number and order, and when it prints nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.errors import CoreError
from core.runtime.run import RunLimits
from core.wire import read
from tests.programs import Sketch, close, grads


def run(s: Sketch, limits: RunLimits | None = None, **query: Any):
    exe = compile_gradient(read(s.document), GradientQuery(**({"loss": "loss"} | query)))
    return exe.step(s.values, limits=limits)


def test_a_message_has_location_type_and_first_elements():
    s = Sketch()
    s.param("w", [[1.0, 2.0], [np.inf, 4.0]])
    s.op("print", "w", out="w2", message="the weights", summarize=3)
    s.total(s.op("square", "w2"))

    out = run(s)

    (message,) = out.messages
    assert (message.text, message.dtype, message.shape) == ("the weights", "float64", (2, 2))
    assert message.data == (1.0, 2.0, np.inf)
    assert (message.location.block, message.location.op) == (0, 0)
    assert out.unsaid == 0
    close(out.gradients["w"], 2 * s.values["w"])


def looping(memory: str = "store", **how: Any) -> Sketch:
    """h = tanh(h * w), five times, printed on each trip; a print after the loop, and a nested loop."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("assign", "w", out="h")
    with s.repeat(5):
        s.op("print", "h", out="h", message="h", **how)
        s.op("tanh", s.op("mul", "h", "w"), out="h")
        with s.repeat(2):
            s.op("print", "h", out="h", message="inner", **how)
            s.op("mul", "h", "h", out="h")
    s.op("print", "h", out="h", message="last")
    s.total("h")
    return s


@pytest.mark.parametrize("memory", ["store", "recompute", "sqrt", "binomial"])
def test_each_trip_prints_once_even_if_the_backward_pass_recomputes_it(memory):
    messages = run(looping(), loop_memory=memory).messages

    assert [m.text for m in messages] == [*["h", "inner", "inner"] * 5, "last"]
    h, seen = np.array([0.5, 0.7]), []
    for _ in range(5):
        seen.append(h)
        h = np.tanh(h * [0.5, 0.7])
        for _ in range(2):
            seen.append(h)
            h = h * h
    close([m.data for m in messages], [*seen, h], 1e-12)


def test_recomputation_between_checkpoints_prints_nothing_twice():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    h = "w"
    for i in range(6):
        h = s.op("print", s.op("tanh", s.op("mul", h, "w")), out=f"h{i}", message=str(i))
    s.total(h)

    assert [m.text for m in run(s, checkpoints=("h1", "h3")).messages] == list("012345")
    close(run(s, checkpoints=("h1", "h3")).gradients["w"], run(s).gradients["w"], 1e-12)


def test_only_the_branch_that_runs_prints():
    s = Sketch()
    s.param("w", [2.0])
    s.op("fill_constant", out="yes", shape=[], value=1.0, dtype="bool")
    s.op("assign", "w", out="h")
    sides = []
    for text in ("true", "false"):
        with s.block() as side:
            s.op("print", "h", out="h", message=text)
            s.op("square", "h", out="h")
        sides.append(side)
    s.branch("yes", *sides)
    s.total("h")

    assert [m.text for m in run(s).messages] == ["true"]


def test_print_does_not_change_the_gradient():
    with_print = looping()
    without = looping()
    for block in without.blocks:
        for op in block["ops"]:
            if op["type"] == "print":
                op |= {"type": "assign", "attrs": {}}

    close(grads(with_print)["w"], grads(without)["w"], 1e-15)


def test_first_n_and_the_limit_of_a_run_bound_the_messages():
    assert [m.text for m in run(looping(first_n=2)).messages] == ["h", "inner", "inner", "h", "last"]
    assert [m.text for m in run(looping(first_n=0)).messages] == ["last"]
    out = run(looping(), RunLimits(messages=4))
    assert (len(out.messages), out.unsaid) == (4, 12)


def test_an_unused_print_prints_nothing():
    s = Sketch()
    s.param("w", [2.0])
    s.op("print", "w", out="unread")
    s.total("w")

    assert run(s).messages == ()


@pytest.mark.parametrize("attrs", [{"message": "x" * 201}, {"summarize": -1}, {"summarize": 1001}])
def test_a_print_with_attributes_out_of_bounds_is_refused(attrs):
    s = Sketch()
    s.param("w", [2.0])
    s.total(s.op("print", "w", **attrs))
    with pytest.raises(CoreError) as error:
        run(s)
    assert "bad_attr" in (error.value.code, *(p.code for p in getattr(error.value, "problems", ())))
