"""A variable of an inner block may have the name of any outer variable.

Each program here is written twice: once with an inner variable that has the name of an outer one, and once with a name
of its own. Both have the same values and gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.ir import HOLE, Block, Program
from core.ir.errors import InvalidProgram
from core.wire import read, write
from tests.programs import Sketch

OUTER = ("feed", "parameter", "state", "temporary", "declared temporary", "variable of the block around")
NESTED = ("nothing", "net", "while", "if_else", "conditional_block", "switch_case", "case", "scan", "if_else_rows")
"""The construct inside the block that overwrites the variable once more."""

DECLARED = ("net", "while", "if_else", "conditional_block", "switch_case", "case", "scan", "if_else_rows", "safe_where")
"""Constructs whose block declares the variable in its `vars`."""
LOCAL = ("state", "element", "output", "ex_state", "step_input", "step_output", "rows")
"""Names that a construct itself gives to a variable of its block."""


def program(outer: str, way: str, nested: str, own: str, *, declare: bool) -> Sketch:
    """An inner variable `own` of float64[2] inside, an outer variable `x` of int64[3] outside.

    way: construct of DECLARED, or name of LOCAL. declare: whether the block declares the variable in `vars`.
    """
    s = Sketch()
    s.param("w", [0.5, 0.9])
    s.feed("yes", True, dtype="bool")
    s.feed("mask", [True, False], dtype="bool")
    s.feed("zero", 0, dtype="int64")
    s.feed("xs", [[0.3, -0.4], [0.1, 0.8]])
    s.op("assign", "w", out="h")
    x = np.array([1, 2, 3])
    if outer in ("feed", "parameter", "state"):
        s._leaf(outer, "x", x, "int64")
        around(s, way, nested, own, declare)
    elif outer == "variable of the block around":
        with s.block() as block:
            s.declare("x", dtype="int64", shape=[3])
            s.const(2, (3,), "int64", out="x")
            around(s, way, nested, own, declare)
            s.op("assign", "loss", out="result")
        s.construct("net", {}, {}, sub_block=block)
        s.op("assign", "result", out="loss")
    else:
        if outer == "declared temporary":
            s.declare("x", dtype="int64", shape=[3])
        s.const(2, (3,), "int64", out="x")
        around(s, way, nested, own, declare)
    return s


def around(s: Sketch, way: str, nested: str, own: str, declare: bool) -> None:
    inside(s, way, nested, own, declare)
    s.op("reduce_sum", s.op("cast", "x", dtype="float64"), out="outer")  # the outer variable has its value still
    s.op("add", s.op("reduce_sum", "h"), "outer", out="loss")


def inside(s: Sketch, way: str, nested: str, own: str, declare: bool) -> None:
    open_size = way in ("rows", "if_else_rows")

    def block(result: str = "h", start: str | None = "w") -> int:
        with s.block() as index:
            if declare:
                s.declare(own, dtype="float64", shape=[-1] if open_size else [2])
            if start is not None:
                s.op("tanh", start, out=own)
            overwrite(s, nested, own)
            s.op("mul", own, own if open_size else "w", out=result)
            if way == "step_output" or way == "output":
                s.op("sin", own, out=own)
        return index

    def other(result: str = "h", given: str = "w") -> int:
        with s.block() as index:
            s.op("square", given, out=result)
        return index

    if way == "while":
        with s.repeat(2):
            if declare:
                s.declare(own, dtype="float64", shape=[2])
            s.op("tanh", "h", out=own)
            overwrite(s, nested, own)
            s.op("mul", own, "w", out="h")
    elif way == "net":
        s.construct("net", {}, {}, sub_block=block())
    elif way == "if_else":
        s.branch("yes", block(), other())
    elif way == "conditional_block":
        s.construct("conditional_block", {"condition": "yes"}, {}, sub_block=block())
    elif way == "switch_case":
        s.construct("switch_case", {"index": "zero"}, {}, branches=[block(), other()])
    elif way == "case":
        s.construct("case", {"conditions": ["yes"]}, {}, branches=[block()], default_block=other())
    elif way == "scan":
        s.construct("scan", {}, {}, sub_block=block(), length=2)
    elif way == "safe_where":
        s.construct(way, {"condition": "mask"}, {"out": "g"}, true_block=block("g"), false_block=other("g"))
        s.op("assign", "g", out="h")
    elif way == "if_else_rows":
        blocks = {"true_block": block("g", "row"), "false_block": other("g", "row")}
        s.construct(way, {"condition": "mask", "x": "h"}, {"out": "g"}, **blocks, rows=["row"])
        s.op("assign", "g", out="h")
    elif way == "state":
        s.construct("scan", {"initial": "h"}, {"final": "h2"}, sub_block=block("h", None), states=[own], length=2)
        s.op("mul", "h", "h2", out="h")
    elif way == "element":
        s.construct("scan", {"sequences": "xs"}, {}, sub_block=block("h", None), elements=[own])
    elif way == "output":
        s.construct("scan", {}, {"stacked": "ys"}, sub_block=block(), outputs=[own], length=2)
        s.op("mul", s.op("reduce_sum", "ys", axes=[0]), "h", out="h")
    elif way == "ex_state":
        with s.block() as index:
            if declare:
                s.declare(own, dtype="float64", shape=[2])
            overwrite(s, nested, own)
            s.op("mul", own, "w", out="after")
        names = {"ex_states": [own], "states": ["after"]}
        s.construct("recurrent", {"initial_states": "h"}, {"final_states": "h"}, sub_block=index, length=2, **names)
    elif way == "step_input":
        s.construct("recurrent", {"inputs": "xs"}, {}, sub_block=block("h", None), step_inputs=[own])
    elif way == "step_output":
        s.construct("recurrent", {}, {"outputs": "ys"}, sub_block=block(), step_outputs=[own], length=2)
        s.op("mul", s.op("reduce_sum", "ys", axes=[0]), "h", out="h")
    elif way == "rows":
        blocks = {"true_block": block("g", None), "false_block": rows_of(s, own, declare)}
        s.construct("if_else_rows", {"condition": "mask", "x": "h"}, {"out": "g"}, **blocks, rows=[own])
        s.op("assign", "g", out="h")
    else:
        raise AssertionError(way)


def rows_of(s: Sketch, own: str, declare: bool) -> int:
    with s.block() as index:
        if declare:
            s.declare(own, dtype="float64", shape=[-1])
        s.op("square", own, out="g")
    return index


def overwrite(s: Sketch, nested: str, own: str) -> None:
    """own := sin(own), in a nested block."""

    def block() -> int:
        with s.block() as index:
            s.op("sin", own, out=own)
        return index

    if nested == "net":
        s.construct("net", {}, {}, sub_block=block())
    elif nested == "while":
        with s.repeat(1):
            s.op("sin", own, out=own)
    elif nested == "if_else":
        s.branch("yes", block(), None)
    elif nested == "conditional_block":
        s.construct("conditional_block", {"condition": "yes"}, {}, sub_block=block())
    elif nested == "switch_case":
        s.construct("switch_case", {"index": "zero"}, {}, branches=[block(), block()])
    elif nested == "case":
        s.construct("case", {"conditions": ["yes"]}, {}, branches=[block()])
    elif nested == "scan":
        s.construct("scan", {}, {}, sub_block=block(), length=1)
    elif nested == "if_else_rows":
        blocks = {"true_block": row_block(s, own), "false_block": row_block(s, own)}
        s.construct("if_else_rows", {"condition": "mask", "x": "w"}, {"out": own}, **blocks, rows=["row"])


def row_block(s: Sketch, own: str) -> int:
    with s.block() as index:
        s.op("sin", "row", out=own)
    return index


def cases() -> list[tuple[str, str, str, bool]]:
    """(outer, way, nested, declare) of every pattern with a defined meaning."""
    found: list[tuple[str, str, str, bool]] = []
    for outer in OUTER:
        for way in (*DECLARED, *LOCAL):
            for nested in NESTED if outer == "feed" else ("nothing", "while"):
                if way == "safe_where" and nested not in ("nothing", "net"):
                    continue  # elementwise ops only
                if way in ("rows", "if_else_rows") and nested == "if_else_rows":
                    continue  # the mask has another length than the rows of one side
                found += [(outer, way, nested, declare) for declare in ((True,) if way in DECLARED else (True, False))]
    return found


def numbered(block: Block) -> list[Any]:
    """A block with the numbers of its variables in place of their names: equal for blocks that differ in names only."""
    number = {HOLE: -1}
    found: list[Any] = [(number.setdefault(name, len(number)), block.types[name]) for name in block.params]
    for op in block.ops:
        attrs = {k: numbered(v) if isinstance(v, Block) else v for k, v in op.attrs.items()}
        outputs = [(number.setdefault(n, len(number)), block.types[n]) for n in op.outputs]
        found.append((op.type, [number[n] for n in op.inputs], outputs, attrs))
    return [*found, [number[n] for n in block.results]]


@pytest.mark.parametrize("way", (*DECLARED, *LOCAL))
def test_a_variable_of_an_inner_block_may_have_the_name_of_an_outer_one(way):
    wrong = []
    expected: dict[tuple[str, str], Program] = {}
    for outer, at, nested, declare in cases():
        if at != way:
            continue
        if (outer, nested) not in expected:
            expected[outer, nested] = read(program(outer, way, nested, "own", declare=way in DECLARED).document)
            assert "loss" in expected[outer, nested].block.types
        try:
            found = read(program(outer, way, nested, "x", declare=declare).document)
        except InvalidProgram as error:
            wrong.append((outer, nested, declare, str(error)))
            continue
        assert read(write(found)) == found
        if numbered(found.block) != numbered(expected[outer, nested].block):
            wrong.append((outer, nested, declare, "another program"))
    assert not wrong


@pytest.mark.parametrize(("way", "h"), [("while", lambda w, h: np.tanh(h) * w), ("state", None)])
def test_values_and_gradients_of_shadowed_names(way, h):
    s = program("feed", way, "net" if h is None else "nothing", "x", declare=True)
    found = compile_gradient(read(s.document), GradientQuery(loss="loss")).step(s.values)

    def loss(w: np.ndarray) -> complex:
        if h is None:  # a scan of two steps: the state x := sin(x) each, and h := sin(x) * w, times the last state
            once = np.sin(w)
            return np.sum(np.sin(once) * w * np.sin(once)) + 6
        return np.sum(h(w, h(w, w))) + 6

    w = s.values["w"]
    np.testing.assert_allclose(found.loss, loss(w), rtol=1e-14)
    slopes = [np.imag(loss(w + 1e-30j * np.eye(2)[i])) / 1e-30 for i in range(2)]
    np.testing.assert_allclose(found.gradients["w"], slopes, rtol=1e-13)


def test_a_write_to_a_feed_is_still_refused_at_any_depth():
    for nested in NESTED[1:]:
        s = Sketch()
        s.param("w", [0.5, 0.9])
        s.feed("yes", True, dtype="bool")
        s.feed("zero", 0, dtype="int64")
        s.feed("mask", [True, False], dtype="bool")
        s.feed("x", [1.0, 2.0])
        with s.repeat(1):
            overwrite(s, nested, "x")
        s.total("x")
        with pytest.raises(InvalidProgram) as error:
            read(s.document)
        assert error.value.problems[0].code == "write_to_feed", nested


def test_the_declaration_of_a_state_is_checked_against_its_initial_value():
    s = program("feed", "state", "nothing", "x", declare=True)
    s.blocks[1]["vars"][0]["shape"] = [3]
    with pytest.raises(InvalidProgram, match=r"'x' is declared as float64\[3\], but is given float64\[2\]") as error:
        read(s.document)
    assert error.value.problems[0].pointer == "/blocks/1/vars/0"


@pytest.mark.parametrize("way", ["if_else_rows", "scan"])
def test_a_result_that_a_block_does_not_leave_is_reported(way):
    """The reader used to leave such an op out of the program without a problem."""
    s = Sketch()
    s.param("w", [0.5, 0.9])
    s.feed("mask", [True, False], dtype="bool")
    with s.block() as block:
        if way == "if_else_rows":
            s.declare("y", dtype="float64")
            s.op("sin", "row", out="y")
    if way == "scan":
        s.construct("scan", {}, {"stacked": "y"}, sub_block=block, outputs=["y"], length=2)
    else:
        with s.block() as other:
            s.op("sin", "row", out="y")
        blocks = {"true_block": block, "false_block": other}
        s.construct("if_else_rows", {"condition": "mask", "x": "w"}, {"out": "y"}, **blocks, rows=["row"])
    with pytest.raises(InvalidProgram) as error:
        read(s.document)
    message = {"scan": "block 1 does not write 'y'", "if_else_rows": "block 1 declares 'y' as its own variable"}[way]
    assert error.value.problems[0].message.startswith(message)
