"""Forked services have the interface of subprocess.Popen, and end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.ports import free_port
from tests.service.conftest import serve
from tests.service.forked import Forked


def test_a_forked_command_gets_its_environment_and_reports_its_exit_status(tmp_path):
    environment = os.environ | {"BACKPASS_DATA_DIR": str(tmp_path), "BACKPASS_WORKERS": "many"}

    with (tmp_path / "log").open("w") as log:
        process = Forked(["serve"], environment, stderr=log)
        status = process.wait(60)

    assert status == process.poll() == process.returncode == 2
    assert (tmp_path / "log").read_text().startswith("BACKPASS_WORKERS")
    assert not Path(f"/proc/{process.pid}").exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)])
def test_a_forked_service_handles_signals_as_a_service_of_its_own_interpreter(tmp_path, number, status):
    with serve(tmp_path) as served:
        assert served.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            served.process.wait(0.01)

        served.process.send_signal(number)

        assert served.process.wait(60) == status
        served.process.terminate()  # has no effect any more


def test_a_variable_for_new_interpreters_is_refused(tmp_path):
    with pytest.raises(ValueError, match="does not read PYTHONPATH: start a new interpreter"):
        Forked(["serve"], os.environ | {"PYTHONPATH": "elsewhere"})


def test_forked_services_end_with_the_process_that_started_them(tmp_path):
    program = """
import os, sys
from tests.service.forked import Forked
print(*(Forked(["serve"], os.environ | {"BACKPASS_PORT": port}).pid for port in sys.argv[1:]), flush=True)
os.kill(os.getpid(), 9)
"""
    ports = [str(free_port()), str(free_port())]
    environment = os.environ | {"BACKPASS_DATA_DIR": str(tmp_path), "BACKPASS_DEVICE": "cpu"}
    ran = subprocess.run(  # until no process has its output open, so until the services have ended
        [sys.executable, "-c", program, *ports], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180
    )

    assert ran.returncode == -signal.SIGKILL
    assert len(ran.stdout.split()) == 2
