"""The OpenAPI document: what FastAPI reads from the routes, with the parts that several routes share named once."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, iter_route_contexts

from service.problems import components, is_problem, show
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
    _show_problems(document)
    _share(document)
    return document


def _show_problems(document: dict[str, Any]) -> None:
    """Give each error response of an operation an example of its own: that of the schema has another status."""
    examples = document["components"].setdefault("examples", {})
    for methods in document["paths"].values():
        for operation in methods.values():
            answers = operation["responses"]
            answers |= {
                status: show(each, int(status), examples) for status, each in answers.items() if is_problem(each)
            }


def _restore_examples(document: dict[str, Any], app: FastAPI) -> None:
    """Put back the examples as the routes have them: FastAPI leaves out their members that are null."""
    for route in iter_route_contexts(app.routes):
        if not isinstance(route.original_route, APIRoute) or not route.include_in_schema:
            continue
        sent = (route.openapi_extra or {}).get("requestBody", {})
        for method in route.methods or ():
            operation = document["paths"][route.path_format][method.lower()]
            for status, answer in route.responses.items():
                _restore(operation["responses"][str(status)], answer)
            _restore(operation.get("requestBody", {}), sent)


def _restore(shown: dict[str, Any], given: dict[str, Any]) -> None:
    """Copy the examples of `given`, an answer or the body of a request, to the same media types of `shown`."""
    for kind, content in given.get("content", {}).items():
        shown["content"][kind].update({name: content[name] for name in ("example", "examples") if name in content})


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


def _share(document: dict[str, Any]) -> None:
    """Move the parameters and the answers that several operations have into the components."""
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    parameters = [(each["parameters"], i) for each in operations for i in range(len(each.get("parameters", ())))]
    answers = [(each["responses"], status) for each in operations for status in each["responses"]]
    _share_parts(document, "parameters", parameters, lambda parameter, i: parameter["name"])
    _share_parts(document, "responses", answers, _name_of_answer)


def _share_parts(
    document: dict[str, Any],
    kind: str,
    places: Sequence[tuple[Any, Any]],
    name_of: Callable[[dict[str, Any], Any], str],
) -> None:
    """Name the parts once that are in several `places`, each a list or an object with an index of it.

    kind: of the components. name_of: a name for a part at an index, in words with anything between them.
    """
    texts = Counter(_text(holder[key]) for holder, key in places)
    shared = document["components"].setdefault(kind, {})
    named: dict[str, str] = {}
    for holder, key in places:
        text = _text(holder[key])
        part = holder[key]
        if texts[text] == 1 or part.keys() == {"$ref"}:
            continue
        if text not in named:
            name = "".join(word[0].upper() + word[1:] for word in re.findall("[A-Za-z]+", name_of(part, key)))
            number = 1 + sum(other.rstrip("0123456789") == name for other in shared)
            named[text] = name if number == 1 else f"{name}{number}"
            shared[named[text]] = part
        holder[key] = {"$ref": f"#/components/{kind}/{named[text]}"}


def _name_of_answer(answer: dict[str, Any], status: str) -> str:
    """For a problem its first code, otherwise the type of the answer, or the word of its status."""
    if found := re.search("`([a-z-]+)`", answer["description"] if status >= "400" else ""):
        return found[1]
    for content in answer.get("content", {}).values():
        if "$ref" in content.get("schema", {}):
            return content["schema"]["$ref"].rpartition("/")[2]
    return HTTPStatus(int(status)).phrase


def _text(part: dict[str, Any]) -> str:
    return json.dumps(part, sort_keys=True)
