"""A service whose worker has an emulated GPU answers as one on the processor, and survives the failures of its GPU."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

pytest.importorskip("cupy", reason="the stand-in is made from the installed cupy")
from tests.device.emulator import compiler
from tests.device.worker_gpu import environment
from tests.service.conftest import serve
from tests.service.wire import array, opened, regression, tensors

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

SKETCH = regression()
FEEDS = {name: SKETCH.values[name] for name in "xy"}
ADAM = {"type": "adam", "learning_rate": 0.1}


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    orders = folder / "orders"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(orders).items():
            patch.setenv(name, value)
        with (folder / "log").open("w") as log, serve(folder / "data", device="cuda", stderr=log) as served:
            served.orders, served.log = orders, folder / "log"
            yield served


def trained(client: httpx.Client, path: str, first: int, last: int) -> list[dict]:
    """The answers of steps with the numbers from `first` to `last`."""
    said = []
    for seq in range(first, last + 1):
        asked = {"seq": seq, "return_gradients": "all", "feeds": tensors(FEEDS)}
        answer = client.post(f"{path}/steps", json=asked)
        assert answer.status_code == 200, answer.text
        said.append(answer.json())
    return said


def test_a_session_answers_as_on_the_processor(gpu, client):
    assert gpu.client.get("/v1/workers").json()["workers"][0]["device"] == "cuda: emulated"
    with opened(gpu.client, SKETCH, optimizer=ADAM) as on_gpu, opened(client, SKETCH, optimizer=ADAM) as on_cpu:
        for found, wanted in zip(trained(gpu.client, on_gpu, 1, 5), trained(client, on_cpu, 1, 5), strict=True):
            np.testing.assert_allclose(array(found["loss"]), array(wanted["loss"]), rtol=1e-6)
            np.testing.assert_allclose(array(found["gradients"]["w"]), array(wanted["gradients"]["w"]), rtol=1e-5)
    assert list((gpu.data_dir / "code").iterdir())
