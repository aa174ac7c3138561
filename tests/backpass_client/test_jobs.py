"""Waiting for a job while the service is away."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

import backpass_client as bp
from backpass_client import event_streams

VIEW = {"id": "job_1", "session_id": "ses_1", "state": "succeeded", "step": 3, "reason": "completed"}


class Clock:
    """The time of the test: a sleep takes no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(event_streams, "time", made)
    monkeypatch.setattr("backpass_client.connection.time", made)
    return made


def job_behind(answer: Callable[[httpx.Request], httpx.Response]) -> bp.Job:
    service = bp.Service("http://service")
    service._http = httpx.Client(base_url="http://service", transport=httpx.MockTransport(answer))
    return bp.Job(service, VIEW)


def away_until(clock: Clock, back: float, lost: type[httpx.TransportError] | int) -> Callable[..., httpx.Response]:
    def answer(request: httpx.Request) -> httpx.Response:
        if clock.now < back:
            if isinstance(lost, int):
                return httpx.Response(lost, text="away")
            raise lost("away")
        if request.url.path.endswith("/events"):
            return httpx.Response(204)
        return httpx.Response(200, json=VIEW)

    return answer


@pytest.mark.parametrize("lost", [httpx.ConnectError, httpx.ReadError, 502, 503])
def test_a_wait_outlasts_a_restart_of_two_minutes(clock: Clock, lost: type[httpx.TransportError] | int):
    job = job_behind(away_until(clock, 110.0, lost))

    assert job.wait(progress=False)["state"] == "succeeded"
    assert 110 <= clock.now < 120


def test_a_wait_ends_when_the_service_stays_away(clock: Clock):
    job = job_behind(away_until(clock, 1e9, httpx.ConnectError))

    with pytest.raises(bp.Unreachable):
        job.wait(progress=False, patience=30)
    assert 30 <= clock.now < 60


def test_the_patience_begins_anew_with_each_event(clock: Clock):
    event = 'id: 1\nevent: progress\ndata: {"step": 1, "steps": 3, "metrics": {}}\n\n'
    requests = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal requests
        if not request.url.path.endswith("/events"):
            return httpx.Response(200, json=VIEW)
        requests += 1
        if clock.now < 25 or 26 < clock.now < 50:
            raise httpx.ConnectError("away")
        if request.headers["last-event-id"] == "0":
            clock.now = 27.0
            return httpx.Response(200, text=event, headers={"content-type": "text/event-stream"})
        return httpx.Response(204)

    assert job_behind(answer).wait(progress=False, patience=30)["step"] == 3
    assert clock.now >= 50
