"""Sessions that wait for a compilation, while other sessions train. The tests stop the compiler process with a
signal, so that a compilation takes as long as the test needs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from service.worker.compiling import Compilations
from tests.policy_nests import nest
from tests.processes import children, command, halt, until_asked
from tests.service.conftest import Served, serve
from tests.service.wire import array, opened, problem, regression, tensors

SGD = {"type": "sgd", "learning_rate": 0.1}
SKETCH = regression()
BODY = {"feeds": tensors({name: SKETCH.values[name] for name in "xy"})}


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Served]:
    """A service with one worker and no machine code on disk."""
    with serve(tmp_path, workers=1, cache_bytes=0) as served:
        yield served


def compiler_of(served: Served) -> int:
    """The process id of the worker's compiler process."""
    (worker,) = (w["pid"] for w in served.client.get("/v1/workers").json()["workers"])
    (found,) = [pid for pid in children(worker) if b"core.codegen.compiler_main" in command(pid)]
    return found


def until_parked(served: Served) -> None:
    """Wait until a call waits for a compilation."""
    end = time.monotonic() + 60
    while 'backpass_worker_parked_calls{worker="0"} 1.0' not in served.client.get("/metrics").text:
        assert time.monotonic() < end, "no call waits for a compilation"
        time.sleep(0.001)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    halt(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def two_steps(client: httpx.Client, path: str) -> None:
    """Steps of a new session; the second one waits for machine code, so that no compilation is left."""
    for _ in range(2):
        assert client.post(f"{path}/steps", json=BODY).status_code == 200


def test_idle_compilations_release_the_compiler():
    ended = threading.Event()
    Compilations(lambda number: None, idle=ended.set, idle_s=0.01).start()

    assert ended.wait(60)


@pytest.mark.reference
def test_a_stopped_compiler_delays_only_the_session_that_needs_it(one: Served):
    client, other = one.client, regression(rows=7)
    feeds = {"feeds": tensors({name: other.values[name] for name in "xy"})}
    with opened(client, SKETCH, optimizer=SGD) as path, ThreadPoolExecutor(1) as pool:
        two_steps(client, path)
        with stopped(compiler_of(one)), opened(client, other, optimizer={"type": "adam"}) as late:
            assert client.post(f"{late}/steps", json=feeds).json()["step"] == 1  # without machine code
            held = pool.submit(client.post, f"{late}/steps", json=feeds)
            until_parked(one)
            for seq in range(3, 30):
                said = client.post(f"{path}/steps", json={"seq": seq, **BODY})
                assert (said.status_code, said.json()["step"]) == (200, seq)
            fresh = client.post("/v1/gradients", json={"program": SKETCH.document, "loss": "loss", "values": {}})
            assert fresh.status_code == 422  # calls for any worker are answered too
            assert not held.done()
            os.kill(compiler_of(one), signal.SIGCONT)
            assert held.result(60).json()["step"] == 2


def test_a_compiler_crash_fails_the_call_that_needs_it(one: Served):
    client = one.client
    with opened(client, SKETCH, optimizer=SGD) as path, ThreadPoolExecutor(1) as pool:
        two_steps(client, path)
        before = array(client.get(f"{path}/parameters").json()["parameters"]["w"])
        compiler = compiler_of(one)
        request = {"seq": 3, "fetch": ["prediction"], **BODY}
        halt(compiler)
        held = pool.submit(client.post, f"{path}/steps", json=request)
        until_asked(compiler)  # a process that ended before would be replaced
        os.kill(compiler, signal.SIGKILL)

        said = problem(held.result(60), 422, "execution-failed")

        assert (said["reason"], said["detail"]) == ("compiler-failed", "the compiler ended: killed by SIGKILL")
        np.testing.assert_array_equal(array(client.get(f"{path}/parameters").json()["parameters"]["w"]), before)
        again = client.post(f"{path}/steps", json=request).json()
        assert (again["seq"], again["step"]) == (3, 3)
        assert compiler_of(one) != compiler


def test_a_deadline_ends_the_compilation_of_llvm_and_the_worker_serves_on(one: Served):
    client, other = one.client, regression(rows=7)
    with opened(client, SKETCH, optimizer=SGD) as path:
        two_steps(client, path)
        worker, compiler = client.get("/v1/workers").json()["workers"][0]["pid"], compiler_of(one)
        halt(compiler)
        request = {"seq": 3, "fetch": ["prediction"], "deadline_s": 2, **BODY}  # the plan is ready earlier

        problem(client.post(f"{path}/steps", json=request), 504, "deadline-exceeded")

        until_ended(compiler)
        assert client.post(f"{path}/steps", json={**request, "deadline_s": 60}).json()["step"] == 3
        with opened(client, other, optimizer={"type": "adam"}):
            pass
        assert client.get("/v1/workers").json()["workers"][0]["pid"] == worker


def test_a_deadline_ends_the_backward_pass_and_the_worker_serves_on(one: Served):
    client = one.client
    with opened(client, SKETCH, optimizer=SGD) as path:
        two_steps(client, path)
        worker = client.get("/v1/workers").json()["workers"][0]["pid"]
        large = nest("while", 60, "binomial")
        feeds = tensors({name: large.values[name] for name in ("xs", "yes", "first")})
        parameters = tensors({"w": large.values["w"]})
        request = {
            "program": large.document,
            "loss": "loss",
            "feeds": feeds,
            "parameters": parameters,
            "deadline_s": 0.3,
        }

        problem(client.post("/v1/gradients", json={**request, "deadline_s": 0.3}), 504, "deadline-exceeded")

        until_quiet(worker)
        assert client.post(f"{path}/steps", json={"seq": 3, **BODY}).json()["step"] == 3
        assert client.get("/v1/workers").json()["workers"][0]["pid"] == worker


def until_ended(pid: int) -> None:
    end = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end, f"process {pid} still runs"
        time.sleep(0.01)


def until_quiet(pid: int) -> None:
    """Wait until a process uses no processor time for a while."""
    end = time.monotonic() + 60
    used = -1
    while (now := sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))) > used + 2:
        assert time.monotonic() < end, f"process {pid} still computes"
        used = now
        time.sleep(0.2)
