"""An example program for each construct, each op with inner blocks, and functions. The catalogue shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["SAMPLES", "Sample"]


@dataclass(frozen=True, slots=True)
class Sample:
    """A program with the parameter `w` and the variable `loss`, all float64 unless declared otherwise.

    feeds: values by name. loss, gradient: the expected loss at ``w``, and its expected gradient by w.
    """

    document: dict[str, Any]
    w: list[float]
    feeds: dict[str, Any]
    loss: float
    gradient: list[float]


def _op(type: str, out: str | list[str], *inputs: str, **attrs: Any) -> dict[str, Any]:
    """An op whose inputs are named x, y, ..."""
    names = {slot: [name] for slot, name in zip("xyz", inputs, strict=False)}
    op: dict[str, Any] = {"type": type, "inputs": names, "outputs": {"out": [out] if isinstance(out, str) else out}}
    return op | ({"attrs": attrs} if attrs else {})


def _run(type: str, inputs: dict[str, list[str]], outputs: dict[str, list[str]], /, **attrs: Any) -> dict[str, Any]:
    return {"type": type, "inputs": inputs, "outputs": outputs, "attrs": attrs}


def _zero(name: str) -> dict[str, Any]:
    return {"type": "fill_constant", "outputs": {"out": [name]}, "attrs": {"dtype": "float64"}}


def _sample(
    ops: list[dict[str, Any]],
    *blocks: list[dict[str, Any]],
    w: list[float],
    loss: float,
    gradient: list[float],
    functions: dict[str, Any] | None = None,
    **feeds: tuple[str, Any],
) -> Sample:
    """blocks: the ops of inner blocks 1, 2, ...; feeds: (dtype, value)."""
    shape = [] if len(w) == 1 else [len(w)]
    leaves = [{"name": "w", "dtype": "float64", "shape": shape, "role": "parameter"}]
    for name, (dtype, value) in feeds.items():
        sizes = [len(value)] if isinstance(value, list) else []
        leaves.append({"name": name, "dtype": dtype, "shape": sizes, "role": "feed"})
    inner = [{"idx": i, "parent_idx": 0, "vars": [], "ops": each} for i, each in enumerate(blocks, 1)]
    document: dict[str, Any] = {"blocks": [{"idx": 0, "parent_idx": -1, "vars": leaves, "ops": ops}, *inner]}
    if functions is not None:
        document["functions"] = functions
    return Sample(document, w, {name: value for name, (_, value) in feeds.items()}, loss, gradient)


# ``h = h * w + x`` for each x, from 0: x0 w^2 + x1 w + x2
HORNER = [_op("mul", "hw", "h", "w"), _op("add", "h", "hw", "x")]

SAMPLES: dict[str, Sample] = {
    # w^3: the product with w, n times
    "while": _sample(
        [
            {"type": "fill_constant", "outputs": {"out": ["loss"]}, "attrs": {"value": 1, "dtype": "float64"}},
            {"type": "fill_constant", "outputs": {"out": ["i"]}, "attrs": {"dtype": "int64"}},
            _op("less_than", "go", "i", "n"),
            _run("while", {"condition": ["go"]}, {}, sub_block=1),
        ],
        [
            _op("mul", "loss", "loss", "w"),
            _op("increment", "i", "i"),
            _op("less_than", "go", "i", "n"),
        ],
        n=("int64", 3), w=[2.0], loss=8.0, gradient=[12.0],
    ),
    # the same loop in the closed form: all names that it reads and writes are listed
    "loop": Sample(
        {
            "form": "closed",
            "blocks": [
                {
                    "idx": 0, "parent_idx": -1,
                    "vars": [
                        {"name": "w", "dtype": "float64", "shape": [], "role": "parameter"},
                        {"name": "n", "dtype": "int64", "shape": [], "role": "feed"},
                    ],
                    "ops": [
                        {"type": "fill_constant", "outputs": {"out": ["one"]},
                         "attrs": {"value": 1, "dtype": "float64"}},
                        {"type": "fill_constant", "outputs": {"out": ["zero"]}, "attrs": {"dtype": "int64"}},
                        _op("less_than", "go", "zero", "n"),
                        _run("loop", {"x": ["go", "zero", "one", "n", "w"]}, {"out": ["stop", "trips", "loss"]},
                             sub_block=1, carried=3, captured=2, condition=True),
                    ],
                },
                {
                    "idx": 1, "parent_idx": 0,
                    "params": ["more", "i", "h", "top", "factor"], "results": ["again", "next", "product"],
                    "vars": [
                        {"name": "more", "dtype": "bool", "shape": []},
                        {"name": "i", "dtype": "int64", "shape": []},
                        {"name": "h", "dtype": "float64", "shape": []},
                        {"name": "top", "dtype": "int64", "shape": []},
                        {"name": "factor", "dtype": "float64", "shape": []},
                    ],
                    "ops": [
                        _op("mul", "product", "h", "factor"),
                        _op("increment", "next", "i"),
                        _op("less_than", "again", "next", "top"),
                    ],
                },
            ],
        },
        [2.0], {"n": 3}, 8.0, [12.0],
    ),
    "scan": _sample(
        [
            _zero("zero"),
            _run("scan", {"initial": ["zero"], "sequences": ["xs"]}, {"final": ["loss"], "stacked": ["all"]},
                 sub_block=1, states=["h"], elements=["x"], outputs=["h"]),
        ],
        HORNER,
        xs=("float64", [1.0, 2.0, 3.0]), w=[2.0], loss=11.0, gradient=[6.0],
    ),
    "recurrent": _sample(
        [
            _zero("zero"),
            _run("recurrent", {"inputs": ["xs"], "initial_states": ["zero"]},
                 {"outputs": ["all"], "final_states": ["loss"]},
                 sub_block=1, ex_states=["before"], states=["after"], step_inputs=["x"], step_outputs=["after"]),
        ],
        [_op("mul", "product", "before", "w"), _op("add", "after", "product", "x")],
        xs=("float64", [1.0, 2.0, 3.0]), w=[2.0], loss=11.0, gradient=[6.0],
    ),
    "if_else": _sample(
        [_run("if_else", {"condition": ["yes"]}, {}, true_block=1, false_block=2)],
        [_op("square", "loss", "w")],
        [_op("neg", "loss", "w")],
        yes=("bool", True), w=[3.0], loss=9.0, gradient=[6.0],
    ),
    "conditional_block": _sample(
        [_op("assign", "loss", "w"), _run("conditional_block", {"condition": ["yes"]}, {}, sub_block=1)],
        [_op("square", "loss", "loss")],
        yes=("bool", True), w=[3.0], loss=9.0, gradient=[6.0],
    ),
    "switch_case": _sample(
        [_run("switch_case", {"index": ["which"]}, {}, branches=[1, 2])],
        [_op("neg", "loss", "w")],
        [_op("square", "loss", "w")],
        which=("int64", 1), w=[3.0], loss=9.0, gradient=[6.0],
    ),
    "case": _sample(
        [
            _zero("zero"),
            _op("less_than", "negative", "w", "zero"),
            _run("case", {"conditions": ["negative"]}, {}, branches=[1], default_block=2),
        ],
        [_op("neg", "loss", "w")],
        [_op("square", "loss", "w")],
        w=[3.0], loss=9.0, gradient=[6.0],
    ),
    "if_else_rows": _sample(
        [
            _run("if_else_rows", {"condition": ["large"], "x": ["w"]}, {"out": ["y"]},
                 true_block=1, false_block=2, rows=["row"]),
            _op("reduce_sum", "loss", "y"),
        ],
        [_op("square", "y", "row")],
        [_op("neg", "y", "row")],
        large=("bool", [True, False, True]), w=[3.0, 1.0, 4.0], loss=24.0, gradient=[6.0, -1.0, 8.0],
    ),
    # the square root where x is positive; elsewhere 0, with gradient 0
    "safe_where": _sample(
        [
            _run("safe_where", {"condition": ["positive"]}, {"out": ["y"]}, true_block=1, false_block=2),
            _op("reduce_sum", "loss", "y"),
        ],
        [_op("sqrt", "y", "w")],
        [_op("scale", "y", "w", scale=0.0)],
        positive=("bool", [True, False]), w=[4.0, 0.0], loss=2.0, gradient=[0.25, 0.0],
    ),
    "net": _sample(
        [_run("net", {}, {}, sub_block=1)],
        [_op("square", "squared", "w"), _op("mul", "loss", "squared", "w")],
        w=[2.0], loss=8.0, gradient=[12.0],
    ),
    "call": _sample(
        [_run("call", {"x": ["w"]}, {"out": ["loss"]}, function="cube")],
        functions={
            "cube": {
                "results": ["product"],
                "program": {"blocks": [{
                    "idx": 0, "parent_idx": -1,
                    "vars": [{"name": "x", "dtype": "float64", "shape": [], "role": "feed"}],
                    "ops": [_op("square", "squared", "x"), _op("mul", "product", "squared", "x")],
                }]},
            }
        },
        w=[2.0], loss=8.0, gradient=[12.0],
    ),
    # the squared slope of w^3: 9 w^4
    "gradients": _sample(
        [
            _op("square", "squared", "w"),
            _op("mul", "cube", "squared", "w"),
            _run("gradients", {"targets": ["cube"], "inputs": ["w"]}, {"out": ["slope"]}),
            _op("square", "loss", "slope"),
        ],
        w=[2.0], loss=144.0, gradient=[288.0],
    ),
}  # fmt: skip
"""Op name -> its sample."""
