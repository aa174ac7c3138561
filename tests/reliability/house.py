"""A service that is killed and started again on the same data and the same port."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.paths import ROOT
from tests.ports import free_port
from tests.postgres import Postgres
from tests.processes import children, is_running

__all__ = ["House"]

CLOCK = Path(__file__).parent / "clock"


class House:
    """A service and the processes of its workers. Its methods may be called from several threads."""

    def __init__(self, data_dir: Path, log: Path, postgres: Postgres | None = None, **settings: object) -> None:
        """postgres: the server of `database_url`, if that is among the settings."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.data_dir, self.clock, self.postgres = data_dir, data_dir.parent / "clock", postgres
        self.objects = Path(str(settings.get("objects_url", data_dir / "objects")))
        given = {"data_dir": data_dir, "port": port, "workers": 2, "device": "cpu", "log_level": "warning"} | settings
        path = f"{CLOCK}{os.pathsep}{ROOT}"
        self._environment = os.environ | {f"BACKPASS_{name.upper()}": str(value) for name, value in given.items()}
        self._environment |= {"PYTHONPATH": path, "BACKPASS_TEST_CLOCK": str(self.clock)}
        self._log = log.open("ab")
        self.process: subprocess.Popen[bytes] | None = None
        self.restarts: list[float] = []

    def start(self, seconds: float = 60.0) -> None:
        """Start the service and wait until it is ready."""
        begin = time.monotonic()
        command = [sys.executable, "-m", "service", "serve"]
        process = subprocess.Popen(command, cwd=ROOT, env=self._environment, stderr=self._log)
        self.process = process
        with httpx.Client(base_url=self.url, timeout=5.0, verify=False) as client:
            while time.monotonic() < begin + seconds:
                assert process.poll() is None, f"the service ended with status {process.returncode}"
                with contextlib.suppress(httpx.TransportError):
                    if client.get("/healthz/ready").status_code == 200:
                        self.restarts.append(time.monotonic() - begin)
                        return
                time.sleep(0.05)
        raise AssertionError("the service does not become ready")

    def kill(self) -> None:
        """SIGKILL the service; its workers end with it."""
        assert self.process is not None
        started = self.children()
        self.process.kill()
        self.process.wait()
        end = time.monotonic() + 60
        while any(is_running(pid) for pid in started) and time.monotonic() < end:
            time.sleep(0.01)

    def children(self) -> list[int]:
        """The processes that the service started: workers and codecs, with their compilers."""
        return [pid for pid in self.processes() if self.process is not None and pid != self.process.pid]

    def processes(self) -> Iterator[int]:
        """The service and its `children`. Those of each process are read when the caller has handled their parent."""
        assert self.process is not None
        return _with_descendants(self.process.pid)

    def workers(self) -> list[int]:
        """The processes of the workers, from the service itself; empty while it does not answer."""
        with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
            answer = httpx.get(f"{self.url}/v1/workers", timeout=2.0, verify=False).json()
            return [each["pid"] for each in answer["workers"] if each["pid"]]
        return []

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for child in children(pid):
            yield from _with_descendants(child)
