"""Small requests that want more memory than a worker has: each gets a problem, and nobody else notices."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.programs import Sketch
from tests.service.conftest import Served, serve

MIB = 2**20
LIMIT = 512 * MIB
ONE = {"dtype": "float32", "shape": [], "data": [1.0]}


class Watch:
    """The one worker of a service: its id, and the most private memory that it ever had."""

    def __init__(self, served: Served) -> None:
        self.served, self.peak, self.ended = served, 0, False
        about = self.about()
        self.id, self._statm = about["id"], Path(f"/proc/{about['pid']}/statm")
        threading.Thread(target=self._run, daemon=True).start()

    def about(self) -> dict[str, Any]:
        (worker,) = self.served.client.get("/v1/workers").json()["workers"]
        return worker

    def _run(self) -> None:
        while not self.ended:
            _, resident, shared, *_ = map(int, self._statm.read_text().split())
            self.peak = max(self.peak, (resident - shared) * 4096)
            time.sleep(0.005)


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    with serve(tmp_path_factory.mktemp("data"), workers=1, worker_memory=LIMIT, threads=1) as served:
        watch = Watch(served)
        yield watch
        watch.ended = True


@pytest.fixture
def session(watch: Watch) -> Iterator[str]:
    """A session that trains in the worker; it must go on after the test."""
    client = watch.served.client
    s = Sketch()
    s.param("w", 1.0, dtype="float32")
    s.op("square", "w", out="loss")
    body = {"program": s.document, "loss": "loss", "optimizer": {"type": "sgd"}, "init": {"parameters": {"w": ONE}}}
    opened = client.post("/v1/sessions", json=body).json()["id"]
    yield opened
    assert client.post(f"/v1/sessions/{opened}/steps", json={}).status_code == 200
    assert client.delete(f"/v1/sessions/{opened}").status_code == 204
    assert watch.about()["id"] == watch.id
    assert watch.peak <= LIMIT


def scaled(s: Sketch, name: str) -> dict[str, Any]:
    """The program with the loss ``sum(w * name)`` and a value for w."""
    s.param("w", 1.0, dtype="float32")
    s.total(s.op("mul", name, "w"))
    return {"program": s.document, "loss": "loss", "parameters": {"w": ONE}}


def doubling() -> dict[str, Any]:
    s = Sketch()
    s.const(1.0, [1000], "float32", out="h")
    with s.repeat(60):
        s.op("concat", ["h", "h"], out="h", axis=0)
    return scaled(s, "h")


def recording() -> dict[str, Any]:
    s = Sketch()
    s.param("w", 1.0, dtype="float32")
    s.op("mul", s.const(1.0, [200_000], "float32"), "w", out="h")
    with s.repeat(5000):
        s.op("mul", s.op("sin", "h"), "h", out="h")
    s.total("h")
    return {"program": s.document, "loss": "loss", "parameters": {"w": ONE}}


def sorting() -> dict[str, Any]:
    s = Sketch()
    s.op("sort", s.op("expand", s.const(1.0, [7000], "float32"), shape=[7000, 7000]), out="sorted", axis=0)
    return scaled(s, "sorted")


def drawing(fetch: list[str]) -> dict[str, Any]:
    s = Sketch()
    s.op("uniform_random", out="r", shape=[10**7])
    return scaled(s, "r") | {"fetch": fetch}


ONE_SHOT = {
    "a value that doubles in a loop": (doubling, "concat"),
    "a loop that records": (recording, "while"),
    "a sort of a broadcast": (sorting, "sort"),
    "random numbers": (lambda: drawing([]), "uniform_random"),
    "random numbers in the answer": (lambda: drawing(["r"]), "uniform_random"),
}


def refused(answer: Any) -> dict[str, Any]:
    """The problem in an answer about memory."""
    problem = answer.json()
    assert (answer.status_code, problem["code"]) in [(422, "limit-exceeded"), (503, "device-out-of-memory")], problem
    assert problem["wanted_bytes"] > problem["allowed_bytes"] >= 0
    return problem


MERGED = ("a sort of a broadcast", "random numbers", "random numbers in the answer")
"""Calls whose ops are one region in machine code, which is refused as a whole or has no array of these numbers."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.reference] * (n in MERGED)) for n in ONE_SHOT])
def test_a_one_shot_call_that_wants_too_much_is_refused_at_its_op(name, watch, session):
    body, op = ONE_SHOT[name]

    problem = refused(watch.served.client.post("/v1/gradients", json=body()))

    assert problem["location"]["type"] == op


def test_a_step_of_a_session_that_records_too_much_is_refused_and_changes_nothing(watch, session):
    client = watch.served.client
    body = recording()
    init = {"parameters": body.pop("parameters")}
    opened = client.post("/v1/sessions", json=body | {"optimizer": {"type": "sgd"}, "init": init}).json()["id"]

    for _ in range(2):
        assert refused(client.post(f"/v1/sessions/{opened}/steps", json={"seq": 1}))["location"]["type"] == "while"

    assert client.get(f"/v1/sessions/{opened}").json()["step"] == 0
    client.delete(f"/v1/sessions/{opened}")


def test_a_session_that_does_not_fit_is_refused_when_it_is_opened(watch, session):
    s = Sketch()
    s.param("w", np.zeros(2), dtype="float32")
    s.blocks[0]["vars"][0]["shape"] = [3 * 10**7]
    s.total("w")
    body = {"program": s.document, "loss": "loss", "optimizer": {"type": "adam"}}

    problem = refused(watch.served.client.post("/v1/sessions", json=body))

    assert problem["wanted_bytes"] > 4 * 3 * 3 * 10**7  # parameters and two slots of float32


def test_a_check_that_wants_too_much_is_refused(watch, session):
    client, body = watch.served.client, drawing([])
    program = client.post("/v1/programs", json={"program": body["program"]}).json()["id"]

    refused(client.post(f"/v1/programs/{program}/check", json={"loss": "loss"}))


def test_an_op_on_a_tape_that_wants_too_much_is_refused(watch, session):
    client = watch.served.client
    tape = client.post("/v1/tapes", json={}).json()["id"]
    op = {"type": "uniform_random", "outputs": {"out": ["r"]}, "attrs": {"shape": [10**7]}}

    problem = refused(client.post(f"/v1/tapes/{tape}/ops", json={"ops": [op]}))

    assert problem["location"]["type"] == "uniform_random"
    assert client.get(f"/v1/tapes/{tape}").json()["ops"] == 0
    client.delete(f"/v1/tapes/{tape}")


def test_workers_are_ended_before_the_service_when_the_machine_has_no_memory(watch):
    scores = [
        int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (watch.served.process.pid, watch.about()["pid"])
    ]

    assert scores[1] >= min(1000, scores[0] + 500)
