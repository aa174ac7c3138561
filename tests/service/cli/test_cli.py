"""`backpass serve` as a process: stopping it and restarting it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.paths import ROOT
from tests.service.conftest import COMMAND, serve


@pytest.mark.parametrize("name", ["port", "metrics_port"])
def test_a_port_in_use_ends_the_start_at_once(tmp_path, name):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        given = {
            "data_dir": tmp_path / "data",
            "host": "127.0.0.1",
            "port": 0,
            "metrics_host": "127.0.0.1",
            name: taken,
        }
        environment = os.environ | {f"BACKPASS_{key.upper()}": str(value) for key, value in given.items()}
        ended = subprocess.run(
            [sys.executable, "-m", "service", "serve"], cwd=ROOT, env=environment, capture_output=True, timeout=180
        )

    assert ended.returncode == 2
    said = f"BACKPASS_{name.upper()}: cannot listen on 127.0.0.1:{taken}: Address already in use"
    assert ended.stderr.decode().strip() == said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_orderly_stop_exits_with_status_0(tmp_path, number):
    with serve(tmp_path, command=COMMAND, workers=1) as served:
        served.process.send_signal(number)

        assert served.process.wait(60) == 0


SIGNALED = """
import {module}, os, signal, sys

{place}, real = lambda *given: (os.kill(os.getpid(), signal.{name}), real(*given))[1], {place}
from service.cli.main import main
sys.exit(main(["serve"]))
"""
"""A start that gets a signal when it calls a function at `place`."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize(
    ("module", "place"),
    [
        ("gc", "gc.collect"),
        ("uvicorn", "uvicorn.Server.run"),
        ("uvicorn.lifespan.on", "uvicorn.lifespan.on.LifespanOn.startup"),
    ],
)
def test_a_signal_during_the_start_ends_the_service(tmp_path, module, place, name):
    code = SIGNALED.format(module=module, place=place, name=name)
    given = {"data_dir": tmp_path, "port": 0, "workers": 1, "device": "cpu"}
    environment = os.environ | {f"BACKPASS_{key.upper()}": str(value) for key, value in given.items()}

    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, timeout=180)

    assert ended.returncode == 0, ended.stderr
    assert b"the service has ended" in ended.stderr


def test_registered_programs_survive_a_restart(tmp_path):
    from tests.service.routes.test_programs import fresh

    with serve(tmp_path, workers=1) as served:
        id = served.client.post("/v1/programs", json={"program": fresh("kept")}).json()["id"]
    with serve(tmp_path, workers=1) as served:
        assert served.client.get(f"/v1/programs/{id}").json()["program"] == fresh("kept")


def test_machine_code_survives_a_restart(tmp_path):
    from service.schemas.examples import REGRESSION, REGRESSION_FEEDS

    def trained() -> tuple[float, dict[str, float]]:
        """(loss of the first step, file name -> inode of the machine code on disk)."""
        with serve(tmp_path, workers=1) as served:
            asked = {"program": REGRESSION, "loss": "loss", "init": {"seed": 0}}
            id = served.client.post("/v1/sessions", json=asked).json()["id"]
            steps = [
                served.client.post(f"/v1/sessions/{id}/steps", json={"feeds": REGRESSION_FEEDS}).json()
                for _ in range(2)  # the second one waits for machine code, so that no compilation is left
            ]
        files = {each.name: each.stat().st_ino for each in (tmp_path / "code").iterdir()}
        return steps[0]["loss"]["data"][0], files

    first, written = trained()
    again, found = trained()

    assert written
    assert found == written  # a rewritten file would have another inode
    assert again == first


def test_no_machine_code_is_stored_with_a_cache_of_0_bytes(tmp_path):
    from service.schemas.examples import REGRESSION, REGRESSION_FEEDS

    with serve(tmp_path, workers=1, cache_bytes=0) as served:
        id = served.client.post("/v1/sessions", json={"program": REGRESSION, "loss": "loss"}).json()["id"]
        assert served.client.post(f"/v1/sessions/{id}/steps", json={"feeds": REGRESSION_FEEDS}).status_code == 200

    assert not (tmp_path / "code").exists()
