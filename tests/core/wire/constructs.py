"""Programs with constructs of the wire, for several tests."""

from __future__ import annotations

import numpy as np

from tests.programs import Sketch

X = [[1.0, 2.0], [0.5, -1.0], [-1.0, 0.3]]


def elman(outputs: str, reverse: bool = False, kind: str = "recurrent", rows: int = 3) -> Sketch:
    """h := tanh(h @ W + x) over the rows of X, and a loss over all states or the last one."""
    s = Sketch()
    s.param("W", [[0.5, 0.1], [-0.2, 0.7]])
    s.param("h0", [0.2, -0.3])
    s.feed("X", np.asarray(X)[:rows])
    with s.block() as body:
        before = "p" if kind == "recurrent" else "h"
        s.op("tanh", s.op("add", s.op("matmul", before, "W"), "x"), out="h")
        s.op("square", "h", out="y")
    if kind == "recurrent":
        s.construct(
            "recurrent",
            {"inputs": "X", "initial_states": "h0"},
            {"outputs": "ys", "final_states": "last"},
            sub_block=body,
            ex_states=["p"],
            states=["h"],
            step_inputs=["x"],
            step_outputs=["y"],
            reverse=reverse,
        )
    else:
        s.construct(
            "scan",
            {"initial": "h0", "sequences": "X"},
            {"final": "last", "stacked": "ys"},
            sub_block=body,
            states=["h"],
            elements=["x"],
            outputs=["y"],
            reverse=reverse,
        )
    s.total("ys" if outputs == "all" else "last")
    return s


def cases(index: int) -> Sketch:
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.feed("k", index, "int64")
    s.op("assign", "w", out="total")
    blocks = []
    for factor in (2.0, 3.0, 5.0, 7.0):
        with s.block() as block:
            s.op("scale", s.op("square", "w"), out="y", scale=factor)
            if factor == 5.0:
                s.op("add", "total", "y", out="total")
        blocks.append(block)
    s.construct("switch_case", {"index": "k"}, {}, branches=blocks[:3], default_block=blocks[3])
    s.total(s.op("add", "y", "total"))
    return s


def rows(mask: list[bool]) -> Sketch:
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("x", [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    s.feed("mask", mask, "bool")
    with s.block() as yes:
        s.op("mul", "r", "w", out="y")
    with s.block() as no:
        s.op("square", s.op("mul", "r", "w"), out="y")
    s.construct(
        "if_else_rows", {"condition": "mask", "x": "x"}, {"out": "y"}, true_block=yes, false_block=no, rows=["r"]
    )
    s.total("y")
    return s


def custom(slope: float, gradient: bool = True) -> Sketch:
    """loss = sum(f(2 w)) with f(x) = x * x and a declared gradient of slope * x * ct (correct: 2 x ct)."""

    def program(*feeds: str) -> Sketch:
        inner = Sketch()
        for name in feeds:
            inner.feed(name, [0.0, 0.0])
        return inner

    f, rule = program("x"), program("x", "y", "dy")
    f.op("mul", "x", "x", out="y")
    rule.op("scale", rule.op("mul", "x", "dy"), out="dx", scale=slope)
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.functions = {"f": {"program": f.document, "results": ["y"], "gradient": "df" if gradient else None}}
    s.functions["df"] = {"program": rule.document, "results": ["dx"]}
    s.construct("call", {"x": s.op("scale", "w", scale=2.0)}, {"out": "y"}, function="f")
    s.total("y")
    return s


def array_in_a_loop() -> Sketch:
    """h := tanh(h * w) for three trips, each written to an array; then element 1 again, and the sum of all."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("create_array", out="A", shape=[2], dtype="float64")
    s.const(1.0, [2], out="h")
    s.const(0, dtype="int64", out="t")
    with s.repeat(3):
        s.op("tanh", s.op("mul", "h", "w"), out="h")
        s.op("array_write", "h", "t", "A", out="A")
        s.op("increment", "t", out="t", step=1)
    s.op("array_read", "A", s.const(1, dtype="int64"), out="again")
    s.op("mul", s.op("reduce_sum", s.op("array_stack", "A"), axes=[0]), "again", out="product")
    s.total("product")
    return s
