"""The OpenAPI document for tests: as it is generated, and with the parts that its operations refer to."""

from __future__ import annotations

from typing import Any

from service.app import create_app
from service.settings import Settings

__all__ = ["DOCUMENT", "OPERATIONS", "at", "whole"]

DOCUMENT: dict[str, Any] = create_app(Settings.model_construct()).openapi()


def at(document: dict[str, Any], reference: str) -> Any:
    """The part of `document` that a `$ref` names."""
    found: Any = document
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


def whole(document: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """`part`, or what it refers to. Members beside the reference replace those of its target."""
    return {**at(document, part["$ref"]), **part} if "$ref" in part else part


def _operation(operation: dict[str, Any]) -> dict[str, Any]:
    return {
        **operation,
        "parameters": [whole(DOCUMENT, each) for each in operation.get("parameters", ())],
        "responses": {status: whole(DOCUMENT, each) for status, each in operation["responses"].items()},
    }


OPERATIONS: list[tuple[str, str, dict[str, Any]]] = [
    (path, method, _operation(operation))
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
"""Path, method and operation, with its parameters and responses in place of references."""
