"""Case 90 of docs/semantics.md over HTTP: gradients that arrive during the step."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from core.backward.append_backward import append_backward
from core.wire import read
from tests.programs import Sketch, complex_step
from tests.service.conftest import Served, serve
from tests.service.routes.test_gradients import asked, parts
from tests.service.wire import array, endless, file_of, opened, problem, regression, tensors

LINES = "application/x-ndjson"


def layers(count: int = 4, size: int = 3) -> Sketch:
    s = Sketch()
    s.feed("x", np.linspace(-1, 1, 2 * size).reshape(2, size))
    h = "x"
    for i in range(count):
        s.param(f"w{i}", np.eye(size) + i / 10)
        s.param(f"b{i}", np.full(size, i / 7))
        h = s.op("tanh", s.op("add", s.op("matmul", h, f"w{i}"), f"b{i}"), out=f"h{i}")
    s.total(h)
    return s


@contextlib.contextmanager
def streamed(client: httpx.Client, path: str, **request: Any) -> Iterator[Iterator[dict[str, Any]]]:
    """The events of a streamed answer, each as soon as its line arrives."""
    headers = {**request.pop("headers", {}), "accept": LINES}
    with client.stream("POST", path, headers=headers, **request) as answer:
        if answer.status_code != 200:
            answer.read()
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == LINES
        yield (json.loads(line) for line in answer.iter_lines())


def events(client: httpx.Client, path: str = "/v1/gradients", **request: Any) -> list[dict[str, Any]]:
    with streamed(client, path, **request) as found:
        return list(found)


def by_hand(s: Sketch, count: int) -> dict[str, np.ndarray]:
    def loss(v: dict[str, Any]) -> Any:
        h = v["x"]
        for i in range(count):
            h = np.tanh(h @ v[f"w{i}"] + v[f"b{i}"])
        return h.sum()

    return {name: complex_step(loss, s.values, name) for name in s.values if name != "x"}


def test_90_gradients_come_last_layer_first_and_in_the_order_of_their_ready_at(client):
    s = layers()
    wanted = by_hand(s, 4)
    ready_at = append_backward(read(s.document), "loss").ready_at

    *gradients, done = events(client, json=asked(s, fetch=["h1"]))

    assert {e["event"] for e in gradients} == {"gradient"}
    assert [e["name"][1:] for e in gradients] == ["3", "3", "2", "2", "1", "1", "0", "0"]
    assert {e["name"]: e["ready_at"] for e in gradients} == ready_at
    assert [e["ready_at"] for e in gradients] == sorted(ready_at.values())
    for each in gradients:
        np.testing.assert_allclose(array(each["gradient"]), wanted[each["name"]], rtol=1e-9)
    assert done["event"] == "done"


@pytest.mark.reference
def test_a_stream_holds_the_same_members_as_a_plain_answer(client):
    s = layers()
    s.param("unused", [1.0])
    body = asked(s, fetch=["h1"])

    plain = client.post("/v1/gradients", json=body).json()
    *gradients, done = events(client, json=body)

    assert {e["name"]: e["gradient"] for e in gradients} == plain["gradients"]
    varying = {"timing_ms", "compiled", "gradients"}
    assert {k: v for k, v in done.items() if k not in varying} == {
        "event": "done", **{k: v for k, v in plain.items() if k not in varying}
    }  # fmt: skip
    assert done["missing"] == {"unused": "unused"}
    assert done["timing_ms"].keys() == plain["timing_ms"].keys()


@pytest.mark.parametrize("returned", ["none", "norms", ["w1", "b0"], []])
def test_only_returned_gradients_are_streamed(client, returned):
    *gradients, done = events(client, json=asked(layers(), return_gradients=returned))

    assert {e["name"] for e in gradients} == set(returned if isinstance(returned, list) else ())
    assert done["event"] == "done"
    assert ("gradient_norms" in done and len(done["gradient_norms"]) == 9) == (returned != "none")


def test_gradients_of_a_registered_program_and_a_file_body_are_streamed(client):
    s = layers(2)
    id = client.post("/v1/programs", json={"program": s.document}).json()["id"]
    wanted = by_hand(s, 2)

    *gradients, _ = events(client, f"/v1/programs/{id}/gradients", **file_of(s.values, loss="loss"))

    assert [e["name"][1:] for e in gradients] == ["1", "1", "0", "0"]
    for each in gradients:
        np.testing.assert_allclose(array(each["gradient"]), wanted[each["name"]], rtol=1e-9)


def test_large_gradients_are_streamed_as_base64(client):
    s = layers(3, 300)

    *gradients, done = events(client, json=asked(s))
    plain = client.post("/v1/gradients", json=asked(s)).json()["gradients"]

    assert {"b64"} == {k for e in gradients if e["name"][0] == "w" for k in e["gradient"].keys() - {"dtype", "shape"}}
    for each in gradients:
        np.testing.assert_array_equal(array(each["gradient"]), array(plain[each["name"]]))
    assert done["finite"]


def test_the_gradients_of_a_session_are_streamed(client):
    s = layers(2)
    feeds, _ = parts(s)
    wanted = by_hand(s, 2)

    with opened(client, s) as path:
        for _ in range(2):
            *gradients, done = events(client, f"{path}/gradients", json={"feeds": tensors(feeds)})
            assert [e["name"][1:] for e in gradients] == ["1", "1", "0", "0"]
            for each in gradients:
                np.testing.assert_allclose(array(each["gradient"]), wanted[each["name"]], rtol=1e-9)
            assert (done["event"], done["step"], done["weights_version"]) == ("done", 0, "e1.v0")
        assert client.post(f"{path}/steps", json={"feeds": tensors(feeds)}).json()["seq"] == 1


# --- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"loss": "nothing"}, 422, "invalid-program"),
        ({"parameters": {}}, 422, "invalid-request"),
        ({"return_gradients": ["x"]}, 422, "invalid-request"),
        ({"feeds": {"x": {"dtype": "float64", "shape": [3], "data": [1, 2, 3]}}}, 422, "shape-mismatch"),
    ],
)
def test_an_error_before_the_first_gradient_is_a_problem_document(client, change, status, code):
    answer = client.post("/v1/gradients", json=asked(layers()) | change, headers={"accept": LINES})

    problem(answer, status, code)


def test_an_error_after_the_first_gradient_is_the_last_event(client):
    s = layers()
    s.values["x"] = np.full((2, 3), 1e300)
    s.values["w0"] = np.zeros((3, 3))
    s.blocks[0]["ops"].insert(0, {"type": "square", "inputs": {"x": ["x"]}, "outputs": {"out": ["x2"]}})
    s.blocks[0]["ops"][1]["inputs"]["x"] = ["x2"]
    s.values["x"][0, 0] = 1.0
    hook = {"match": {"variable": "w0"}, "do": "check_finite"}
    hooks = [hook, {"match": {"variable": "b1"}, "do": "record"}]

    *gradients, last = events(client, json=asked(s, hooks=hooks))

    assert {"w3", "b3", "w2", "b2"} <= {e["name"] for e in gradients}
    assert "w0" not in {e["name"] for e in gradients}
    assert last["event"] == "error"
    assert (last["problem"]["code"], last["problem"]["status"]) == ("numeric-error", 422)
    assert last["problem"]["request_id"].startswith("req_")
    assert client.post("/v1/gradients", json=asked(layers())).status_code == 200


def slow_first_layer(trips: int) -> Sketch:
    """The last layer's gradient is final at once; that of `w` only after the backward pass of a loop."""
    s = Sketch()
    s.param("w", [0.5])
    s.param("last", [2.0])
    s.const(0.1, (1,), out="h")
    with s.repeat(trips):
        s.op("sin", s.op("mul", "h", "w"), out="h")
    s.total(s.op("mul", "h", "last"))
    return s


