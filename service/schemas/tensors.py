"""Tensors as the API documents them. Their numbers are decoded in bulk, without a pydantic model."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from service.formats.json_tensors import DTYPES
from service.schemas.components import component

__all__ = ["TENSOR", "Gradient", "Gradients", "Tensor", "Tensors"]

TENSOR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Exactly one of `data` and `b64` is present. An answer with NaN or infinity has `b64`.",
    "required": ["dtype", "shape"],
    "additionalProperties": False,
    "properties": {
        "dtype": {"type": "string", "enum": list(DTYPES), "description": "Type of the elements."},
        "shape": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "maxItems": 8,
            "description": "Sizes of the axes; empty for a single number.",
        },
        "data": {
            "type": "array",
            "items": {"type": ["number", "boolean"]},
            "description": "Finite numbers (booleans for bool), flat, in row-major order.",
        },
        "b64": {"type": "string", "description": "Base64 of the little-endian bytes in row-major order."},
        "finite": {"type": "boolean", "description": "In answers: false if the tensor contains NaN or infinity."},
    },
    "example": {"dtype": "float32", "shape": [2, 2], "data": [1, 2, 3, 4]},
}
TENSOR = component("Tensor", TENSOR_SCHEMA)

Tensor = Annotated[Any, WithJsonSchema(TENSOR)]
Tensors = Annotated[
    dict[str, Any],
    WithJsonSchema(
        component("Tensors", {"type": "object", "description": "Tensors by name.", "additionalProperties": TENSOR})
    ),
    Field(max_length=100_000),
]
"""Name -> tensor; decoded and checked by `service.formats.json_tensors.decode_all`."""

ROWS: dict[str, Any] = {
    "type": "object",
    "description": "Gradient of a table with sparse lookups. All other rows are zero.",
    "required": ["rows", "values"],
    "additionalProperties": False,
    "properties": {
        "rows": {
            **TENSOR,
            "description": "Row numbers: int64 [n]. In answers ascending and unique. In requests a row may be "
            "repeated: its values are added.",
            "example": {"dtype": "int64", "shape": [2], "data": [3, 17]},
        },
        "values": {
            **TENSOR,
            "description": "Values of these rows, [n, ...].",
            "example": {"dtype": "float32", "shape": [2, 2], "data": [1, 2, 3, 4]},
        },
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}, "description": "Shape of the table."},
    },
}
GRADIENT = component(
    "Gradient",
    {
        "description": "A gradient: a tensor, or the rows of a table with sparse lookups.",
        "anyOf": [TENSOR, component("Rows", ROWS)],
    },
)
Gradient = Annotated[Any, WithJsonSchema(GRADIENT)]
Gradients = Annotated[
    dict[str, Any],
    WithJsonSchema(
        component(
            "Gradients", {"type": "object", "description": "Gradients by name.", "additionalProperties": GRADIENT}
        )
    ),
    Field(max_length=100_000),
]
"""Name -> gradient: a tensor, or the rows of a table with sparse lookups (`service.http.tensor_payloads`)."""
