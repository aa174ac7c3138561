"""Programs used in the examples of the documentation. The service registers them at start, so that their ids exist."""

from __future__ import annotations

from typing import Any

from service.store.program_text import program_id

__all__ = ["EXAMPLES", "REGRESSION", "REGRESSION_FEEDS", "REGRESSION_ID", "REGRESSION_PARAMETERS", "WHILE", "WHILE_ID"]


def _op(type: str, out: str, attrs: dict[str, Any] | None = None, **inputs: str) -> dict[str, Any]:
    op: dict[str, Any] = {"type": type, "inputs": {k: [v] for k, v in inputs.items()}, "outputs": {"out": [out]}}
    return op | ({"attrs": attrs} if attrs else {})


REGRESSION: dict[str, Any] = {
    "blocks": [
        {
            "idx": 0,
            "parent_idx": -1,
            "vars": [
                {"name": "x", "dtype": "float32", "shape": [-1, 2], "role": "feed"},
                {"name": "y", "dtype": "float32", "shape": [-1, 1], "role": "feed"},
                {"name": "w", "dtype": "float32", "shape": [2, 1], "role": "parameter"},
                {"name": "b", "dtype": "float32", "shape": [1], "role": "parameter"},
            ],
            "ops": [
                _op("matmul", "xw", x="x", y="w"),
                _op("add", "prediction", x="xw", y="b"),
                _op("mse_loss", "loss", x="prediction", y="y"),
            ],
        }
    ]
}
"""Linear regression on a batch of any size."""

WHILE: dict[str, Any] = {
    "blocks": [
        {
            "idx": 0,
            "parent_idx": -1,
            "vars": [
                {"name": "w", "dtype": "float64", "shape": [2], "role": "parameter"},
                {"name": "n", "dtype": "int64", "shape": [], "role": "feed"},
            ],
            "ops": [
                _op("fill_constant", "h", {"shape": [2], "value": 1.0, "dtype": "float64"}),
                _op("fill_constant", "i", {"shape": [], "value": 0, "dtype": "int64"}),
                _op("less_than", "go", x="i", y="n"),
                {"type": "while", "inputs": {"condition": ["go"]}, "attrs": {"sub_block": 1}},
                _op("reduce_sum", "loss", x="h"),
            ],
        },
        {
            "idx": 1,
            "parent_idx": 0,
            "vars": [],
            "ops": [
                _op("mul", "hw", x="h", y="w"),
                _op("tanh", "h", x="hw"),
                _op("increment", "i", {"step": 1}, x="i"),
                _op("less_than", "go", x="i", y="n"),
            ],
        },
    ]
}
"""A loop whose trip count is a feed."""

REGRESSION_ID = program_id(REGRESSION)
WHILE_ID = program_id(WHILE)
EXAMPLES = {REGRESSION_ID: REGRESSION, WHILE_ID: WHILE}

REGRESSION_FEEDS: dict[str, Any] = {
    "x": {"dtype": "float32", "shape": [3, 2], "data": [1, 2, 3, 4, 5, 6]},
    "y": {"dtype": "float32", "shape": [3, 1], "data": [1, 0, 1]},
}
REGRESSION_PARAMETERS: dict[str, Any] = {
    "w": {"dtype": "float32", "shape": [2, 1], "data": [0.1, -0.2]},
    "b": {"dtype": "float32", "shape": [1], "data": [0]},
}
