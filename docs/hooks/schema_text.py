"""JSON schemas of openapi.json as Markdown: the type of a value in words, and tables of members."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["cell", "members", "type_text"]

Schema = Mapping[str, Any]
BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "multipleOf": "a multiple of {}",
}
FORMATS = {"binary": "bytes", "date-time": "time (RFC 3339)"}


def cell(text: str) -> str:
    """Text for a cell of a table: one line, in which a bar is no border."""
    return " ".join(text.replace("\n\n", "<br>").split()).replace("|", "\\|")


def type_text(schema: Schema, types: str) -> str:
    """The type in words, with links to named types. types: relative path of the page of types."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}]({types}#{name})"
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(dict.fromkeys(type_text(each, types) for each in schema[union]))
    if "allOf" in schema:
        return " and ".join(type_text(each, types) for each in schema["allOf"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    kind = schema.get("type", "any value")
    if isinstance(kind, list):
        return " or ".join(kind)
    return {"array": _array, "object": _object, "string": _text}.get(kind, _plain)(schema, types) + _bounds(schema)


def members(schema: Schema, types: str) -> str:
    """A table of the members of an object."""
    needed = schema.get("required", ())
    rows = [
        f"| `{name}`{_mark(name in needed)} | {cell(type_text(each, types))} | {cell(_meaning(each))} |"
        for name, each in schema["properties"].items()
    ]
    return "\n".join(["| member | type | meaning |", "|---|---|---|", *rows])


def _mark(is_required: bool) -> str:
    return "" if is_required else " (optional)"


def _meaning(schema: Schema) -> str:
    found = [schema.get("description", "")]
    if "pattern" in schema:
        found.append(f"Matches `{schema['pattern']}`.")
    return " ".join(filter(None, found))


def _array(schema: Schema, types: str) -> str:
    if "prefixItems" in schema:
        return "list of " + ", ".join(type_text(each, types) for each in schema["prefixItems"])
    return f"list of {_grouped(schema.get('items', {}), types)}"


def _object(schema: Schema, types: str) -> str:
    if "properties" in schema:
        return "object with " + ", ".join(
            f"`{name}`: {type_text(each, types)}" for name, each in schema["properties"].items()
        )
    values = schema.get("additionalProperties", True)
    return "object" if isinstance(values, bool) else f"object of name -> {_grouped(values, types)}"


def _text(schema: Schema, types: str) -> str:
    return FORMATS.get(schema.get("format", ""), "text")


def _plain(schema: Schema, types: str) -> str:
    return str(schema.get("type", "any value"))


def _grouped(schema: Schema, types: str) -> str:
    found = type_text(schema, types)
    return f"({found})" if " or " in found else found


def _bounds(schema: Schema) -> str:
    found = [text.format(schema[name]) for name, text in BOUNDS.items() if name in schema]
    return re.sub(r"\b1 (item|character)s", r"1 \1", f" ({', '.join(found)})") if found else ""
