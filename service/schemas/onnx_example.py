"""The ONNX model of the documentation: y = x w + b, for any number of rows. `/static/linear.onnx` is the file."""

from __future__ import annotations

from typing import Any

__all__ = ["ONNX_EXAMPLE"]

# No `externalValue`: generators try to read the file that it names, and fail.
ONNX_EXAMPLE: dict[str, Any] = {
    "schema": {
        "type": "string",
        "format": "binary",
        "description": "The protobuf of an ONNX model. `GET /static/linear.onnx` is an example, a linear layer.",
    },
}
