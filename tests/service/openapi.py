"""The OpenAPI document for tests: as it is generated, and with the parts that its operations refer to."""

from __future__ import annotations

from typing import Any

from service.app import create_app
from service.settings import Settings

__all__ = ["BY_PATH", "DOCUMENT", "OPERATIONS", "at", "filled", "whole"]

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
        "responses": {status: _response(each) for status, each in operation["responses"].items()},
    }


def _response(response: dict[str, Any]) -> dict[str, Any]:
    found = whole(DOCUMENT, response)
    content = {
        kind: {**each, "examples": {name: whole(DOCUMENT, example) for name, example in each["examples"].items()}}
        if "examples" in each
        else each
        for kind, each in found.get("content", {}).items()
    }
    return {**found, "content": content} if content else found


OPERATIONS: list[tuple[str, str, dict[str, Any]]] = [
    (path, method, _operation(operation))
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
"""Path, method and operation, with its parameters and responses in place of references."""

BY_PATH = {(path, method): operation for path, method, operation in OPERATIONS}


def filled(path: str, method: str, **given: str) -> dict[str, Any]:
    """A request with the values that the API page shows at first: `url`, `params` and `headers`."""
    parts: dict[str, Any] = {"path": {}, "query": {}, "header": {}}
    for each in BY_PATH[path, method]["parameters"]:
        shown = [
            *(e["value"] for e in each.get("examples", {}).values()),
            *([each["example"]] if "example" in each else []),
        ]
        if each["name"] in given:
            parts["path"][each["name"]] = given[each["name"]]
        elif shown:
            parts[each["in"]][each["name"]] = shown[0]
        else:
            assert not each.get("required"), each["name"]
    headers = {name: str(value) for name, value in parts["header"].items()}
    return {"url": path.format(**parts["path"]), "params": parts["query"], "headers": headers}
