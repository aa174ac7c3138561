"""A request of the OpenAPI document as a command with curl."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

__all__ = ["curl", "example_of"]

Json = Mapping[str, Any]
HOST = "http://127.0.0.1:8080"
WIDTH = 110
STAND_INS = {"string": "name", "integer": 1, "number": 1.0, "boolean": True}


def curl(api: Json, path: str, method: str, operation: Json, parameters: Sequence[Json]) -> str:
    """The command for the first example of the operation. Its ids are those of the samples that each service makes."""
    address, query = path, []
    options = [] if method == "get" else ["-I"] if method == "head" else [f"-X {method.upper()}"]
    for each in parameters:
        if each["in"] == "path":
            address = address.replace(f"{{{each['name']}}}", quote(str(example_of(each)), safe=""))
        elif each.get("required") or (method == "get" and ("example" in each or "examples" in each)):
            found = str(example_of(each))
            if each["in"] == "query":
                query.append(f"{each['name']}={quote(found, safe='')}")
            else:
                options.append(f"-H {_quoted(each['name'].lower() + ': ' + found)}")
    body = operation.get("requestBody")
    if body is not None:
        media, content = next(iter(body["content"].items()))
        options.append(f"-H 'content-type: {media}'")
        example = _body(content)
        if example is not None:
            options.append(f"-d {_quoted(example)}")
            options = [each for each in options if each != "-X POST"]  # as -d implies it
        elif body.get("required"):
            options.append("--data-binary @file")
    where = f"{HOST}{address}" + (f"?{'&'.join(query)}" if query else "")
    shown = _quoted(where) if query else where
    line = " ".join(["curl -s", shown, *options])
    if len(line) <= WIDTH:
        return line
    return " \\\n  ".join([f"curl -s {shown}", *options])


def example_of(parameter: Json) -> Any:
    """An example of the parameter; a stand-in of its type if it has none."""
    for example in parameter.get("examples", {}).values():
        return example["value"]
    schema = parameter["schema"]
    for found in (
        parameter.get("example"),
        *schema.get("examples", ()),
        schema.get("default"),
        *schema.get("enum", ()),
    ):
        if found is not None:
            return found
    return STAND_INS.get(schema.get("type"), "name")


def _body(content: Json) -> str | None:
    for example in content.get("examples", {}).values():
        return _json(example["value"])
    return _json(content["example"]) if "example" in content else None


def _json(value: Any, indent: int = 0) -> str:
    """JSON with a line for each member that is long."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent <= WIDTH or not isinstance(value, dict | list) or not value:
        return flat
    pairs = (
        [(f"{json.dumps(k)}: ", v) for k, v in value.items()] if isinstance(value, dict) else [("", v) for v in value]
    )
    lines = ",\n".join(" " * (indent + 2) + key + _json(each, indent + 2) for key, each in pairs)
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    return f"{opened}\n{lines}\n{' ' * indent}{closed}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
