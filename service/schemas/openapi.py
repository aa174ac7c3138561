"""The OpenAPI document: what FastAPI reads from the routes, with the parts that several routes share named once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, iter_route_contexts

from service.problems import components
from service.schemas.access import add_access
from service.schemas.common_answers import add_common_answers
from service.schemas.components import SCHEMAS, definitions, resolved
from service.schemas.headers import add_headers

__all__ = ["openapi_of", "openapi_text"]

WIDTH = 120
SCHEMA_MAPS = ("properties", "patternProperties", "$defs")
SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SCHEMA_MEMBERS = ("items", "additionalProperties", "not")


def openapi_of(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of `app`."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, tags=app.openapi_tags, routes=app.routes
    )
    _restore_examples(document, app)
    schemas, own = document["components"]["schemas"], definitions()
    assert all(schemas[name] == SCHEMAS[name] for name in schemas.keys() & SCHEMAS.keys()), "two schemas have one name"
    schemas |= own
    for kind, parts in components().items():
        document["components"].setdefault(kind, {}).update(parts)
    add_headers(document)
    add_common_answers(document)
    add_access(document)
    document = resolved(document)
    for schema in _schemas(document):
        _shorten(schema)
        for member in schema.get("properties", {}).values():
            _say_default(member)
    _share_parameters(document)
    return document


def _restore_examples(document: dict[str, Any], app: FastAPI) -> None:
    """Put back the examples of answers as the routes have them: FastAPI leaves out their members that are null."""
    for route in iter_route_contexts(app.routes):
        if not isinstance(route.original_route, APIRoute) or not route.include_in_schema:
            continue
        for method in route.methods or ():
            shown = document["paths"][route.path_format][method.lower()]["responses"]
            for status, answer in route.responses.items():
                for kind, content in answer.get("content", {}).items():
                    if "example" in content:
                        shown[str(status)]["content"][kind]["example"] = content["example"]


def openapi_text(value: Any, indent: str = "") -> str:
    """`value` as JSON for people: what fits into a line is in one line, so that the file is short."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent + line) <= WIDTH:
        return line
    inner = indent + " "
    if isinstance(value, list):
        parts = [inner + openapi_text(each, inner) for each in value]
        return "[\n" + ",\n".join(parts) + f"\n{indent}]"
    parts = [f"{inner}{json.dumps(key)}: {openapi_text(each, inner)}" for key, each in value.items()]
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


def _schemas(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every schema of the document, the outermost first."""
    yield from (each for schema in document["components"]["schemas"].values() for each in _within(schema))
    parts = [operation for methods in document["paths"].values() for operation in methods.values()]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            yield from _within(part.get("schema"))
            parts += [each for key, each in part.items() if key not in ("schema", "example", "examples")]


def _within(schema: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(schema, dict):
        return
    yield schema
    for key in SCHEMA_MAPS:
        for each in schema.get(key, {}).values():
            yield from _within(each)
    for key in SCHEMA_LISTS:
        for each in schema.get(key, ()):
            yield from _within(each)
    for key in SCHEMA_MEMBERS:
        yield from _within(schema.get(key))


def _shorten(schema: dict[str, Any]) -> None:
    """Remove what says nothing: the title, which repeats the name, and the default null of an optional member."""
    schema.pop("title", None)
    if schema.get("default", 0) is None:
        del schema["default"]


def _say_default(member: dict[str, Any]) -> None:
    """Move the default of a member into its description.

    Generated clients send members that have a default, or demand them; but a service that is sent a member obeys it,
    even if a checkpoint has another value, and answers leave members out.
    """
    default, text = member.pop("default", None), member.get("description", "")
    if default not in (None, {}, [], "") and "default" not in text.lower():
        shown = default if isinstance(default, str) else json.dumps(default)
        member["description"] = f"{text} By default `{shown}`.".strip()


def _share_parameters(document: dict[str, Any]) -> None:
    """Move parameters that several operations have into the components."""
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    texts = Counter(_text(each) for operation in operations for each in operation.get("parameters", ()))
    shared = document["components"].setdefault("parameters", {})
    named: dict[str, str] = {}
    for text, count in texts.items():
        if count > 1:
            name = "".join(word.capitalize() for word in json.loads(text)["name"].replace("-", "_").split("_"))
            number = 1 + sum(other.rstrip("0123456789") == name for other in shared)
            named[text] = name if number == 1 else f"{name}{number}"
            shared[named[text]] = json.loads(text)
    for operation in operations:
        if "parameters" in operation:
            operation["parameters"] = [
                {"$ref": f"#/components/parameters/{named[text]}"} if (text := _text(each)) in named else each
                for each in operation["parameters"]
            ]


def _text(parameter: dict[str, Any]) -> str:
    return json.dumps(parameter, sort_keys=True)
