"""The curves of a session and the histograms of its parameters, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from service.schemas.examples import REGRESSION_FEEDS, SAMPLE_SETTINGS

BATCHES = {
    name: {**tensor, "shape": [3, *tensor["shape"]], "data": tensor["data"] * 3}
    for name, tensor in REGRESSION_FEEDS.items()
}


@pytest.fixture
def session(client) -> Iterator[str]:
    at = client.post("/v1/sessions", json=SAMPLE_SETTINGS).headers["location"]
    yield at
    client.delete(at)


def test_the_curves_have_the_numbers_of_the_answers(client, session):
    first = client.post(f"{session}/steps", json={"feeds": REGRESSION_FEEDS, "return_gradients": "norms"}).json()
    second = client.post(f"{session}/steps", json={"feeds": REGRESSION_FEEDS}).json()
    third = client.post(f"{session}/steps", json={"feeds": BATCHES, "batches": 3}).json()
    answer = client.get(f"{session}/metrics").json()
    columns = answer["columns"]

    assert answer["recorded"] == 5
    assert columns["step"] == [1, 2, 3, 4, 5]
    losses = [*first["loss"]["data"], *second["loss"]["data"], *third["loss"]["data"]]
    np.testing.assert_allclose(columns["loss"], losses, rtol=1e-6)
    assert columns["gradient_norm"] == [first["gradient_norms"]["global"], None, None, None, None]
    assert columns["learning_rate"] == [first["learning_rate"], second["learning_rate"], *third["learning_rate"]]
    assert client.get(f"{session}/metrics", params={"after": 3}).json()["columns"]["step"] == [4, 5]


def test_a_replayed_step_is_recorded_once(client, session):
    for _ in range(3):
        client.post(f"{session}/steps", json={"seq": 1, "feeds": REGRESSION_FEEDS})

    assert client.get(f"{session}/metrics").json()["recorded"] == 1


def test_a_step_whose_gradients_are_streamed_is_recorded_once(client, session):
    body, form = {"feeds": REGRESSION_FEEDS, "seq": 1}, {"accept": "application/x-ndjson"}
    first, again = (client.post(f"{session}/steps", json=body, headers=form) for _ in range(2))
    assert again.content == first.content

    found = client.get(f"{session}/metrics").json()["columns"]

    assert found["step"] == [1]
    assert found["loss"] == pytest.approx(json.loads(first.text.splitlines()[-1])["loss"]["data"], rel=1e-6)


def test_the_stream_of_a_deleted_session_ends(client, session):
    client.post(f"{session}/steps", json={"feeds": REGRESSION_FEEDS})
    kinds = []
    with client.stream("GET", f"{session}/events", headers={"accept": "text/event-stream"}, timeout=20) as answer:
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kinds.append(line.removeprefix("event: "))
                client.delete(session)
            if kinds[-1:] == ["closed"] and line.startswith("data: "):
                assert json.loads(line.removeprefix("data: ")) == {"reason": "the session was deleted"}

    assert kinds == ["steps", "closed"]


def test_histograms_describe_the_parameters(client, session):
    client.put(
        f"{session}/parameters",
        json={"parameters": {"w": {"dtype": "float32", "shape": [2, 1], "data": [-1, 3]}}},
        headers={"If-Match": "*"},
    )
    answer = client.get(f"{session}/histograms", params={"bins": 4, "names": ["w"]})

    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["histograms"]
    assert (found["min"], found["max"], found["mean"], found["std"]) == (-1.0, 3.0, 1.0, 2.0)
    assert found["counts"] == [1, 0, 0, 1]


def test_unknown_names_and_sessions_are_refused_with_their_place(client, session):
    wrong = client.get(f"{session}/histograms", params={"names": ["w", "ww"]})

    assert wrong.status_code == 422
    assert "names" in wrong.json()["errors"][0]["parameter"]
    for what in ("metrics", "histograms"):
        assert client.get(f"/v1/sessions/ses_{'a' * 26}/{what}").status_code == 404
