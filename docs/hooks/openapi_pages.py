"""The reference of the API from openapi/openapi.json: a page for each tag, and parts of the pages in docs/api."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from curl import curl
from schema_text import cell, members, type_text

__all__ = ["document", "pages", "problem_codes", "routes", "routes_of", "types"]

Json = Mapping[str, Any]
METHODS = ("get", "put", "post", "patch", "delete", "head", "options")
TYPES, PROBLEMS = "types.md", "problems.md"
WRITTEN = "problems"  # the tag whose page is in docs/api


def document(root: Path) -> dict[str, Any]:
    return json.loads((root / "openapi" / "openapi.json").read_text())


def pages(api: Json) -> dict[str, str]:
    """A page for each tag: path below docs/ -> Markdown."""
    return {f"api/{tag['name']}.md": _tag_page(api, tag) for tag in api["tags"] if tag["name"] != WRITTEN}


def routes(api: Json) -> str:
    """Every tag with a table of its routes."""
    lines = []
    for tag in api["tags"]:
        page = f"{tag['name']}.md"
        lines += [f"## [{tag['name']}]({page})\n", f"{tag['description']}\n", _table(api, tag["name"], page), ""]
    return "\n".join(lines)


def routes_of(api: Json, tag: str) -> str:
    """An entry for each route of a tag."""
    return "\n".join(_route(api, path, method, operation) for path, method, operation in _operations(api, tag))


def _operations(api: Json, tag: str) -> Iterator[tuple[str, str, Json]]:
    for path, methods in api["paths"].items():
        for method in METHODS:
            if method in methods and methods[method]["tags"][0] == tag:
                yield path, method, methods[method]


def _table(api: Json, tag: str, page: str) -> str:
    rows = [
        f"| [`{method.upper()} {path}`]({page}#{operation['operationId']}) | {operation['summary']} |"
        for path, method, operation in _operations(api, tag)
    ]
    return "\n".join(["| route | |", "|---|---|", *rows])


def _tag_page(api: Json, tag: Json) -> str:
    table = _table(api, tag["name"], "")
    return f"# {tag['name'].capitalize()}\n\n{tag['description']}\n\n{table}\n\n{routes_of(api, tag['name'])}"


def _route(api: Json, path: str, method: str, operation: Json) -> str:
    name = operation["operationId"]
    lines = [f"## {operation['summary']} {{ #{name} }}\n", f"**`{method.upper()} {path}`**", "{ .route }\n"]
    if "description" in operation:
        lines.append(f"{_spaced(operation['description'])}\n")
    parameters = [_resolved(api, each) for each in operation.get("parameters", ())]
    if parameters:
        rows = [_parameter(each) for each in parameters]
        lines += ["| parameter | in | type | meaning |", "|---|---|---|---|", *rows, ""]
    if "requestBody" in operation:
        lines += _body(operation["requestBody"])
    lines += ["| answer | media type | body or meaning |", "|---|---|---|", *_answers(api, operation), ""]
    lines += ["```sh", curl(api, path, method, operation, parameters), "```", ""]
    said = "no API key" if operation.get("security") == [] else "an API key, where the service has keys"
    lines.append(f"Operation `{name}`; needs {said}.\n")
    return "\n".join(lines)


def _parameter(parameter: Json) -> str:
    needed = "" if parameter.get("required") else " (optional)"
    schema = parameter["schema"]
    default = f" By default `{json.dumps(schema['default'])}`." if schema.get("default") is not None else ""
    meaning = cell(parameter.get("description") or schema.get("description", "")) + default
    return f"| `{parameter['name']}`{needed} | {parameter['in']} | {cell(type_text(schema, TYPES))} | {meaning} |"


def _body(body: Json) -> list[str]:
    rows = [f"| `{media}` | {cell(type_text(each['schema'], TYPES))} |" for media, each in body["content"].items()]
    needed = "body" if body.get("required") else "body (optional)"
    lines = [f"| {needed} | type |", "|---|---|", *rows, ""]
    return [f"{_spaced(body['description'])}\n", *lines] if "description" in body else lines


def _answers(api: Json, operation: Json) -> Iterator[str]:
    for status, given in sorted(operation["responses"].items()):
        answer = {**_resolved(api, given), **{key: each for key, each in given.items() if key != "$ref"}}
        is_problem = status != "default" and int(status) >= 400
        meaning = re.sub(r"`([a-z-]+)`", _code_link, answer["description"]) if is_problem else answer["description"]
        content = answer.get("content", {})
        if is_problem or not content:
            media = ", ".join(f"`{each}`" for each in content)
            yield f"| {status} | {media} | {cell(meaning)} |"
            continue
        for media, each in content.items():
            yield f"| {status} | `{media}` | {cell(type_text(each.get('schema', {}), TYPES))}. {cell(meaning)} |"


def _code_link(found: re.Match[str]) -> str:
    return f"[`{found[1]}`]({PROBLEMS}#{found[1]})"


def _resolved(api: Json, given: Json) -> Json:
    if "$ref" not in given:
        return given
    _, section, name = given["$ref"].removeprefix("#/").split("/")
    return api["components"][section][name]


def types(api: Json) -> str:
    """An entry for each JSON type."""
    lines = []
    for name, schema in sorted(api["components"]["schemas"].items(), key=lambda item: item[0].lower()):
        lines.append(f"## {name} {{ #{name} }}\n")
        if "description" in schema:
            lines.append(f"{_spaced(schema['description'])}\n")
        table = members(schema, "") if "properties" in schema else f"Is {type_text(schema, '')}."
        lines.append(f"{table}\n")
    return "\n".join(lines)


def problem_codes(root: Path) -> str:
    """An entry for each code of a problem."""
    lines = []
    for code, kind in runpy.run_path(str(root / "service" / "problems" / "types.py"))["CODES"].items():
        statuses = " or ".join(map(str, kind.statuses))
        again = "may succeed" if kind.retryable else "fails again"
        lines += [
            f"## {code} {{ #{code} }}\n",
            f"**{kind.title}.** Status {statuses}; the same request {again}.\n",
            f"{kind.meaning}\n",
            f"*Remedy:* {kind.remedy}\n",
        ]
    return "\n".join(lines)


def _spaced(text: str) -> str:
    """Markdown whose lists start after an empty line, as this Markdown needs them."""
    return re.sub(r"(?m)^(?![*-] )(.+)\n(?=[*-] )", r"\1\n\n", text)
