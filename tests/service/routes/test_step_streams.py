"""Steps of a session that stream their gradients."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from service.schemas.examples import REGRESSION, REGRESSION_FEEDS
from tests.service.routes.test_streaming import array

NDJSON = {"accept": "application/x-ndjson"}


@pytest.fixture
def pair(client):
    """Two sessions with the same seed."""
    made = []
    for _ in range(2):
        body = {"program": REGRESSION, "loss": "loss", "init": {"seed": 3}, "optimizer": {"type": "adam"},
                "clip": {"by": "global_norm", "max_norm": 0.5}}  # fmt: skip
        answer = client.post("/v1/sessions", json=body)
        assert answer.status_code == 201, answer.text
        made.append(f"/v1/sessions/{answer.json()['id']}")
    yield made
    for path in made:
        client.delete(path)


def streamed(client: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = client.post(f"{path}/steps", json={"feeds": REGRESSION_FEEDS, **body}, headers=NDJSON)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_streamed_step_is_the_step_that_another_session_takes(client, pair):
    for seq in (1, 2, 3):
        *gradients, done = streamed(client, pair[0], seq=seq)
        plain = client.post(
            f"{pair[1]}/steps", json={"feeds": REGRESSION_FEEDS, "seq": seq, "return_gradients": "all"}
        ).json()

        assert [each["name"] for each in gradients] == ["b", "w"]
        assert [each["ready_at"] for each in gradients] == sorted(each["ready_at"] for each in gradients)
        for each in gradients:
            np.testing.assert_allclose(array(each["gradient"]), array(plain["gradients"][each["name"]]), rtol=1e-5)
        assert done["event"] == "done"
        assert (done["step"], done["seq"], done["next_seq"]) == (seq, seq, seq + 1)
        assert done.keys() - {"event"} == plain.keys() - {"gradients"}
        np.testing.assert_allclose(array(done["loss"]), array(plain["loss"]), rtol=1e-5)
    assert client.get(pair[0]).json()["step"] == 3


def test_a_repeated_streamed_step_is_answered_with_the_stored_stream(client, pair):
    body = {"feeds": REGRESSION_FEEDS, "seq": 1}
    first = client.post(f"{pair[0]}/steps", json=body, headers=NDJSON)
    again = client.post(f"{pair[0]}/steps", json=body, headers=NDJSON)

    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["content-type"] == "application/x-ndjson"
    assert again.content == first.content
    assert client.get(pair[0]).json()["step"] == 1


def test_only_named_gradients_are_streamed(client, pair):
    *gradients, done = streamed(client, pair[0], return_gradients=["w"])
    assert [each["name"] for each in gradients] == ["w"]
    *gradients, done = streamed(client, pair[0], return_gradients="norms")
    assert not gradients and done["gradient_norms"].keys() == {"w", "b", "global"}


@pytest.mark.parametrize("first", ["application/json", "application/x-ndjson", "application/x-safetensors"])
def test_a_repeated_step_never_gets_a_form_that_it_does_not_accept(client, pair, first):
    step = {"feeds": REGRESSION_FEEDS, "seq": 1}
    client.post(f"{pair[0]}/steps", json=step, headers={"accept": first})

    for accept in ("application/json", "application/x-ndjson", "application/x-safetensors", "*/*"):
        answer = client.post(f"{pair[0]}/steps", json=step, headers={"accept": accept})
        if accept in (first, "*/*"):
            assert (answer.status_code, answer.headers["content-type"]) == (200, first)
        else:
            assert (answer.status_code, answer.json()["code"]) == (406, "not-acceptable")
            assert first in answer.json()["detail"]


def test_steps_on_several_batches_are_not_streamed(client, pair):
    for member in ("batches", "accumulate"):
        body = {"feeds": REGRESSION_FEEDS, member: 2}
        answer = client.post(f"{pair[0]}/steps", json=body, headers=NDJSON)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, f"/{member}")


def test_an_error_before_the_first_gradient_is_a_problem_document(client, pair):
    answer = client.post(f"{pair[0]}/steps", json={"feeds": {}}, headers=NDJSON)

    assert answer.status_code == 422
    assert answer.headers["content-type"].startswith("application/problem+json")


def test_a_step_that_fails_after_its_gradients_ends_the_stream_with_an_error_and_changes_nothing(client, pair):
    feeds = {**REGRESSION_FEEDS, "x": {"dtype": "float32", "shape": [3, 2], "data": [3e38] * 6}}

    *_, last = streamed(client, pair[0], feeds=feeds, require_finite=True)

    assert last["event"] == "error"
    assert last["problem"]["code"] == "numeric-error"
    assert client.get(pair[0]).json()["step"] == 0


def test_a_session_with_streamed_and_plain_steps_is_rebuilt_to_the_bit(client, service, pair):
    """Replay runs a streamed step op by op, as the step itself did."""
    for i in range(6):
        headers = NDJSON if i % 2 else {}
        assert client.post(f"{pair[0]}/steps", json={"feeds": REGRESSION_FEEDS}, headers=headers).status_code == 200
    accept = {"accept": "application/x-safetensors"}
    before = load(client.get(f"{pair[0]}/parameters", headers=accept).content)
    worker = client.get(pair[0]).json()["worker"]
    pid = next(each["pid"] for each in client.get("/v1/workers").json()["workers"] if each["id"] == worker)
    os.kill(pid, signal.SIGKILL)

    for _ in range(100):
        after = client.get(f"{pair[0]}/parameters", headers=accept)
        if after.status_code == 200:
            break
    found = load(after.content)
    assert {name: each.tobytes() for name, each in found.items()} == {n: each.tobytes() for n, each in before.items()}
