"""Metrics of calls to workers: each call is counted once under one label, with its time of compilation."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.engine import QueueFull
from service.settings import Settings
from tests.programs import Sketch
from tests.service.wire import opened, problem, tensors


class FullQueue:
    """An engine that refuses every call."""

    def __init__(self) -> None:
        self.events: Counter[tuple[str, str]] = Counter()
        self.waiting = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def workers(self) -> list[Any]:
        return []

    def on_worker_lost(self, callback: Any) -> None: ...

    def on_spent(self, callback: Any) -> None: ...

    def on_turn(self, callback: Any) -> None: ...

    async def call(self, *args: Any, **more: Any) -> Any:
        raise QueueFull("64 calls are waiting already")


def samples(page: str, name: str) -> dict[str, float]:
    """Labels -> value of each sample of the metric `name`."""
    found = re.findall(rf"^{name}(\{{.*\}})? (\S+)$", page, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def sketch(factor: float) -> Sketch:
    s = Sketch()
    s.feed("x", np.array([1.0, 2.0]))
    s.param("w", [0.5, -0.25])
    s.total(s.op("scale", s.op("mul", "x", "w"), scale=factor))
    return s


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/programs", {"program": sketch(1.0).document}, "inspect"),
        ("/v1/gradients", {"program": sketch(1.0).document, "loss": "loss"}, "gradients"),
        ("/v1/sessions", {"program": sketch(1.0).document, "loss": "loss"}, "session.create"),
    ],
)
def test_a_full_queue_is_counted_once_under_its_problem_code(tmp_path, path, body, kind):
    with TestClient(create_app(Settings(data_dir=tmp_path), FullQueue())) as client:  # type: ignore[arg-type]
        before = samples(client.get("/metrics").text, "backpass_steps_total")

        problem(client.post(path, json=body), 429, "queue-full")

        counted = samples(client.get("/metrics").text, "backpass_steps_total")
    assert {labels: n for labels, n in counted.items() if n != before.get(labels)} == {
        f'{{kind="{kind}",outcome="error",reason="queue-full"}}': 1.0
    }


def compilations(client: httpx.Client) -> tuple[float, float]:
    page = client.get("/metrics").text
    name = "backpass_program_compile_seconds"
    return samples(page, f"{name}_count")[""], samples(page, f"{name}_sum")[""]


def test_a_compilation_is_timed_once(client: httpx.Client):
    s = sketch(1.5)
    body = {"program": s.document, "loss": "loss", "feeds": tensors({"x": s.values["x"]})}
    body |= {"parameters": tensors({"w": s.values["w"]})}
    calls, seconds = compilations(client)

    for compiled in (True, False):
        assert client.post("/v1/gradients", json=body).json()["compiled"] is compiled

    again, more = compilations(client)
    assert again == calls + 1
    assert more > seconds


def test_a_compilation_for_a_parked_call_is_timed(client: httpx.Client):
    calls, seconds = compilations(client)

    with opened(client, sketch(2.5)) as path:  # the answer waits for the machine code
        again, more = compilations(client)
        assert again == calls + 1
        assert more > seconds
        answer = client.post(f"{path}/steps", json={"feeds": tensors({"x": np.ones(2)})})
        assert answer.json()["compiled"] is False
    assert compilations(client)[0] == again
