"""A running service for tests: uvicorn on a free loopback port, workers, and an HTTP client.

The service that tests share has two workers, others have one unless a test asks for more: a worker takes a second of
CPU to start.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import httpx
import pytest

from tests.paths import ROOT
from tests.ports import free_port
from tests.postgres import Postgres, postgres
from tests.service.documented import check_documented
from tests.service.forked import Forked

__all__ = ["COMMAND", "Served", "serve"]

COMMAND = ("-m", "service", "serve")
"""The arguments of Python that start a service."""


class Served:
    """A running service and a client for it."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked, url: str, data_dir: Path) -> None:
        self.process = process
        self.url = url
        self.data_dir = data_dir
        self.client = httpx.Client(
            base_url=url, timeout=120.0, verify=False, event_hooks={"response": [check_documented]}
        )

    def wait_until_ready(self, seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, "the service ended"
            with contextlib.suppress(httpx.TransportError):
                if self.client.get("/healthz/ready").status_code == 200:
                    return
            time.sleep(0.1)
        raise AssertionError("the service does not become ready")


@contextlib.contextmanager
def serve(
    data_dir: Path,
    *,
    stderr: IO[str] | None = None,
    command: Sequence[str] | None = None,
    **settings: object,
) -> Iterator[Served]:
    """Run `backpass serve` with these settings until the block ends.

    stderr: receives its log lines. command: arguments of a new interpreter, such as `COMMAND`; by default the service
    is `Forked`, which saves its imports.
    """
    given = {
        "data_dir": data_dir,
        "port": free_port(),
        "workers": 1,
        "device": "cpu",
        "log_level": "warning",
    } | settings
    environment = os.environ | {f"BACKPASS_{name.upper()}": str(value) for name, value in given.items()}
    if command is None:
        process: subprocess.Popen[bytes] | Forked = Forked(["serve"], environment, stderr=stderr)
    else:
        process = subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment, stderr=stderr)
    served = Served(process, f"http://127.0.0.1:{given['port']}", data_dir)
    try:
        served.wait_until_ready()
        yield served
    finally:
        served.client.close()
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("data"), workers=2) as served:
        yield served


@pytest.fixture
def client(service: Served) -> httpx.Client:
    return service.client


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A PostgreSQL server that all tests share."""
    with postgres() as running:
        yield running


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> Iterator[str]:
    """The URL of a new, empty database."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop(url)
