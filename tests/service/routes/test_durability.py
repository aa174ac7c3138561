"""Durable sessions over HTTP, with real workers and a real service that are killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx

from service.schemas.examples import REGRESSION_FEEDS, REGRESSION_ID
from tests.service.conftest import Served, serve
from tests.service.wire import problem

ASKED = {
    "program_id": REGRESSION_ID,
    "loss": "loss",
    "optimizer": {"type": "adam", "learning_rate": 0.01},
    "init": {"seed": 3},
}


def opened(client: httpx.Client, **more: Any) -> str:
    answer = client.post("/v1/sessions", json={**ASKED, **more})
    assert answer.status_code == 201, answer.text
    return f"/v1/sessions/{answer.json()['id']}"


def feeds(i: int) -> dict[str, Any]:
    found = {name: dict(tensor) for name, tensor in REGRESSION_FEEDS.items()}
    found["x"]["data"] = [value + 0.01 * i for value in found["x"]["data"]]
    return found


def step(client: httpx.Client, path: str, seq: int) -> httpx.Response:
    body = {"feeds": feeds(seq), "seq": seq, "return_gradients": "all"}
    return client.post(f"{path}/steps", json=body)


def values(answer: httpx.Response) -> dict[str, Any]:
    """The answer without times and the members that tell sessions of other durability apart."""
    assert answer.status_code == 200, answer.text
    left_out = ("timing_ms", "durable_step", "weights_version", "compiled", "memory")
    return {name: value for name, value in answer.json().items() if name not in left_out}


def kill_worker_of(served: Served, path: str) -> None:
    held_by = served.client.get(path).json()["worker"]
    pid = next(w["pid"] for w in served.client.get("/v1/workers").json()["workers"] if w["id"] == held_by)
    os.kill(pid, signal.SIGKILL)


def test_a_session_continues_bit_for_bit_after_kills_of_its_worker_and_of_the_service(tmp_path: Path):
    with serve(tmp_path) as served:
        client = served.client
        path, twin = opened(client), opened(client, durability="none")
        expected = [values(step(client, twin, seq)) for seq in range(1, 13)]
        parameters = client.get(f"{twin}/parameters").json()["parameters"]
        for seq in range(1, 9):
            if seq == 5:
                kill_worker_of(served, path)
            answer = step(client, path, seq)
            assert values(answer) == expected[seq - 1]
            assert answer.json()["durable_step"] == seq
        served.process.kill()
        served.process.wait()

    with serve(tmp_path) as served:
        client = served.client
        assert [s["step"] for s in client.get("/v1/sessions").json()["sessions"] if path.endswith(s["id"])] == [8]
        view = client.get(path).json()
        assert (view["step"], view["next_seq"], view["durability"]) == (8, 9, "journal")
        problem(client.get(twin), 404, "not-found")
        again = step(client, path, 8)
        assert (values(again), again.headers["idempotency-replayed"]) == (expected[7], "true")
        for seq in range(9, 13):
            assert values(step(client, path, seq)) == expected[seq - 1]
        assert client.get(f"{path}/parameters").json()["parameters"] == parameters
        made = client.post(f"{path}/checkpoints", json={}).json()
        assert client.delete(path).status_code == 204
        gone = problem(client.get(path), 410, "gone")
        assert (gone["program_id"], gone["checkpoint"], gone["checkpoint_step"]) == (REGRESSION_ID, made["id"], 12)


def test_a_parked_session_goes_on_where_it_was(tmp_path: Path):
    with serve(tmp_path, resident_sessions=1, journal_entries=3) as served:
        client = served.client
        twin = opened(client, durability="none")
        expected = [values(step(client, twin, seq)) for seq in range(1, 7)]

        idle = opened(client)
        for seq in range(1, 6):
            assert values(step(client, idle, seq)) == expected[seq - 1]
        time.sleep(1.1)  # a session in use is not parked
        opened(client)
        end = time.monotonic() + 60
        while client.get(idle).json()["state"] != "parked" and time.monotonic() < end:
            time.sleep(0.05)
        view = client.get(idle).json()
        assert (view["state"], view["worker"], view["step"]) == ("parked", None, 5)
        started = time.monotonic()
        assert values(step(client, idle, 6)) == expected[5]
        assert time.monotonic() - started < 30.0
        assert values(step(client, idle, 5)) == expected[4]  # the stored answer


def test_a_session_with_checkpoints_alone_goes_on_from_the_last_one(tmp_path: Path):
    with serve(tmp_path, journal_entries=3) as served:
        client = served.client
        twin = opened(client, durability="none")
        expected = [values(step(client, twin, seq)) for seq in range(1, 9)]

        sparse = opened(client, durability="checkpoint", checkpoint_every=3)
        for seq in range(1, 5):
            assert values(step(client, sparse, seq)) == expected[seq - 1]
        end = time.monotonic() + 60
        while client.get(sparse).json()["durable_step"] < 3 and time.monotonic() < end:
            time.sleep(0.05)
        saved = client.get(sparse).json()["durable_step"]
        assert saved in (3, 4)
        assert values(step(client, sparse, 5)) == expected[4]
        before = client.get(sparse).json()["worker"]
        kill_worker_of(served, sparse)
        end = time.monotonic() + 60
        while client.get(sparse).json()["worker"] == before and time.monotonic() < end:
            time.sleep(0.05)
        told = problem(step(client, sparse, 6), 409, "rolled-back")
        assert (told["step"], told["durable_step"], told["expected_seq"]) == (saved, saved, saved + 1)
        for seq in range(saved + 1, 9):
            assert values(step(client, sparse, seq)) == expected[seq - 1]


def test_no_two_states_have_one_etag_before_and_after_a_rollback(tmp_path: Path):
    """A client that has not heard of the rollback would otherwise change values that it has never seen."""
    with serve(tmp_path) as served:
        client = served.client
        path = opened(client, durability="checkpoint", checkpoint_every=100)
        before = [step(client, path, seq).headers["etag"] for seq in (1, 2)]
        lost = client.get(f"{path}/parameters")
        kill_worker_of(served, path)
        told = step(client, path, 3)
        while told.status_code == 503:
            told = step(client, path, 3)
        assert problem(told, 409, "rolled-back")["step"] == 0
        after = [client.post(f"{path}/steps", json={"feeds": feeds(i)}).headers["etag"] for i in (7, 8)]
        there = client.get(f"{path}/parameters", headers={"If-None-Match": lost.headers["etag"]})
        stale = client.post(f"{path}/steps", json={"feeds": feeds(9)}, headers={"If-Match": before[-1]})

        assert not {*before} & {*after}
        assert there.status_code == 200
        assert there.json()["parameters"] != lost.json()["parameters"]
        assert there.json()["weights_version"] != lost.json()["weights_version"]
        assert there.headers["etag"] == after[-1] == client.get(path).headers["etag"]
        problem(stale, 412, "precondition-failed")
