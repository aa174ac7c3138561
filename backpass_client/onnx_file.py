"""ONNX models as bytes: those to send, and those that the service writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["ACCEPT", "content_of", "model_query", "saved"]

ACCEPT = {"accept": "application/x-onnx"}
"""The header of a request for a model."""


def content_of(model: Any) -> bytes:
    """The protobuf of a model: a path, bytes, or an object of the package onnx.

    A file is sent with its external data inside if the package onnx is installed, and as it is otherwise.
    Raises OSError, TypeError.
    """
    if isinstance(model, bytes | bytearray | memoryview):
        return bytes(model)
    if isinstance(model, str | os.PathLike):
        return _of_file(Path(model))
    if hasattr(model, "SerializeToString"):
        found: bytes = model.SerializeToString()
        return found
    raise TypeError(f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}")


def _of_file(path: Path) -> bytes:
    content = path.read_bytes()
    if b"location" not in content:  # the key of every external tensor
        return content
    try:
        import onnx
    except ImportError:
        return content  # the service names the tensors whose data is missing
    loaded: bytes = onnx.load(path).SerializeToString()
    return loaded


def model_query(outputs: Sequence[str] | None, opset: int | None) -> dict[str, Any]:
    """The query parameters of a request for a model."""
    return {name: value for name, value in (("outputs", outputs), ("opset", opset)) if value is not None}


def saved(content: bytes, path: str | os.PathLike[str] | None) -> bytes:
    """`content`, written to the file `path` if there is one. Raises OSError."""
    if path is not None:
        Path(path).write_bytes(content)
    return content
