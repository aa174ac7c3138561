"""Large answers in all forms, and answers that the client has already."""

from __future__ import annotations

import json

import httpx
import numpy as np
import pytest

from tests.programs import Sketch
from tests.service.wire import FILE, array, opened, read_file

ROWS = 40_000


def wide() -> Sketch:
    s = Sketch()
    s.param("w", np.arange(ROWS) / 8)
    s.op("mul", "w", "w", out="squares")
    s.total("squares")
    return s


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
