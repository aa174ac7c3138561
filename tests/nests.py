"""Programs with deeply nested blocks: one for each construct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.programs import Sketch

__all__ = ["NESTS", "nest"]

Level = Callable[[Sketch, Callable[[], None]], None]


def nest(kind: str, depth: int, weight: str = "w", memory: str = "store") -> Sketch:
    """`depth` nested blocks of the construct `kind`. Each computes h := tanh(h * w), and then runs the next one."""
    s = Sketch()
    s.param(weight, [0.5, 0.9])
    s.feed("yes", True, dtype="bool")
    s.feed("rows", [True, True], dtype="bool")
    s.feed("two", 2, dtype="int64")
    s.feed("first", 0, dtype="int64")
    s.op("assign", weight, out="h")
    level = NESTS[kind]

    def at(left: int) -> None:
        if left == 0:
            return

        def body() -> None:
            s.op("tanh", s.op("mul", "h", weight), out="h")
            at(left - 1)

        level(s, body, **({"memory": memory} if kind in MEMORY else {}))

    at(depth)
    s.total("h")
    return s


def _while(s: Sketch, body: Callable[[], None], **more: Any) -> None:
    with s.repeat("two"):
        body()
    s.blocks[s.at]["ops"][-1]["attrs"].update(more)


def _block(s: Sketch, body: Callable[[], None]) -> int:
    with s.block() as index:
        body()
    return index


def _if_else(s: Sketch, body: Callable[[], None], **more: Any) -> None:
    s.construct("if_else", {"condition": "yes"}, {}, true_block=_block(s, body), **more)


def _conditional(s: Sketch, body: Callable[[], None]) -> None:
    s.construct("conditional_block", {"condition": "yes"}, {}, sub_block=_block(s, body))


def _switch(s: Sketch, body: Callable[[], None]) -> None:
    taken = _block(s, body)
    other = _block(s, lambda: s.op("scale", "h", out="h", scale=2.0))
    s.construct("switch_case", {"index": "first"}, {}, branches=[taken, other])


def _switch_of_one(s: Sketch, body: Callable[[], None]) -> None:
    s.construct("switch_case", {"index": "first"}, {}, branches=[_block(s, body)])


def _case(s: Sketch, body: Callable[[], None]) -> None:
    taken = _block(s, body)
    other = _block(s, lambda: s.op("square", "h", out="h"))
    s.construct("case", {"conditions": ["yes"]}, {}, branches=[taken], default_block=other)


def _scan(s: Sketch, body: Callable[[], None], **more: Any) -> None:
    s.construct("scan", {"initial": "h"}, {"final": "h"}, sub_block=_block(s, body), states=["h"], length=2, **more)


def _recurrent(s: Sketch, body: Callable[[], None], **more: Any) -> None:
    s.construct(
        "recurrent",
        {"initial_states": "h"},
        {"final_states": "h"},
        sub_block=_block(s, body),
        ex_states=["h"],
        states=["h"],
        length=2,
        **more,
    )


def _net(s: Sketch, body: Callable[[], None]) -> None:
    s.construct("net", {}, {}, sub_block=_block(s, body))


def _rows(s: Sketch, body: Callable[[], None]) -> None:
    taken = _block(s, body)
    other = _block(s, lambda: s.op("square", "h", out="h"))
    s.construct(
        "if_else_rows", {"condition": "rows", "x": "h"}, {"out": "h"}, true_block=taken, false_block=other, rows=["h"]
    )


def _safe_where(s: Sketch, body: Callable[[], None]) -> None:
    taken = _block(s, body)
    other = _block(s, lambda: s.op("square", "h", out="h"))
    s.construct("safe_where", {"condition": "rows"}, {"out": "h"}, true_block=taken, false_block=other)


NESTS: dict[str, Callable[..., None]] = {
    "while": _while,
    "if_else": _if_else,
    "conditional_block": _conditional,
    "switch_case": _switch,
    "switch_case of one branch": _switch_of_one,
    "case": _case,
    "scan": _scan,
    "recurrent": _recurrent,
    "net": _net,
    "if_else_rows": _rows,
    "safe_where": _safe_where,
}
MEMORY = ("while", "if_else", "scan", "recurrent")
