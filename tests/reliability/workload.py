"""Scripts of requests for sessions: lists of (method, path below the session, body), determined by their seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["MODELS", "Model", "Sent", "script"]


def _op(type: str, out: str, attrs: dict[str, Any] | None = None, **inputs: str) -> dict[str, Any]:
    op: dict[str, Any] = {"type": type, "inputs": {k: [v] for k, v in inputs.items()}, "outputs": {"out": [out]}}
    return op | ({"attrs": attrs} if attrs else {})


def _var(name: str, shape: list[int], role: str, dtype: str = "float32") -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape, "role": role}


def _program(vars: list[dict[str, Any]], ops: list[dict[str, Any]]) -> dict[str, Any]:
    return {"blocks": [{"idx": 0, "parent_idx": -1, "vars": vars, "ops": ops}]}


@dataclass(frozen=True, slots=True)
class Model:
    """A program to train. feeds: name -> (shape of a batch, upper bound of integers or None for floats)."""

    program: dict[str, Any]
    optimizer: dict[str, Any]
    feeds: dict[str, tuple[tuple[int, ...], int | None]]


NETWORK = Model(
    _program(
        [
            _var("x", [-1, 8], "feed"),
            _var("y", [-1, 1], "feed"),
            _var("w0", [8, 16], "parameter"),
            _var("b0", [16], "parameter"),
            _var("w1", [16, 1], "parameter"),
        ],
        [
            _op("matmul", "xw", x="x", y="w0"),
            _op("add", "h", x="xw", y="b0"),
            _op("tanh", "t", x="h"),
            _op("dropout", "d", {"p": 0.25}, x="t"),
            _op("matmul", "prediction", x="d", y="w1"),
            _op("mse_loss", "loss", x="prediction", y="y"),
        ],
    ),
    {"type": "adam", "learning_rate": 0.01},
    {"x": ((4, 8), None), "y": ((4, 1), None)},
)
TABLE = Model(
    _program(
        [
            _var("ids", [-1], "feed", "int64"),
            _var("y", [-1, 4], "feed"),
            _var("table", [50, 4], "parameter"),
            _var("w", [4, 4], "parameter"),
        ],
        [
            _op("embedding", "rows", {"is_sparse": True}, ids="ids", weight="table"),
            _op("matmul", "prediction", x="rows", y="w"),
            _op("mse_loss", "loss", x="prediction", y="y"),
        ],
    ),
    {"type": "momentum", "learning_rate": 0.05, "momentum": 0.9},
    {"ids": ((6,), 50), "y": ((6, 4), None)},
)
MODELS = (NETWORK, TABLE)


@dataclass(frozen=True, slots=True)
class Sent:
    """One request. is_numbered: it carries a `seq`, which the client adds. steps: the updates that it makes."""

    method: str
    path: str
    body: dict[str, Any]
    is_numbered: bool
    steps: int
    headers: tuple[tuple[str, str], ...] = ()


def script(model: Model, seed: int, steps: int) -> list[Sent]:
    """Requests that make `steps` updates or a few more: mostly single steps, and all other changes."""
    rng = np.random.default_rng(seed)
    sent: list[Sent] = []
    made = 0
    while made < steps:
        kind = rng.random()
        if kind < 0.75:
            body = {"feeds": _feeds(model, rng), "return_gradients": "norms"}
            sent.append(Sent("POST", "steps", body, True, 1))
            made += 1
        elif kind < 0.83:
            body = {"feeds": _feeds(model, rng, 3), "batches": 3}
            sent.append(Sent("POST", "steps", body, True, 3))
            made += 3
        elif kind < 0.91:
            for _ in range(2):
                body = {"feeds": _feeds(model, rng), "accumulate": True}
                sent.append(Sent("POST", "gradients", body, True, 0))
            sent.append(Sent("POST", "updates", {"reduction": "mean"}, True, 1))
            made += 1
        elif kind < 0.96:
            rate = float(np.float32(rng.uniform(0.001, 0.05)))
            sent.append(Sent("PATCH", "", {"optimizer": {"learning_rate": rate}}, False, 0))
        else:
            name, shape = _last_parameter(model)
            values = rng.standard_normal(shape, np.float32)
            body = {"parameters": {name: _tensor(values)}}
            sent.append(Sent("PUT", "parameters", body, False, 0, (("If-Match", "*"),)))
    return sent


def _last_parameter(model: Model) -> tuple[str, list[int]]:
    last = [v for v in model.program["blocks"][0]["vars"] if v["role"] == "parameter"][-1]
    return last["name"], last["shape"]


def _feeds(model: Model, rng: np.random.Generator, batches: int = 0) -> dict[str, Any]:
    found = {}
    for name, (shape, bound) in model.feeds.items():
        size = (batches, *shape) if batches else shape
        values = rng.standard_normal(size, np.float32) if bound is None else rng.integers(0, bound, size)
        found[name] = _tensor(values)
    return found


def _tensor(values: np.ndarray) -> dict[str, Any]:
    return {"dtype": values.dtype.name, "shape": list(values.shape), "data": values.reshape(-1).tolist()}
