"""ONNX models as the bytes to send."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

__all__ = ["content_of"]


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
