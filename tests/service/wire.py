"""Requests and answers of the HTTP tests, built and read without the code under test."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import ml_dtypes  # noqa: F401  (numpy learns bfloat16)
import numpy as np
from safetensors.numpy import load, save

from tests.programs import Sketch

__all__ = ["FILE", "array", "endless", "file_of", "opened", "problem", "read_file", "regression", "tensor", "tensors"]

FILE = "application/x-safetensors"


def tensor(array: Any) -> dict[str, Any]:
    array = np.asarray(array)
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": array.ravel().tolist()}


def tensors(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensor(array) for name, array in arrays.items()}


def array(value: Mapping[str, Any]) -> np.ndarray:
    dtype = np.dtype(value["dtype"])
    flat = np.frombuffer(base64.b64decode(value["b64"]), dtype) if "b64" in value else np.array(value["data"], dtype)
    return flat.reshape(value["shape"])


def file_of(arrays: Mapping[str, np.ndarray], **request: Any) -> dict[str, Any]:
    """Arguments of a request whose body is a file of these arrays."""
    content = save({k: np.asarray(v) for k, v in arrays.items()}, metadata={"request": json.dumps(request)})
    return {"content": content, "headers": {"content-type": FILE, "accept": FILE}}


def read_file(answer: httpx.Response) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The JSON part and the arrays of an answer that is a file."""
    assert answer.headers["content-type"] == FILE, answer.text
    length = int.from_bytes(answer.content[:8], "little")
    header = json.loads(answer.content[8 : 8 + length])
    return json.loads(header["__metadata__"]["response"]), load(answer.content)


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document of `answer`, after checks of its status and code."""
    assert (answer.status_code, answer.json().get("code")) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.json()


def regression(rows: int = 4) -> Sketch:
    """mean((x w - y)^2) with x [rows, 2]: a sketch with values for all inputs."""
    s = Sketch()
    s.feed("x", np.arange(rows * 2).reshape(rows, 2) / 4)
    s.feed("y", np.ones((rows, 1)))
    s.param("w", [[0.5], [-0.25]])
    s.op("matmul", "x", "w", out="prediction")
    s.op("mse_loss", "prediction", "y", out="loss")
    return s


def endless() -> Sketch:
    """A loop that multiplies by w endlessly if the feed `go` is true, and makes no trip if it is false."""
    s = Sketch()
    s.param("w", [1.0])
    s.feed("go", True, dtype="bool")
    s.const(1.0, (1,), out="h")
    s.op("assign", "go", out="on")
    with s.loop("on"):
        s.op("mul", "h", "w", out="h")
        s.op("assign", "go", out="on")
    s.total("h")
    return s


@contextmanager
def opened(client: httpx.Client, sketch: Sketch, **settings: Any) -> Iterator[str]:
    """The path of a new session of `sketch`, which starts from its values."""
    names = {v["name"] for v in sketch.blocks[0]["vars"] if v["role"] in ("parameter", "state")}
    first = tensors({name: value for name, value in sketch.values.items() if name in names})
    body = {"program": sketch.document, "loss": "loss", "init": {"parameters": first}, **settings}
    answer = client.post("/v1/sessions", json=body)
    assert answer.status_code == 201, answer.text
    path = f"/v1/sessions/{answer.json()['id']}"
    try:
        yield path
    finally:
        client.delete(path)
