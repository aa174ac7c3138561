"""Programs of nested blocks, for each construct and memory policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.programs import Sketch

__all__ = ["LOOP_MEMORY", "NESTS", "nest"]

LOOP_MEMORY = ("store", "recompute", "sqrt", "binomial")

Inner = Callable[[], None]


def nest(construct: str, depth: int, memory: str = "store", trips: int = 1) -> Sketch:
    """A program of `depth` nested blocks of one construct. Each level multiplies h by w before and after its block."""
    s = Sketch()
    s.param("w", [1.01, 0.99])
    s.feed("xs", [[0.1, 0.2]] * trips)
    s.feed("yes", True, "bool")
    s.feed("first", 0, "int64")
    s.op("assign", "w", out="h")

    def level(left: int) -> None:
        s.op("tanh", s.op("mul", "h", "w"), out="h")
        if left:
            NESTS[construct](s, left, memory, trips, lambda: level(left - 1))
            s.op("mul", "h", "w", out="h")

    level(depth)
    s.total("h")
    return s


def _while(s: Sketch, k: int, memory: str, trips: int, inner: Inner) -> None:
    i, n, go = f"i{k}", f"n{k}", f"go{k}"
    s.const(trips, dtype="int64", out=n)
    s.const(0, dtype="int64", out=i)
    s.op("less_than", i, n, out=go)
    with s.block() as body:
        inner()
        s.op("increment", i, out=i, step=1)
        s.op("less_than", i, n, out=go)
    s.construct("while", {"condition": [go]}, {}, sub_block=body, memory=memory)


def _scan(s: Sketch, k: int, memory: str, trips: int, inner: Inner) -> None:
    with s.block() as body:
        inner()
        s.op("add", "h", "e", out="o")
    slots: tuple[dict[str, Any], dict[str, Any]] = (
        {"initial": ["h"], "sequences": ["xs"]},
        {"final": ["h"], "stacked": [f"o{k}"]},
    )
    s.construct("scan", *slots, sub_block=body, states=["h"], elements=["e"], outputs=["o"], memory=memory)


def _recurrent(s: Sketch, k: int, memory: str, trips: int, inner: Inner) -> None:
    with s.block() as body:
        s.op("assign", "before", out="h")
        inner()
        s.op("add", "h", "e", out="after")
    s.construct(
        "recurrent",
        {"inputs": ["xs"], "initial_states": ["h"]},
        {"final_states": ["h"]},
        sub_block=body,
        ex_states=["before"],
        states=["after"],
        step_inputs=["e"],
        memory=memory,
    )


def _if_else(s: Sketch, k: int, memory: str, trips: int, inner: Inner) -> None:
    with s.block() as yes:
        inner()
    s.construct("if_else", {"condition": ["yes"]}, {}, true_block=yes, false_block=None, memory=memory)


def _conditional(s: Sketch, k: int, memory: str, trips: int, inner: Inner) -> None:
    with s.block() as body:
        inner()
    s.construct("conditional_block", {"condition": ["yes"]}, {}, sub_block=body)


def _switch(s: Sketch, k: int, memory: str, trips: int, inner: Inner) -> None:
    with s.block() as body:
        inner()
    s.construct("switch_case", {"index": ["first"]}, {}, branches=[body], default_block=None)


def _case(s: Sketch, k: int, memory: str, trips: int, inner: Inner) -> None:
    with s.block() as body:
        inner()
    s.construct("case", {"conditions": ["yes"]}, {}, branches=[body], default_block=None)


def _net(s: Sketch, k: int, memory: str, trips: int, inner: Inner) -> None:
    with s.block() as body:
        inner()
    s.construct("net", {}, {}, sub_block=body)


NESTS: dict[str, Callable[[Sketch, int, str, int, Inner], None]] = {
    "while": _while,
    "scan": _scan,
    "recurrent": _recurrent,
    "if_else": _if_else,
    "conditional_block": _conditional,
    "switch_case": _switch,
    "case": _case,
    "net": _net,
}
