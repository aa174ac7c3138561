"""Schemas that the OpenAPI document names once and refers to by `$ref`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

__all__ = ["SCHEMAS", "component", "definitions", "model", "resolved"]

TEMPLATE = "#/components/schemas/{model}"
MARK = "x-component"
"""Key of a placeholder. pydantic and FastAPI accept no `$ref` to schemas that they did not make themselves."""

SCHEMAS: dict[str, dict[str, Any]] = {}
MODELS: dict[str, type[BaseModel]] = {}


def component(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Declare a schema of the document. Returns a placeholder that the document replaces by a reference."""
    assert SCHEMAS.setdefault(name, schema) == schema, f"two schemas have the name {name}"
    return {MARK: name}


def model(kind: type[BaseModel]) -> dict[str, Any]:
    """The same for the schema of a model, which is made with the document: it takes time that requests do not need."""
    assert MODELS.setdefault(kind.__name__, kind) is kind, f"two models have the name {kind.__name__}"
    return {MARK: kind.__name__}


def definitions() -> dict[str, Any]:
    """The declared schemas and those that they contain, by name."""
    _, found = models_json_schema([(kind, "validation") for kind in MODELS.values()], ref_template=TEMPLATE)
    return {**found["$defs"], **SCHEMAS}


def resolved(value: Any) -> Any:
    """`value` with references in place of placeholders. Members beside a placeholder stay, such as a description."""
    if isinstance(value, Mapping):
        name = value.get(MARK)
        rest = {key: resolved(each) for key, each in value.items() if key != MARK}
        return rest if name is None else {"$ref": TEMPLATE.format(model=name), **rest}
    return [resolved(each) for each in value] if isinstance(value, list) else value
