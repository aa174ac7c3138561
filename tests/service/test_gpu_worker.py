"""A service whose worker has a GPU, emulated or real, answers as one on the processor, and survives its failures."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("cupy", reason="the stand-in is made from the installed cupy")
import cupy

from tests.device.emulator import compiler
from tests.device.worker_gpu import environment
from tests.service.conftest import COMMAND, serve
from tests.service.schemas.test_openapi import BODIES, SENT, filled
from tests.service.wire import array, opened, regression, tensors

NO_COMPILER = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

SKETCH = regression()
FEEDS = {name: SKETCH.values[name] for name in "xy"}
ADAM = {"type": "adam", "learning_rate": 0.1}


GPUS = [pytest.param("emulated", marks=NO_COMPILER), pytest.param("real", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=GPUS)
def gpu(tmp_path_factory, request):
    if request.param == "real" and not cupy.is_available():
        pytest.skip("there is no GPU")
    folder = tmp_path_factory.mktemp("gpu")
    orders = folder / "orders"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(orders).items() if request.param == "emulated" else ():
            patch.setenv(name, value)
        with (
            (folder / "log").open("w") as log,
            serve(folder / "data", device="cuda", stderr=log, command=COMMAND) as served,
        ):
            served.orders, served.log, served.is_emulated = orders, folder / "log", request.param == "emulated"
            yield served


@pytest.fixture
def failing(gpu):
    """Makes a call of the driver of the GPU fail, which only an emulated one does when it is told."""
    if not gpu.is_emulated:
        pytest.skip("a real GPU fails when it likes")
    return lambda call: gpu.orders.write_text(json.dumps({call: 0}))


OWN = {
    "id",
    "worker",
    "session",
    "session_id",
    "tape_id",
    "created_at",
    "expires_at",
    "timing_ms",
    "compiled",
    "sha256",
}
"""Members of answers that differ between two services."""


def compare(found: Any, wanted: Any, at: str = "") -> None:
    """Equal answers, but for the rounding of numbers and the members in `OWN`."""
    if isinstance(wanted, dict) and {"dtype", "shape"} < wanted.keys() and ({"b64", "data"} & wanted.keys()):
        np.testing.assert_allclose(array(found), array(wanted), rtol=1e-5, atol=1e-6, err_msg=at)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), at
        for name in wanted.keys() - OWN:
            compare(found[name], wanted[name], f"{at}/{name}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), at
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            compare(a, b, f"{at}/{i}")
    elif isinstance(wanted, float):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6, err_msg=at)
    else:
        assert found == wanted, at


def trained(client: httpx.Client, path: str, first: int, last: int) -> list[dict]:
    """The answers of steps with the numbers from `first` to `last`."""
    said = []
    for seq in range(first, last + 1):
        asked = {"seq": seq, "return_gradients": "all", "feeds": tensors(FEEDS)}
        answer = client.post(f"{path}/steps", json=asked)
        assert answer.status_code == 200, answer.text
        said.append(answer.json())
    return said


@pytest.mark.sampled(1)
def test_a_session_answers_as_on_the_processor(gpu, client):
    device = gpu.client.get("/v1/workers").json()["workers"][0]["device"]
    assert device == "cuda: emulated" if gpu.is_emulated else device.startswith("cuda: ")
    with opened(gpu.client, SKETCH, optimizer=ADAM) as on_gpu, opened(client, SKETCH, optimizer=ADAM) as on_cpu:
        for found, wanted in zip(trained(gpu.client, on_gpu, 1, 5), trained(client, on_cpu, 1, 5), strict=True):
            np.testing.assert_allclose(array(found["loss"]), array(wanted["loss"]), rtol=1e-6)
            np.testing.assert_allclose(array(found["gradients"]["w"]), array(wanted["gradients"]["w"]), rtol=1e-5)
    assert list((gpu.data_dir / "code").iterdir())


COMPUTED = [each for each in SENT if each[0].startswith(("/v1/gradients", "/v1/sessions", "/v1/tapes"))]


@pytest.mark.parametrize(("path", "method", "name", "value"), COMPUTED, ids=[f"{m} {p} {n}" for p, m, n, _ in COMPUTED])
def test_stored_requests_are_answered_as_on_the_processor(gpu, client, path, method, name, value):
    found, wanted = (answered(each, path, method, value) for each in (gpu.client, client))
    compare(found, wanted)


def answered(client: httpx.Client, path: str, method: str, value: Any) -> list[Any]:
    """The answers to a request on a new session or tape, made twice unless it creates something."""
    ids = {}
    for member, kind, example in (("session_id", "sessions", "regression"), ("tape_id", "tapes", "immediate")):
        if member in path:
            opening = client.post(f"/v1/{kind}", json=BODIES[f"/v1/{kind}", "post", example])
            assert opening.status_code == 201, opening.text
            ids[member] = opening.json()["id"]
    if path.endswith("/backward"):
        client.post(f"/v1/tapes/{ids['tape_id']}/ops", json=BODIES["/v1/tapes/{tape_id}/ops", "post", "line"])
    answer = client.request(method, **filled(path, method, **ids), json=value)
    assert answer.status_code in (200, 201), answer.text
    if answer.status_code == 201:
        client.delete(answer.headers["location"])
    for member, id in ids.items():
        client.delete(f"/v1/{member.removesuffix('_id')}s/{id}")
    return answer.json()


def pid_of(client: httpx.Client) -> int:
    """The process of the only worker, when there is one."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        (worker,) = client.get("/v1/workers").json()["workers"]
        if worker["pid"] and worker["state"] in ("idle", "busy"):
            return int(worker["pid"])
        time.sleep(0.05)
    raise AssertionError("no worker")