def test_90_the_last_layer_arrives_even_if_the_step_fails_later(tmp_path: Path):
    """The forward pass stays below the limit of op executions; the backward pass exceeds it."""
    with serve(tmp_path, op_executions=50_000, workers=1) as served:
        first, last = events(served.client, json=asked(slow_first_layer(9000)))

        assert (first["event"], first["name"]) == ("gradient", "last")
        assert last["event"] == "error"
        assert (last["problem"]["code"], last["problem"]["reason"]) == ("iteration-limit", "too-many-ops")
        problem(served.client.post("/v1/gradients", json=asked(slow_first_layer(9000))), 422, "iteration-limit")


# --- disconnected clients, lost workers, queues --------------------------------------------------------------------


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with one worker and high limits."""
    with serve(tmp_path_factory.mktemp("data"), workers=1, loop_trips=10**9, op_executions=10**12) as served:
        yield served


def worker(served: Served) -> dict[str, Any]:
    return served.client.get("/v1/workers").json()["workers"][0]


def metric(served: Served, name: str) -> float:
    """The sum of the samples of a metric; 0 if there is none."""
    lines = served.client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def stopped(served: Served) -> float:
    return metric(served, 'backpass_cancellations_total{source="cancel"}')


LONG = 150_000


def test_90_the_first_gradient_arrives_during_the_step_and_closing_the_stream_stops_the_step(patient):
    before, count = worker(patient), stopped(patient)

    with streamed(patient.client, "/v1/gradients", json=asked(slow_first_layer(LONG))) as found:
        first = next(found)
        assert (first["name"], worker(patient)["state"]) == ("last", "busy")

    end = time.monotonic() + 60
    while worker(patient)["state"] != "idle" and time.monotonic() < end:
        time.sleep(0.02)
    after = worker(patient)
    assert (after["state"], after["id"], after["pid"]) == ("idle", before["id"], before["pid"])
    assert stopped(patient) == count + 1
    assert patient.client.post("/v1/gradients", json=asked(regression())).status_code == 200


def test_a_worker_killed_after_the_first_gradient_ends_the_stream_with_an_error(patient):
    with streamed(patient.client, "/v1/gradients", json=asked(slow_first_layer(LONG))) as found:
        assert next(found)["name"] == "last"
        os.kill(worker(patient)["pid"], signal.SIGKILL)
        (last,) = found

    assert (last["event"], last["problem"]["code"], last["problem"]["retryable"]) == ("error", "worker-lost", True)
    patient.wait_until_ready()
    assert events(patient.client, json=asked(layers()))[-1]["event"] == "done"


@pytest.mark.reference  # a call that waits for a compilation leaves the queue
def test_a_stream_obeys_the_queue_limit_and_its_deadline(tmp_path: Path):
    with serve(tmp_path, workers=1, queue_per_worker=1, loop_trips=10**9, op_executions=10**12) as served:
        body = asked(endless())
        busy = threading.Thread(
            target=served.client.post, args=("/v1/gradients",), kwargs={"json": body | {"deadline_s": 4}}
        )
        busy.start()
        while worker(served)["state"] != "busy":
            time.sleep(0.02)
        waiting = threading.Thread(target=events, args=(served.client,), kwargs={"json": asked(layers())})
        waiting.start()
        while metric(served, "backpass_waiting_calls") < 1:
            time.sleep(0.02)

        answer = served.client.post("/v1/gradients", json=asked(layers()), headers={"accept": LINES})
        problem(answer, 429, "queue-full")
        busy.join()
        waiting.join()
        timed_out = served.client.post("/v1/gradients", json=body | {"deadline_s": 0.3}, headers={"accept": LINES})
        problem(timed_out, 504, "deadline-exceeded")
