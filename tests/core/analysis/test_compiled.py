"""The report on the machine code of a program before it runs: its regions, and the reasons for other ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.analysis import analyse
from core.compiler.compile import GradientQuery, compile_gradient
from core.ir import Block, inner_blocks
from core.wire import read
from tests.core.passes.loops import tanh_loop
from tests.programs import Sketch

LOSS = GradientQuery(loss="loss")


def report_of(s: Sketch, **given: Any) -> Any:
    return analyse(read(s.document), LOSS, **given)["machine_code"]


def count(block: Block) -> int:
    """The number of ops of `block` and of all its inner blocks."""
    return sum(1 + sum(count(inner) for _, inner in inner_blocks(op)) for op in block.ops)


def dilated() -> Sketch:
    s = Sketch()
    x = s.param("x", np.arange(12.0).reshape(1, 2, 6))
    s.total(s.op("max_pool1d", x, kernel_size=[2], dilations=[2]))
    return s


def printing_between() -> Sketch:
    """A product, an op without machine code, and another product."""
    s = Sketch()
    s.param("w", [[0.5, 0.7], [0.1, 0.9]])
    s.param("v", [[0.5, 0.7], [0.2, 0.3]])
    s.op("mul", "w", "v", out="wv")
    s.op("print", "wv", out="same")
    s.total(s.op("mul", "same", "v"))
    return s


def printing_inside() -> Sketch:
    """An op without machine code in a loop."""
    s = Sketch()
    s.param("w", [[0.5, 0.7], [0.1, 0.9]])
    s.op("assign", "w", out="h")
    with s.repeat(3):
        s.op("print", s.op("mul", "h", "w"), out="h")
    s.total("h")
    return s


def lengthening_inside() -> Sketch:
    """A loop inside whose array is longer after each trip: no loop is machine code, nor is its gradient."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("assign", "w", out="h")
    with s.repeat(3):
        s.op("assign", "w", out="long")
        with s.repeat(2):
            s.op("concat", [s.op("sin", "long"), s.op("mul", "h", "w")], axis=0, out="long")
        s.op("add", s.op("sin", "h"), s.op("reduce_sum", "long"), out="h")
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


def sections() -> Sketch:
    """Runs of a tensor array whose elements have as many rows as data tell."""
    s = Sketch()
    s.param("w", [[0.5], [-0.7], [0.25]])
    s.feed("lengths", [2, 1], "int64")
    runs = s.op("array_chunks", s.op("sequence_to_array", "w", "lengths"))
    s.total(s.op("square", s.op("array_concat", s.op("array_flatten", runs))))
    return s


def repeating() -> Sketch:
    """As many elements as `counts` tells."""
    s = Sketch()
    s.param("w", [0.5, -0.7])
    s.feed("counts", [2, 3], "int64")
    s.total(s.op("square", s.op("repeat", "w", "counts")))
    return s


def test_the_report_lists_regions_of_machine_code_and_reasons_for_the_other_ops():
    report = report_of(printing_between())
    machine = compile_gradient(read(printing_between().document), LOSS).compiled().machine
    regions = [each.op.attrs["region"] for each in machine.calls if each.op.type == "native"]

    assert [each["arena_bytes"] for each in report["regions"]] == [region.arena_bytes for region in regions]
    assert len(regions) == 1  # the region calls the op
    (called,) = report["interpreted"]
    assert called["of"] == {"block": 0, "op": 1, "type": "print", "backward": False}
    assert (called["type"], called["count"]) == ("print", 1)
    assert "print" in called["reason"]
    counts = report["ops"]
    assert counts["compiled"] + counts["interpreted"] == len(regions[0].plan.block.ops)
    assert counts["compiled"] == sum(each["ops"] for each in report["regions"])
    assert counts["interpreted"] == sum(each["ops"] for each in report["interpreted"])


def test_the_stacks_of_a_loop_are_counted_and_all_its_ops_are_compiled():
    report = report_of(tanh_loop(3))

    assert report["interpreted"] == []
    assert [each["stacks"] > 0 for each in report["regions"]] == [True]


def test_an_interpreted_step_reports_no_machine_code():
    assert report_of(tanh_loop(3), compiled=False) is None


@pytest.mark.parametrize("s", [tanh_loop(3), printing_inside(), lengthening_inside(), collecting()])
def test_every_op_is_counted_including_ops_in_loops(s):
    counts = report_of(s)["ops"]

    assert counts["compiled"] + counts["interpreted"] == count(
        compile_gradient(read(s.document), LOSS).interpreter.block
    )


def test_an_uncompiled_loop_names_its_first_uncompiled_op():
    forward, backward = report_of(lengthening_inside())["interpreted"]

    assert (forward["type"], forward["of"]["type"], forward["count"]) == ("loop", "while", 1)
    assert forward["ops"] > 5  # inner ops included
    assert forward["reason"].startswith("block 1, op ")
    assert forward["reason"].endswith("is known only when it runs")
    assert (backward["type"], backward["of"]["backward"]) == ("loop", True)
    assert backward["reason"] == "shares a stack with an op that has no machine code"


@pytest.mark.parametrize(
    ("s", "type", "reason"),
    [
        (printing_between(), "print", "print has no machine code"),
        (sections(), "array_chunks", "tensor arrays that grow"),
        (sections(), "square", "is known only when it runs"),
        (sections(), "array_fill", "shares a stack with an op that has no machine code"),
        (dilated(), "max_pool", "elements of a window lie apart, by dilations above 1"),
    ],
)
def test_an_uncompiled_op_is_listed_with_its_reason(s, type, reason):
    first = next(each for each in report_of(s)["interpreted"] if each["type"] == type)

    assert reason in first["reason"]


@pytest.mark.parametrize("s", [repeating(), collecting()])
def test_an_op_whose_size_only_the_run_tells_is_compiled(s):
    assert report_of(s)["interpreted"] == []


def open_line(batch: list[int]) -> Sketch:
    s = Sketch()
    s.param("w", [0.5, -0.7])
    s.feed("x", np.zeros((*batch, 2)))
    s.blocks[0]["vars"][-1]["shape"][0] = -1
    return s


def test_open_sizes_count_as_1():
    s = open_line([4])
    s.total(s.op("sin", s.op("mul", "x", "w")))

    assert report_of(s)["interpreted"] == []  # a step knows its sizes
    assert report_of(s) == report_of(s, shapes={"x": [1, 2]})


def test_a_program_that_conflicts_with_size_1_reports_no_machine_code_without_shapes():
    s = open_line([4])
    s.total(s.op("mul", s.op("reshape", "x", shape=[4, 2]), "w"))

    assert report_of(s) is None
    assert report_of(s, shapes={"x": [4, 2]})["interpreted"] == []


def test_very_large_steps_are_reported_too():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    h = "w"
    for _ in range(1000):
        h = s.op("sin", s.op("mul", h, "w"))
    s.total(h)

    assert report_of(s)["ops"]["compiled"] > 4000
