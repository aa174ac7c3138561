"""What is told about the machine code of a program before it runs: which ops it does, and why not the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.analysis import analyse
from core.compiler.compile import GradientQuery, compile_gradient
from core.ir import Block, inner_blocks
from core.wire import read
from tests.core.passes.test_memory_policies import tanh_loop
from tests.programs import Sketch

LOSS = GradientQuery(loss="loss")


def told(s: Sketch, **given: Any) -> Any:
    return analyse(read(s.document), LOSS, **given)["machine_code"]


def count(block: Block) -> int:
    """The ops of `block` and of all blocks inside."""
    return sum(1 + sum(count(inner) for _, inner in inner_blocks(op)) for op in block.ops)


def sorting_between() -> Sketch:
    """A product, a sort that has no machine code, another product."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("v", [0.5, 0.7])
    s.op("mul", "w", "v", out="wv")
    s.op("sort", "wv", out=["sorted", "order"])
    s.total(s.op("mul", "sorted", "v"))
    return s


def sorting_inside() -> Sketch:
    """A sort in a loop."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("assign", "w", out="h")
    with s.repeat(3):
        s.op("sort", s.op("mul", "h", "w"), out=["h", "order"])
    s.total("h")
    return s


def rounding_inside() -> Sketch:
    """A loop that rounds to float16, in a loop: neither is machine code, nor is their gradient."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("assign", "w", out="h")
    with s.repeat(3), s.repeat(2):
        half = s.op("cast", s.op("mul", "h", "w"), dtype="float16")
        s.op("cast", half, out="h", dtype="float64")
    s.total("h")
    return s


def collecting() -> Sketch:
    """A tensor array that a loop appends to."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("create_array", out="kept", shape=[2], dtype="float64")
    s.const(0, dtype="int64", out="at")
    with s.repeat(3):
        s.op("array_write", s.op("sin", "w"), "at", "kept", out="kept")
        s.op("increment", "at", out="at", step=1)
    s.total(s.op("array_stack", "kept"))
    return s


def dividing() -> Sketch:
    """A kernel that uses a function of numpy without a translation."""
    s = Sketch()
    s.param("w", [0.5, 7.2])
    s.param("v", [0.5, 0.7])
    s.total(s.op("mul", s.op("floor_div", "w", "v"), "v"))
    return s


def selecting() -> Sketch:
    """As many elements as are positive."""
    s = Sketch()
    s.param("w", [0.5, -0.7])
    positive = s.op("greater_than", "w", s.const(0.0))
    s.total(s.op("square", s.op("masked_select", "w", positive)))
    return s


def emptying() -> Sketch:
    s = Sketch()
    s.param("w", [0.5, -0.7])
    s.feed("x", np.zeros((0, 2)))
    s.total(s.op("mul", "x", "w"))
    return s


def rounding() -> Sketch:
    s = Sketch()
    s.param("w", [0.5, -0.7])
    s.total(s.op("cast", s.op("cast", "w", dtype="float16"), dtype="float64"))
    return s


def test_what_is_machine_code_is_told_and_why_the_rest_is_not():
    report = told(sorting_between())
    machine = compile_gradient(read(sorting_between().document), LOSS).compiled().machine
    regions = [each.op.attrs["region"] for each in machine.calls if each.op.type == "native"]

    assert [each["arena_bytes"] for each in report["regions"]] == [region.arena_bytes for region in regions]
    assert len(regions) == 1  # from which the sort is called
    (sort, *_) = report["interpreted"]  # as ops of the core
    assert sort["of"] == {"block": 0, "op": 1, "type": "sort", "backward": False}
    assert (sort["type"], sort["count"]) == ("argsort", 1)
    assert "argsort" in sort["reason"]
    counts = report["ops"]
    assert counts["compiled"] + counts["interpreted"] == len(regions[0].plan.block.ops)
    assert counts["compiled"] == sum(each["ops"] for each in report["regions"])
    assert counts["interpreted"] == sum(each["ops"] for each in report["interpreted"])


def test_a_loop_has_its_stacks_counted_and_every_op_compiled():
    report = told(tanh_loop(3))

    assert report["interpreted"] == []
    assert [each["stacks"] > 0 for each in report["regions"]] == [True]


def test_where_nothing_is_compiled_no_machine_code_is_told():
    assert told(tanh_loop(3), compiled=False) is None


@pytest.mark.parametrize("s", [tanh_loop(3), sorting_inside(), rounding_inside(), collecting()])
def test_every_op_is_counted_those_inside_loops_too(s):
    counts = told(s)["ops"]

    assert counts["compiled"] + counts["interpreted"] == count(
        compile_gradient(read(s.document), LOSS).interpreter.block
    )


def test_a_loop_that_is_no_machine_code_says_which_op_in_it_is_none():
    forward, backward = told(rounding_inside())["interpreted"]

    assert (forward["type"], forward["of"]["type"], forward["count"]) == ("loop", "while", 1)
    assert forward["ops"] > 5  # with those inside
    assert forward["reason"] == "block 2, op 1 (cast): no machine code for float16"
    assert (backward["type"], backward["of"]["backward"]) == ("loop", True)
    assert backward["reason"] == "shares a stack with an op that has no machine code"


@pytest.mark.parametrize(
    ("s", "type", "reason"),
    [
        (rounding(), "cast", "no machine code for float16"),
        (emptying(), "mul", "empty arrays"),
        (sorting_between(), "argsort", "argsort has no machine code"),
        (dividing(), "floor_div", "has no machine code: no translation of numpy.floor_divide"),
        (selecting(), "nonzero", "is known only when it runs"),
        (collecting(), "create_array", "tensor arrays that grow"),
        (collecting(), "loop", "shares a stack with an op that has no machine code"),
    ],
)
def test_why_an_op_is_no_machine_code(s, type, reason):
    first = next(each for each in told(s)["interpreted"] if each["type"] == type)

    assert reason in first["reason"]


def open_line(batch: list[int]) -> Sketch:
    s = Sketch()
    s.param("w", [0.5, -0.7])
    s.feed("x", np.zeros((*batch, 2)))
    s.blocks[0]["vars"][-1]["shape"][0] = -1
    return s


def test_open_sizes_count_as_1():
    s = open_line([4])
    s.total(s.op("sin", s.op("mul", "x", "w")))

    assert told(s)["interpreted"] == []  # a step knows its sizes
    assert told(s) == told(s, shapes={"x": [1, 2]})


def test_of_a_program_that_takes_no_size_of_1_no_machine_code_is_told_without_shapes():
    s = open_line([4])
    s.total(s.op("mul", s.op("reshape", "x", shape=[4, 2]), "w"))

    assert told(s) is None
    assert told(s, shapes={"x": [4, 2]})["interpreted"] == []


def test_very_large_steps_are_told_about_too():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    h = "w"
    for _ in range(1000):
        h = s.op("sin", s.op("mul", h, "w"))
    s.total(h)

    assert told(s)["ops"]["compiled"] > 4000
