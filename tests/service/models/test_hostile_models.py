"""Mutated ONNX models over HTTP: each is answered with a program or with the reasons of a refusal, without harm."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.processes import children, command
from tests.service.conftest import Served
from tests.service.models.build import linear
from tests.service.models.mutations import mutants

HEADERS = {"content-type": "application/x-onnx"}
REFUSED = ("invalid-program", "limit-exceeded", "invalid-request")
MOST_S = 60.0
MOST_BYTES = 2 * 2**30
"""Most memory of any process of the service, far below the limit of the one that reads models."""


def processes(service: Served) -> dict[int, int]:
    """Process number -> largest resident memory in bytes, of the service and of the processes below it."""
    found: dict[int, int] = {}
    waiting = [service.process.pid]
    while waiting:
        pid = waiting.pop()
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            waiting += children(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[pid] = int(status.get("VmHWM", "0 kB").split()[0]) * 1024
    return found


def survived(service: Served, count: int, seed: int) -> Counter[str]:
    """Code of the answer -> number of mutants, after all checks."""
    client = service.client
    client.post("/v1/programs", params={"validate_only": True}, content=linear().SerializeToString(), headers=HEADERS)
    # compilers of other tests may be at work, and their forks end
    before = {pid for pid in processes(service) if b"compiler_main" not in command(pid)}
    workers = [each["id"] for each in client.get("/v1/workers").json()["workers"]]
    codes: Counter[str] = Counter()
    for name, content in mutants(count, seed):
        started = time.monotonic()
        answer = client.post("/v1/programs", params={"loss": "y"} if len(content) % 3 == 0 else {}, content=content,
                             headers=HEADERS, timeout=2 * MOST_S)  # fmt: skip
        assert time.monotonic() - started < MOST_S, name
        if answer.status_code in (200, 201):
            codes["program"] += 1
            assert client.delete(f"/v1/programs/{answer.json()['id']}").status_code == 204
            continue
        problem = answer.json()
        codes[problem["code"]] += 1
        assert (answer.status_code, problem["code"] in REFUSED) == (422, True), (name, answer.text)
        assert problem["errors"] or problem["detail"], name
        assert problem.get("reason") != "unreadable-model", (name, answer.text)
    after = processes(service)
    assert before <= after.keys(), "a process of the service ended"
    assert [each["id"] for each in client.get("/v1/workers").json()["workers"]] == workers
    assert max(after.values()) < MOST_BYTES
    assert client.get("/healthz/ready").status_code == 200
    return codes


def test_sixty_hostile_models_are_answered_and_harm_nothing(service):
    codes = survived(service, 60, seed=7)

    assert codes["program"] > 3
    assert codes["invalid-program"] > 20


@pytest.mark.slow
def test_two_thousand_hostile_models_are_answered_and_harm_nothing(service):
    codes = survived(service, 2_000, seed=8)

    assert codes.total() == 2_000
