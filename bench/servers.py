"""Servers that the bench starts, and calls of them."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["OWN", "SAFETENSORS", "ServerEnded", "post", "served"]

OWN = (sys.executable, "-m", "service", "serve", "--log-level", "warning", "--port")
"""The command of Backpass; the port comes after it."""

SAFETENSORS = "application/x-safetensors"


class Connection(http.client.HTTPConnection):
    """A connection to a server that the bench started. pid: of the server's process."""

    pid = 0


class ServerEnded(SystemExit):
    """A server ended before it answered. An unhandled error of this kind ends the bench."""


@contextlib.contextmanager
def served(command: Sequence[str], path: str, environment: Mapping[str, str] | None = None) -> Iterator[Connection]:
    """Start a server on a free loopback port, wait until `path` answers 200, and end it afterwards by its id.

    environment: variables in addition to those of this process. The files that the server stores are deleted.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        whole = (
            os.environ | {"BACKPASS_DATA_DIR": folder, "BACKPASS_CACHE_DIR": f"{folder}/code"} | dict(environment or {})
        )
        process = subprocess.Popen([*command, str(port)], env=whole)
        try:
            connection = Connection("127.0.0.1", port, timeout=120)
            connection.pid = process.pid
            for _ in range(600):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    answer.read()
                    if answer.status == 200:
                        break
                connection.close()
                if process.poll() is not None:
                    raise ServerEnded(f"{' '.join(command)} ended with {process.returncode}")
                time.sleep(0.1)
            else:
                raise SystemExit(f"{' '.join(command)} does not answer")
            yield connection
            connection.close()
        finally:
            process.terminate()
            process.wait(30)


def post(connection: http.client.HTTPConnection, path: str, body: bytes, media_type: str) -> bytes:
    """The body of the answer. Ends the program if the server refuses."""
    connection.request("POST", path, body, {"Content-Type": media_type, "Accept": media_type})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status >= 300:
        raise SystemExit(f"{path} answers {answer.status}: {content[:500]!r}")
    return content
