"""Laws over all lists: each accepts its own page tokens, and refuses those of lists of other things."""

from __future__ import annotations

import re
import time
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.schemas.examples import REGRESSION_ID
from tests.service.openapi import OPERATIONS, filled
from tests.service.wire import problem

PATTERNS: dict[str, str] = {
    path: parameter["schema"]["pattern"]
    for path, method, operation in OPERATIONS
    for parameter in operation["parameters"]
    if method == "get" and parameter["name"] == "page_token"
}
LISTS = sorted(PATTERNS)


def items(path: str) -> str:
    """The things in a list: several lists show checkpoints, in one order."""
    return path.rpartition("/")[2]


def tokens(path: str) -> st.SearchStrategy[str]:
    return st.from_regex(PATTERNS[path], fullmatch=True).filter(bool)


def request(path: str, **query: Any) -> dict[str, Any]:
    asked = filled(path, "get")
    return asked | {"params": {**asked["params"], **query}}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("path", LISTS)
@given(data=st.data())
@settings(max_examples=1, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_list_refuses_the_page_tokens_of_other_things(client: httpx.Client, path: str, data: st.DataObject):
    for other in LISTS:
        if items(other) != items(path):
            refused = client.get(**request(path, page_token=data.draw(tokens(other))))
            errors = problem(refused, 422, "invalid-request")["errors"]
            assert [error["parameter"] for error in errors] == ["query: page_token"]


@pytest.mark.parametrize("path", LISTS)
@given(data=st.data())
@settings(max_examples=1, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_list_accepts_its_own_page_tokens(client: httpx.Client, path: str, data: st.DataObject):
    token = client.get(**request(path, page_size=1)).json()["next_page_token"]
    assert token is None or re.fullmatch(PATTERNS[path], token)

    for own in (data.draw(tokens(path)), token or ""):
        answer = client.get(**request(path, page_token=own))
        assert answer.status_code == 200, answer.text


def test_a_list_has_the_newest_entry_first(client: httpx.Client):
    made = []
    for _ in range(3):
        made.append(client.post("/v1/uploads", json={"size": 10}).json()["id"])
        time.sleep(0.002)
    shown = client.get("/v1/uploads", params={"page_size": 2}).json()
    rest = client.get("/v1/uploads", params={"page_token": shown["next_page_token"], "page_size": 1}).json()

    assert [each["id"] for each in shown["uploads"] + rest["uploads"]] == made[::-1]


def test_sessions_in_memory_and_in_the_store_are_in_one_order(client: httpx.Client):
    made = []
    for durability in ("journal", "none") * 2:
        body = {"program_id": REGRESSION_ID, "loss": "loss", "durability": durability}
        made.append(client.post("/v1/sessions", json={**body, "optimizer": {"type": "sgd"}}).json()["id"])
        time.sleep(0.002)
    found, token = [], ""
    while token is not None:
        answer = client.get("/v1/sessions", params={"page_size": 1, "page_token": token}).json()
        found += [each["id"] for each in answer["sessions"]]
        token = answer["next_page_token"]

    assert [id for id in found if id in made] == made[::-1]
    for id in made:
        client.delete(f"/v1/sessions/{id}")
