"""Tensors as the API documents them. Bodies on hot routes are not built into models: numbers are read in bulk."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from service.formats.json_tensors import DTYPES

__all__ = ["TENSOR", "Gradient", "Gradients", "Tensor", "Tensors"]

TENSOR: dict[str, Any] = {
    "title": "Tensor",
    "type": "object",
    "description": "Exactly one of data and b64 is there. An answer that is not finite comes as b64.",
    "required": ["dtype", "shape"],
    "additionalProperties": False,
    "properties": {
        "dtype": {"type": "string", "enum": list(DTYPES)},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 8},
        "data": {
            "type": "array",
            "items": {"type": ["number", "boolean"]},
            "description": "Flat, row-major, finite numbers (booleans for bool).",
        },
        "b64": {"type": "string", "description": "Base64 of the little-endian bytes, row-major."},
        "finite": {"type": "boolean", "description": "False in an answer with NaN or infinity."},
    },
    "example": {"dtype": "float32", "shape": [2, 2], "data": [1, 2, 3, 4]},
}

Tensor = Annotated[Any, WithJsonSchema(TENSOR)]
Tensors = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "additionalProperties": TENSOR}),
    Field(max_length=100_000),
]
"""Name -> tensor; read by `service.formats.json_tensors.decode_all`, which checks what is inside."""

ROWS: dict[str, Any] = {
    "title": "Rows of a table",
    "type": "object",
    "description": "All other rows of the table are zero.",
    "required": ["rows", "values"],
    "additionalProperties": False,
    "properties": {
        "rows": {
            **TENSOR,
            "description": "Which rows: int64 [n]. In an answer ascending, each there once; a client may repeat "
            "them, and then their values add up.",
            "example": {"dtype": "int64", "shape": [2], "data": [3, 17]},
        },
        "values": {
            **TENSOR,
            "description": "Their values, [n, ...].",
            "example": {"dtype": "float32", "shape": [2, 2], "data": [1, 2, 3, 4]},
        },
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}, "description": "Of the whole table."},
    },
}
Gradient = Annotated[Any, WithJsonSchema({"anyOf": [TENSOR, ROWS]})]
Gradients = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "additionalProperties": {"anyOf": [TENSOR, ROWS]}}),
    Field(max_length=100_000),
]
"""Name -> gradient: a tensor, or the rows of a table with sparse lookups (`service.http.tensor_payloads`)."""
