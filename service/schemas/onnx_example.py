"""The ONNX model of the documentation: y = x w + b, for any number of rows. `/static/linear.onnx` is the file."""

from __future__ import annotations

from typing import Any

__all__ = ["ONNX_EXAMPLE"]

ONNX_EXAMPLE: dict[str, Any] = {
    "schema": {"type": "string", "format": "binary", "description": "The protobuf of an ONNX model."},
    "examples": {"linear": {"summary": "A linear layer", "externalValue": "/static/linear.onnx"}},
}
