"""The OpenAPI document: fresh, complete, and true: what it shows can be sent as it stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.app import create_app
from service.settings import Settings

FILE = Path(__file__).parent.parent.parent / "openapi" / "openapi.json"
DOCUMENT = create_app(Settings.model_construct()).openapi()
OPERATIONS = [
    (path, method, operation) for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()
]
NAMES = [f"{method.upper()} {path}" for path, method, _ in OPERATIONS]


def test_the_file_is_not_stale():
    assert json.loads(FILE.read_text()) == json.loads(json.dumps(DOCUMENT)), "run `make openapi`"


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=NAMES)
def test_every_operation_is_described_with_its_errors(path, method, operation):
    assert operation["summary"]
    assert operation.get("description") or path.startswith("/problems")
    assert operation["tags"]
    for status, answer in operation["responses"].items():
        assert answer["description"]
        if int(status) >= 400 and path != "/healthz/ready":
            assert list(answer["content"]) == ["application/problem+json"], status
    if method in ("post", "put"):
        assert any(int(s) >= 400 for s in operation["responses"])
        assert "examples" in operation["requestBody"]["content"]["application/json"]


def test_every_reference_points_somewhere():
    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for each in value.values():
                yield from references(each)
        elif isinstance(value, list):
            for each in value:
                yield from references(each)

    for reference in references(DOCUMENT):
        at: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            assert step in at, reference
            at = at[step]


POSTS = [
    (path, name, example["value"])
    for path, method, operation in OPERATIONS
    if method == "post" and "{session_id}" not in path and "{tape_id}" not in path
    for name, example in operation["requestBody"]["content"]["application/json"]["examples"].items()
]


@pytest.mark.parametrize(("path", "name", "value"), POSTS, ids=[f"{p} {n}" for p, n, _ in POSTS])
def test_every_example_can_be_sent_as_it_stands(client, path, name, value):
    from service.samples import REGRESSION_ID

    answer = client.post(path.replace("{program_id}", REGRESSION_ID), json=value)

    assert answer.status_code in (200, 201), answer.text
