"""The OpenAPI document is fit for generators: small, valid, and with names that make good methods and types."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.paths import ROOT
from tests.service.openapi import DOCUMENT, at, whole

OPERATIONS = {
    operation["operationId"]: (path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for operation in methods.values()
}


def everything(value: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object in `value`."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from everything(each)
    elif isinstance(value, list):
        for each in value:
            yield from everything(each)


def test_the_document_is_below_500_kilobytes():
    assert (ROOT / "openapi" / "openapi.json").stat().st_size < 500_000
    assert len(orjson.dumps(DOCUMENT)) < 500_000


def test_the_document_is_valid():
    validator = pytest.importorskip("openapi_spec_validator")

    validator.validate(DOCUMENT)


def test_operation_ids_are_unique_and_in_snake_case():
    ids = Counter(operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values())

    assert [each for each, count in ids.items() if count > 1] == []
    assert [each for each in ids if not re.fullmatch(r"[a-z]+(_[a-z]+)+", each)] == []
    assert {"create_session", "train_step", "compute_gradients", "list_programs"} <= ids.keys()


def test_every_error_has_the_schema_of_problems():
    for path, operation in OPERATIONS.values():
        for status, answer in operation["responses"].items():
            if status != "default" and int(status) >= 400 and "/health" not in path:
                found = whole(DOCUMENT, answer)
                (content,) = found["content"].items()
                assert content[0] == "application/problem+json"
                assert content[1]["schema"] == {"$ref": "#/components/schemas/Problem"}, path
                assert re.fullmatch("`[a-z-]+`( `[a-z-]+`)*", found["description"]), (path, status)


def test_no_two_operations_repeat_a_parameter_or_an_answer():
    parts = [
        part
        for _, operation in OPERATIONS.values()
        for part in (*operation.get("parameters", ()), *operation["responses"].values())
        if part.keys() != {"$ref"}
    ]
    texts = Counter(orjson.dumps(part, option=orjson.OPT_SORT_KEYS) for part in parts)

    assert parts and [text for text, count in texts.items() if count > 1] == []


def test_every_shared_part_is_named_by_some_operation():
    named = {part["$ref"] for part in everything(DOCUMENT) if "$ref" in part}

    for kind in ("parameters", "responses", "headers"):
        for name in DOCUMENT["components"][kind]:
            assert f"#/components/{kind}/{name}" in named


def test_every_body_and_answer_has_a_schema():
    for name, (path, operation) in OPERATIONS.items():
        parts = [operation.get("requestBody", {}), *operation["responses"].values()]
        content = [each for part in parts for each in part.get("content", {}).values()]
        if name not in ("get_operation_result", "cancel_operation"):  # the answer of any call; no members
            assert all(each.get("schema") for each in content), path


def test_no_two_schemas_are_equal():
    texts = Counter(
        orjson.dumps(each, option=orjson.OPT_SORT_KEYS) for each in DOCUMENT["components"]["schemas"].values()
    )

    assert [text for text, count in texts.items() if count > 1] == []


def test_no_schema_of_a_component_is_repeated_in_another_place():
    """A type has one name, so that generators make one class of it."""
    named = {id(each) for each in DOCUMENT["components"]["schemas"].values()}
    large = {
        orjson.dumps(each, option=orjson.OPT_SORT_KEYS): name
        for name, each in DOCUMENT["components"]["schemas"].items()
        if "properties" in each
    }
    repeated = [
        large[text]
        for each in everything(DOCUMENT)
        if id(each) not in named and (text := orjson.dumps(each, option=orjson.OPT_SORT_KEYS)) in large
    ]

    assert repeated == []


def test_members_have_no_default_that_a_generated_client_would_send():
    for name, schema in DOCUMENT["components"]["schemas"].items():
        for member, each in schema.get("properties", {}).items():
            assert "default" not in each, (name, member)


def test_the_document_names_no_other_file():
    """Generators read what `externalValue` and references to files name, before any service runs."""
    for each in everything(DOCUMENT):
        assert "externalValue" not in each
        assert each.get("$ref", "#").startswith("#"), each


def test_a_program_declares_its_functions():
    functions = at(DOCUMENT, "#/components/schemas/Program")["properties"]["functions"]
    body = at(DOCUMENT, at(DOCUMENT, functions["additionalProperties"]["$ref"])["properties"]["program"]["$ref"])

    assert "blocks" in body["properties"]
    assert "functions" not in body["properties"]  # functions of functions are refused