@pytest.fixture
def pair(gpu, client):
    """A session on the GPU and an equal one on the processor, after three steps."""
    with opened(gpu.client, SKETCH, optimizer=ADAM) as on_gpu, opened(client, SKETCH, optimizer=ADAM) as on_cpu:
        trained(gpu.client, on_gpu, 1, 3)
        trained(client, on_cpu, 1, 3)
        yield on_gpu, on_cpu


def test_a_session_goes_on_after_its_worker_was_killed(gpu, client, pair):
    before = pid_of(gpu.client)

    os.kill(before, signal.SIGKILL)

    end = time.monotonic() + 60
    while pid_of(gpu.client) == before and time.monotonic() < end:
        time.sleep(0.05)
    compare(trained(gpu.client, pair[0], 4, 6), trained(client, pair[1], 4, 6))


def test_too_little_memory_of_the_gpu_is_an_error_of_one_call(gpu, client, pair, failing):
    before = pid_of(gpu.client)
    asked = {"seq": 4, "return_gradients": "all", "feeds": tensors(FEEDS), "fetch": ["prediction"]}
    failing("allocate")

    answer = gpu.client.post(f"{pair[0]}/steps", json=asked)

    assert not gpu.orders.exists()
    assert answer.status_code == 503 and answer.json()["code"] == "device-out-of-memory", answer.text
    again = gpu.client.post(f"{pair[0]}/steps", json=asked)
    assert again.status_code == 200, again.text
    compare(again.json(), client.post(f"{pair[1]}/steps", json=asked).json())
    compare(trained(gpu.client, pair[0], 5, 7), trained(client, pair[1], 5, 7))
    assert pid_of(gpu.client) == before


def test_a_worker_whose_gpu_has_failed_is_replaced(gpu, client, pair, failing):
    before = pid_of(gpu.client)
    asked = {"seq": 4, "return_gradients": "all", "feeds": tensors(FEEDS)}
    failing("launch")

    answer = gpu.client.post(f"{pair[0]}/steps", json=asked)

    assert not gpu.orders.exists()
    assert answer.status_code == 200, answer.text  # the session goes on in another worker, and the call with it
    assert pid_of(gpu.client) != before
    assert "its GPU context is broken" in gpu.log.read_text()
    compare(trained(gpu.client, pair[0], 4, 6), trained(client, pair[1], 4, 6))
