"""How routes that read and write tensors appear in the OpenAPI document: their bodies are read by hand."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from service.body import JSON, SAFETENSORS
from service.problems import responses
from service.schemas.gradients import OP, PROGRAM

__all__ = ["HOT_PROBLEMS", "accepts", "answers"]

REFERENCES = {"Program": PROGRAM, "Op": OP}
"""Schemas of the document that stand for themselves."""
FILE = {"schema": {"type": "string", "format": "binary"}}

HOT_PROBLEMS = (
    "invalid-json",
    "invalid-tensor-file",
    "not-acceptable",
    "body-timeout",
    "body-too-large",
    "unsupported-media-type",
    "unsupported-encoding",
    "invalid-request",
    "limit-exceeded",
    "shape-mismatch",
    "dtype-mismatch",
    "iteration-limit",
    "execution-failed",
    "queue-full",
    "no-capacity",
    "worker-lost",
    "device-out-of-memory",
    "deadline-exceeded",
)


def accepts(
    model: type[BaseModel], required: bool = True, binary: bool = True, **examples: tuple[str, Any]
) -> dict[str, Any]:
    """`openapi_extra` of a route that takes `model`, as JSON or (`binary`) in a safetensors file.

    examples: name=(summary, body).
    """
    shown = {name: {"summary": summary, "value": value} for name, (summary, value) in examples.items()}
    content: dict[str, Any] = {JSON: {"schema": _schema(model), "examples": shown}}
    if binary:
        content[SAFETENSORS] = FILE
    return {"requestBody": {"required": required, "content": content}}


def answers(model: type[BaseModel], example: Any, *problems: str, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that answers with `model` as JSON or in a safetensors file, or with a problem."""
    content = {JSON: {"example": example}, SAFETENSORS: FILE}
    good: dict[int | str, dict[str, Any]] = {
        status: {"model": model, "description": (model.__doc__ or "").partition("\n")[0], "content": content}
    }
    return good | responses(*problems)


def _schema(model: type[BaseModel]) -> Any:
    """The schema of `model` in one piece: what FastAPI does not declare itself, it does not collect definitions of."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inlined(value: Any) -> Any:
        for name, schema in REFERENCES.items():
            if value == schema:
                return {"$ref": f"#/components/schemas/{name}"}
        if isinstance(value, dict):
            if "$ref" in value:
                value = {**definitions[value["$ref"].rpartition("/")[2]], **value}
                value.pop("$ref")
            return {name: inlined(each) for name, each in value.items()}
        return [inlined(each) for each in value] if isinstance(value, list) else value

    return inlined(schema)
