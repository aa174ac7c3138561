"""Commands of another process on the store of a running service."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text

from service.problems import HttpProblem
from service.settings import Settings
from service.store.admin import AdminError, AdminSocket, act
from service.store.store import Store
from service.store.tables import tenants
from tests.paths import ROOT

COMMAND = """
import json, sys
from pathlib import Path
from service.settings import Settings
from service.store.admin import AdminError, act
from tests.service.store.test_admin import count

try:
    print(json.dumps(act(Settings(data_dir=Path(sys.argv[1])), sys.argv[2], count, json.loads(sys.argv[3]))))
except AdminError as error:
    print("error:", error)
"""


async def count(store: Store, arguments: dict[str, Any]) -> Any:
    """Add a tenant; how many there are, and the process that ran this."""
    if arguments["name"] == "bad":
        raise ValueError("bad is no name")
    if arguments["name"] == "taken":
        raise HttpProblem("in-use", "taken is in use")
    row = {"id": arguments["name"], "limits": "{}", "changes": 1, "created": 0.0}
    await store.write(lambda c: c.execute(insert(tenants), row) and None)
    found = await store.read(lambda c: c.execute(text("SELECT count(*) FROM tenants")).scalar())
    return {"tenants": found, "process": os.getpid()}


async def command(directory: Path, action: str, name: str) -> str:
    """What another process prints that runs the action."""
    arguments = [sys.executable, "-c", COMMAND, str(directory), action, json.dumps({"name": name})]
    done = await asyncio.to_thread(subprocess.run, arguments, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert not done.stderr, done.stderr
    return done.stdout.strip()


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A directory whose path is longer than an address of a socket may be."""
    return tmp_path / ("long" * 40) / "data"


def test_a_command_runs_in_the_service_that_owns_the_directory(deep):
    async def run() -> list[str]:
        store = Store(deep)
        await store.open()
        admin = AdminSocket(store, deep)
        admin.actions["count"] = count
        await admin.start()
        assert stat.S_IMODE((deep / "admin").stat().st_mode) == 0o600
        try:
            return [await command(deep, "count", name) for name in ("one", "bad", "taken")]
        finally:
            await admin.stop()
            await store.close()

    one, bad, taken = asyncio.run(run())
    assert json.loads(one) == {"tenants": 1, "process": os.getpid()}
    assert bad == "error: bad is no name"
    assert taken == "error: taken is in use"
    assert not (deep / "admin").exists()

    alone = act(Settings(data_dir=deep), "count", count, {"name": "two"})  # nobody owns the directory any more
    assert alone == {"tenants": 2, "process": os.getpid()}


def test_a_command_says_which_process_owns_the_directory_when_that_does_not_answer(tmp_path):
    store = Store(tmp_path)
    store.open_now()
    with pytest.raises(AdminError, match=rf"process {os.getpid()} already uses .*its socket .* does not answer"):
        act(Settings(data_dir=tmp_path), "count", count, {"name": "x"})
    store.close_now()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{\n", "Expecting"),
        (b"[]\n", "list indices"),
        (b'{"action": "none", "arguments": {}}\n', "does not know the action none"),
        (b'{"action": "count", "arguments": {}}\n', "name"),
        (b"x" * 2_000_000 + b"\n", None),
        (b"", "Expecting"),
    ],
)
def test_malformed_requests_of_commands_leave_the_socket_working(tmp_path, line, told):
    def ask(given: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(tmp_path / "admin"))
            try:
                connection.sendall(given)
                connection.shutdown(socket.SHUT_WR)
                return connection.recv(100_000)
            except (BrokenPipeError, ConnectionResetError):
                return b""

    async def run() -> tuple[bytes, bytes]:
        store = Store(tmp_path)
        await store.open()
        admin = AdminSocket(store, tmp_path)
        admin.actions["count"] = count
        await admin.start()
        try:
            first = await asyncio.to_thread(ask, line)
            return first, await asyncio.to_thread(ask, b'{"action": "count", "arguments": {"name": "x"}}\n')
        finally:
            await admin.stop()
            await store.close()

    first, second = asyncio.run(run())
    if told is None:
        assert first == b""
    else:
        assert told in json.loads(first)["error"]
    assert json.loads(second)["answer"]["tenants"] == 1
