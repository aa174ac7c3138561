"""The OpenAPI document describes everything that a client sends or reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.openapi import DOCUMENT

SKIPPED = ("example", "examples", "const", "enum")
"""Keys whose values are data of clients, not parts of the document."""


def parts(value: Any, place: str = "") -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every part of the document that needs a description: its kind, its place, and the part."""
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from parts(each, f"{place}/{number}")
    elif isinstance(value, dict):
        if "in" in value and "schema" in value:
            yield "parameter", f"{place} ({value['name']})", value
        for key, each in value.items():
            if key in ("properties", "headers") and isinstance(each, dict):
                for name, part in each.items():
                    yield key, f"{place}/{key}/{name}", part
            if key not in SKIPPED:
                yield from parts(each, f"{place}/{key}")


def says_something(text: str) -> bool:
    """Whether a description is a sentence, and has more than the default that the document adds to it."""
    text = re.sub(r" ?By default `.*`\.$", "", text)
    return text.rstrip("`)").endswith((".", "..."))


def undescribed(kind: str, document: dict[str, Any]) -> list[str]:
    """The places of the parts of this kind whose description is missing, or no sentence."""
    return [
        place
        for found, place, part in parts(document)
        if found == kind and "$ref" not in part and not says_something(part.get("description", ""))
    ]


@pytest.mark.parametrize("kind", ["properties", "parameter", "headers"])
def test_every_member_parameter_and_header_has_a_description(kind):
    assert sum(found == kind for found, _, _ in parts(DOCUMENT)) > 3
    assert undescribed(kind, DOCUMENT) == []


def test_the_law_finds_members_of_inner_schemas_and_those_with_only_a_default():
    texts = {"bare": "", "default": "By default `1`.", "described": "A name. By default `key`."}
    inner = {"properties": {name: {"type": "string", "description": text} for name, text in texts.items()}}
    document = {"components": {"schemas": {"Outer": {"anyOf": [{"type": "array", "items": inner}]}}}}

    place = "/components/schemas/Outer/anyOf/0/items/properties"
    assert undescribed("properties", document) == [f"{place}/bare", f"{place}/default"]


@pytest.mark.parametrize("name", DOCUMENT["components"]["schemas"])
def test_every_schema_has_a_description(name):
    assert DOCUMENT["components"]["schemas"][name].get("description")


@pytest.mark.parametrize("name", DOCUMENT["components"]["securitySchemes"])
def test_every_security_scheme_has_a_description(name):
    assert DOCUMENT["components"]["securitySchemes"][name]["description"]
