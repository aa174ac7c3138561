"""Commands that use the store of a running service, such as `backpass keys` and `backpass backup`.

One process owns a data directory, and SQLite has no second connection. So the owner listens on a socket in the
directory, `admin`, which only its user and root may use, and runs named actions for other processes: one line of JSON
for the request, one for the answer. Without an owner, or on PostgreSQL, the command runs the action itself.

    # in the service: an action is known by its name from now on
    app.state.admin.actions["keys.create"] = create_key

    # in the command: `create_key` runs in the owner, or here if there is none
    print(act(settings, "keys.create", create_key, {"name": "ci"}))

    async def create_key(store: Store, arguments: dict[str, Any]) -> Any: ...   # the answer: of JSON

An action reports a mistake of the caller by a ValueError or an HttpProblem.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from service.problems import HttpProblem
from service.settings import Settings
from service.store.directory import as_owner
from service.store.errors import DirectoryInUse, StorageError
from service.store.store import Store

__all__ = ["Action", "AdminError", "AdminSocket", "act", "asked"]

Action = Callable[[Store, dict[str, Any]], Awaitable[Any]]

NAME = "admin"
LINE_BYTES = 2**20
PATIENCE_S = 600.0  # of a command, for the answer of the service
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid

log = logging.getLogger("backpass.admin")


class AdminError(Exception):
    """The action failed. `str` is a sentence for operators."""


class AdminSocket:
    """The owner's end: runs actions for other processes of the same user."""

    def __init__(self, store: Store, directory: Path) -> None:
        self._store, self._directory = store, directory
        self._server: asyncio.Server | None = None
        self.actions: dict[str, Action] = {}

    async def start(self) -> None:
        """Listen. If the directory does not allow a socket, the service goes on without, and says so in its log."""
        if not self._store.is_sqlite:
            return  # commands open the database themselves
        try:
            with _address(self._directory) as address:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(address)  # of an owner that died: this process holds the lock
                listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    listening.bind(address)
                    os.chmod(address, 0o600)
                    self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=LINE_BYTES)
                except BaseException:
                    listening.close()
                    raise
        except OSError as error:
            log.warning("commands such as `backpass keys` cannot reach this service: %s", error)

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        self._server = None
        with contextlib.suppress(OSError), _address(self._directory) as address:
            os.unlink(address)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        try:
            if CREDENTIALS.unpack(peer)[1] in (0, os.geteuid()):
                writer.write(json.dumps(await self._answer(await reader.readline())).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass  # the other process ended, or sent more than a line may have
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            action = self.actions.get(request["action"])
            if action is None:
                return {"error": f"this service does not know the action {request['action']}"}
            return {"answer": await action(self._store, request["arguments"])}
        except (HttpProblem, ValueError, KeyError, TypeError) as error:
            return {"error": _sentence(error)}
        except Exception as error:
            log.exception("an action of a command failed")
            return {"error": f"the action failed: {error!r}"}


def act(settings: Settings, name: str, action: Action, arguments: dict[str, Any]) -> Any:
    """The answer of `action`: from the service that owns the data directory, else run here on the opened store.

    arguments: values of JSON. A command of root acts as the owner of the directory. Raises AdminError.
    """
    with as_owner(settings.data_dir):
        store = Store(settings.data_dir, settings.database_url)
        try:
            store.open_now()
        except DirectoryInUse as error:
            return asked(settings.data_dir, name, arguments, in_use=str(error))
        except StorageError as error:
            raise AdminError(str(error)) from error
        try:
            return asyncio.run(_alone(store, action, arguments))
        except (HttpProblem, ValueError) as error:
            raise AdminError(_sentence(error)) from error
        finally:
            store.close_now()


async def _alone(store: Store, action: Action, arguments: dict[str, Any]) -> Any:
    return await action(store, arguments)


def asked(
    directory: Path, name: str, arguments: dict[str, Any], *, in_use: str = "", patience: float = PATIENCE_S
) -> Any:
    """The answer of the service that owns the data directory. Raises AdminError.

    in_use: the beginning of an error. patience: seconds to wait.
    """
    try:
        with _address(directory) as address, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(patience)
            connection.connect(address)
            connection.sendall(json.dumps({"action": name, "arguments": arguments}).encode() + b"\n")
            with connection.makefile("rb") as file:
                line = file.readline()
    except OSError as error:
        raise AdminError(f"{in_use}; its socket {directory / NAME} does not answer: {error}") from error
    if not line:
        raise AdminError(f"{in_use}; it allows commands only to its own user and to root")
    answer = json.loads(line)
    if "error" in answer:
        raise AdminError(answer["error"])
    return answer["answer"]


def _sentence(error: Exception) -> str:
    if isinstance(error, StorageError):
        return str(error)
    return error.detail if isinstance(error, HttpProblem) else str(error)


@contextlib.contextmanager
def _address(directory: Path) -> Iterator[str]:
    """The address of the socket, short enough for the kernel whatever the path of the directory."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)
