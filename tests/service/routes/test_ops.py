"""The catalogue of ops over HTTP: pages, filters, and the description of an op."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import core.ops
from core.ir.registry import CONSTRUCTS, REGISTRY
from core.optim.schedules import SCHEDULES
from tests.service.routes.test_programs import problem

ALL = REGISTRY | CONSTRUCTS


def pages(client: Any, **asked: Any) -> list[dict[str, Any]]:
    found, token = [], ""
    while token is not None:
        page = client.get("/v1/ops", params={**asked, "page_token": token}).json()
        found.append(page)
        token = page["next_page_token"]
    return found


@pytest.mark.parametrize("size", [7, 200])
def test_the_pages_list_all_ops_in_order(client, size):
    found = pages(client, page_size=size)

    assert [op["type"] for page in found for op in page["ops"]] == sorted(ALL)
    assert all(len(page["ops"]) == size for page in found[:-1])
    assert {page["total"] for page in found} == {len(ALL)}
    assert sum(found[0]["families"].values()) == len(ALL)


def test_a_page_has_fifty_ops_by_default(client):
    assert len(client.get("/v1/ops").json()["ops"]) == 50


def test_filters_can_be_combined(client):
    def names(**asked):
        return [op["type"] for page in pages(client, **asked) for op in page["ops"]]

    assert names(family="schedules") == sorted(SCHEDULES)
    assert names(family="reduction", search="segment") == [
        f"segment_{kind}" for kind in ("max", "mean", "min", "prod", "sum")
    ]
    assert names(family="reduction", search="segment", kind="composite") == ["segment_mean", "segment_min"]
    assert names(family="control", kind="control") == ["loop"]
    assert "while" in names(kind="construct") and not set(names(kind="construct")) & {"relu", "loop"}
    assert set(names(differentiable=False)) == {n for n, spec in ALL.items() if not spec.differentiable}
    assert "batch_norm" in names(search="Running STATISTICS batch")
    assert names(search="no op is documented with these words together") == []
    assert names(search="pool", differentiable=True, page_size=2) == names(search="pool", differentiable=True)


def test_families_are_the_folders_of_ops_and_the_schedules(client):
    folders = {path.name for path in Path(core.ops.__path__[0]).iterdir() if path.is_dir()} - {"common", "__pycache__"}

    assert client.get("/v1/ops").json()["families"].keys() == folders | {"schedules"}


@pytest.mark.parametrize(
    "query", ["family=nonsense", "kind=nonsense", "differentiable=7", "page_size=0", "page_size=201", "page_token=A"]
)
def test_an_invalid_filter_is_refused(client, query):
    found = problem(client.get(f"/v1/ops?{query}"), 422, "invalid-request")["errors"][0]
    assert found["parameter"] == "query: " + query.partition("=")[0]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "mod", "floor_div"])
def test_arithmetic_ops_document_their_axis(client, name):
    detail = client.get(f"/v1/ops/{name}").json()

    assert detail["attributes"]["properties"]["axis"] == {
        "anyOf": [{"type": "integer"}, {"type": "null"}],
        "default": None,
    }
    assert "axis" in detail["documentation"] and "elementwise_" in detail["documentation"]


@pytest.mark.parametrize(
    ("name", "attribute", "schema"),
    [
        ("hard_swish", "scale", {"type": "number", "not": {"const": 0}, "default": 6.0}),
        ("exponential", "rate", {"type": "number", "exclusiveMinimum": 0, "default": 1.0}),
        ("adam", "beta1", {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "default": 0.9}),
        ("roi_align", "sampling_ratio", {"type": "integer", "minimum": 0, "maximum": 64, "default": 2}),
        ("clip", "max", {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf"]}], "default": "inf"}),
        ("pinv", "rcond", {"anyOf": [{"type": "number", "minimum": 0}, {"type": "null"}], "default": None}),
        (
            "unfold",
            "kernel",
            {
                "type": "array",
                "items": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
                "minItems": 1,
                "maxItems": 3,
            },
        ),
    ],
)
def test_the_schema_of_an_attribute_states_its_range(client, name, attribute, schema):
    assert client.get(f"/v1/ops/{name}").json()["attributes"]["properties"][attribute] == schema


def test_the_schema_of_a_string_states_its_longest_length(client):
    message = client.get("/v1/ops/print").json()["attributes"]["properties"]["message"]
    assert message["maxLength"] == 200
