"""Answers that are too large, answers as text, and answers that the client has already."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.programs import Sketch
from tests.service.conftest import Served, serve
from tests.service.wire import FILE, array, opened, problem, read_file

ROWS = 40_000


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("limited")
    with serve(folder, json_answer_bytes=100_000, binary_answer_bytes=10**6, codecs=1) as served:
        yield served


def wide() -> Sketch:
    s = Sketch()
    s.param("w", np.arange(ROWS) / 8)
    s.op("mul", "w", "w", out="squares")
    s.total("squares")
    return s


def test_an_answer_above_its_limit_is_refused_before_the_step_takes_effect(limited: Served):
    with opened(limited.client, wide(), optimizer={"type": "sgd", "learning_rate": 0.125}) as path:
        found = problem(limited.client.post(f"{path}/steps", json={"return_gradients": "all"}), 422, "limit-exceeded")

        assert "application/x-safetensors" in found["detail"]
        assert found["reason"] == "answer-too-large"
        assert limited.client.get(path).json()["step"] == 0

        again = limited.client.post(f"{path}/steps", json={"return_gradients": "all"}, headers={"accept": FILE})
        _, tensors = read_file(again)
        np.testing.assert_allclose(tensors["grad/w"], np.arange(ROWS) / 4)
        problem(limited.client.get(f"{path}/parameters"), 422, "limit-exceeded")


def test_large_json_answers_and_streams_hold_the_same_numbers_as_a_file(client: httpx.Client):
    with opened(client, wide(), optimizer={"type": "sgd"}) as path:
        file = read_file(client.get(f"{path}/parameters", headers={"accept": FILE}))[1]
        text = client.get(f"{path}/parameters").json()
        np.testing.assert_array_equal(array(text["parameters"]["w"]), file["w"])
        lines = client.post(f"{path}/gradients", json={}, headers={"accept": "application/x-ndjson"}).text.splitlines()

        np.testing.assert_allclose(array(json.loads(lines[0])["gradient"]), 2 * file["w"])
        assert json.loads(lines[-1])["event"] == "done"


@pytest.mark.parametrize("tail", ["backward?loss=loss", "graph?loss=loss", "graph", "analysis?loss=loss", ""])
def test_a_client_that_has_the_answer_gets_status_304(client: httpx.Client, tail: str):
    id = client.post("/v1/programs", json={"program": wide().document}).json()["id"]
    path = f"/v1/programs/{id}/{tail}".rstrip("/")
    first = client.get(path)
    again = client.get(path, headers={"if-none-match": first.headers["etag"]})

    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert client.get(path, headers={"if-none-match": '"other"'}).status_code == 200


def test_forms_of_a_graph_have_different_tags(client: httpx.Client):
    id = client.post("/v1/programs", json={"program": wide().document}).json()["id"]
    forms = ("application/json", "text/plain", "text/html", "text/vnd.graphviz")
    tags = {client.get(f"/v1/programs/{id}/graph", headers={"accept": form}).headers["etag"] for form in forms}
    assert len(tags) == len(forms)


def test_the_openapi_document_has_a_tag(client: httpx.Client):
    first = client.get("/openapi.json")
    assert first.json()["openapi"].startswith("3.")
    assert client.get("/openapi.json", headers={"if-none-match": first.headers["etag"]}).status_code == 304
