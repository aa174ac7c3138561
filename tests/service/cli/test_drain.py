"""The end of `backpass serve`: readiness, refusals, running calls, and the exit status."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx

from tests.service.conftest import COMMAND, Served, serve
from tests.service.routes.test_gradients import asked
from tests.service.wire import endless, problem

LONG = {"workers": 1, "loop_trips": 10**9, "op_executions": 10**12}


@contextlib.contextmanager
def running(served: Served, seconds: float) -> Iterator[list[httpx.Response]]:
    """A call that ends by its own deadline after `seconds`; its answer is in the list when the block has ended."""
    answers: list[httpx.Response] = []
    body = asked(endless(), deadline_s=seconds)
    thread = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{served.url}/v1/gradients", json=body, timeout=60, verify=False))
    )
    thread.start()
    wait_for(lambda: any(w["state"] == "busy" for w in served.client.get("/v1/workers").json()["workers"]))
    try:
        yield answers
    finally:
        thread.join()


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def ready(served: Served) -> tuple[int, dict[str, Any]]:
    answer = served.client.get("/healthz/ready")
    return answer.status_code, answer.json()


def test_readiness_ends_at_once_and_work_is_refused_after_the_delay_while_calls_end(tmp_path) -> None:
    with serve(tmp_path, command=COMMAND, **LONG, drain_delay=2, graceful_shutdown=20) as served:
        with running(served, 6) as answers:
            began = time.monotonic()  # before the delay can begin
            served.process.send_signal(signal.SIGTERM)
            wait_for(lambda: ready(served)[0] == 503, 2)

            assert not ready(served)[1]["checks"]["running"]["ok"]
            assert served.client.get("/healthz/live").status_code == 200
            accepted = served.client.get("/v1/programs")
            assert accepted.status_code == 200
            assert accepted.headers["connection"] == "close"
            wait_for(lambda: served.client.get("/v1/programs").status_code == 503)
            assert time.monotonic() - began >= 1.9
            refused = served.client.post("/v1/gradients", json={})
            assert problem(refused, 503, "draining")["retryable"]
            assert int(refused.headers["retry-after"]) > 0
        problem(answers[0], 504, "deadline-exceeded")  # the end that the call has without a signal

        assert served.process.wait(60) == 0


def test_calls_that_outlast_the_grace_period_are_answered_and_the_exit_status_is_0(tmp_path) -> None:
    with serve(tmp_path, command=COMMAND, **LONG, graceful_shutdown=2) as served:
        with running(served, 60) as answers:
            served.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert served.process.wait(60) == 0
            assert time.monotonic() - began < 15
        problem(answers[0], 503, "draining")


def test_a_second_signal_ends_the_service_at_once(tmp_path) -> None:
    with serve(tmp_path, command=COMMAND, **LONG, drain_delay=20, graceful_shutdown=60) as served:
        served.process.send_signal(signal.SIGTERM)
        wait_for(lambda: ready(served)[0] == 503)

        served.process.send_signal(signal.SIGINT)

        assert served.process.wait(15) == 128 + signal.SIGINT


def test_a_service_that_hangs_at_its_end_is_ended_by_the_kernel(tmp_path) -> None:
    program = (
        "import time; from service.cli import server; from service.cli.main import main\n"
        "server.Server.shutdown = lambda self, sockets=None: time.sleep(60)\n"
        "main(['serve'])"
    )
    with serve(tmp_path, command=["-c", program], workers=1, graceful_shutdown=0.5) as served:
        served.process.send_signal(signal.SIGTERM)

        assert served.process.wait(60) == -signal.SIGALRM


def test_a_process_that_leaves_slowly_after_an_orderly_end_has_status_0(tmp_path) -> None:
    program = (
        "import atexit, sys, time; from service.cli.main import main\n"
        "atexit.register(time.sleep, 3.5)\n"
        "sys.exit(main(['serve']))"
    )
    with serve(tmp_path, command=["-c", program], workers=1, graceful_shutdown=0.5) as served:
        served.process.send_signal(signal.SIGTERM)

        assert served.process.wait(60) == 0


def test_a_part_of_the_service_that_fails_or_hangs_at_its_end_stops_nothing(tmp_path) -> None:
    program = """
import asyncio, sys
from service import app as made
from service.cli.main import main
create = made.create_app
async def hangs():
    print("told", file=sys.stderr, flush=True)
    await asyncio.sleep(60)
async def fails():
    raise RuntimeError("no disk")
def create_app(settings, engine):
    app = create(settings, engine)
    app.state.operations.drain, app.state.idempotency.drain = hangs, fails
    return app
made.create_app = create_app
sys.exit(main(["serve"]))
"""
    log = tmp_path / "log"
    with (
        log.open("w") as file,
        serve(
            tmp_path / "data", command=["-c", program], stderr=file, workers=1, graceful_shutdown=2, log_level="error"
        ) as served,
    ):
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0

    lines = log.read_text().splitlines()
    assert [line for line in lines if not line.startswith("{")] == ["told"]
    messages = [json.loads(line)["message"] for line in lines if line.startswith("{")]
    assert messages[0] == "idempotency failed to end"
    assert messages[1].startswith("operations did not end within")
