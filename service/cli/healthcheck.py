"""The health check of a container: `python -m service.cli.healthcheck` asks the local service whether it is ready.

The exit status is 0 if the service is ready, else 1. The module imports only the standard library, so that it starts in
a few hundredths of a second.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["failure", "main"]

PATH = "/healthz/ready"
EVERY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Address to listen on -> address that reaches the service."""

SECRETS = Path("/run/secrets")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line, "ready" or the reason of failure; returns the exit status.

    arguments: `[host:port]`; by default those of the settings.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    host, port, tls = _address(given[0] if given else "", os.environ)
    problem = failure(host, port, tls=tls)
    print(problem or "ready", file=sys.stderr if problem else sys.stdout)
    return 1 if problem else 0


def _address(given: str, environment: Mapping[str, str], secrets: Path = SECRETS) -> tuple[str, int, bool]:
    """(host, port, whether it speaks TLS). The port for metrics is preferred: it never does."""
    names = {name.upper(): value for name, value in environment.items() if value}

    def setting(name: str, default: str) -> str:
        """The value that the service reads: of the variable, or of the file of a secret if the variable is empty."""
        with contextlib.suppress(OSError):
            default = (secrets / f"backpass_{name.lower()}").read_text().strip() or default
        return names.get(f"BACKPASS_{name}", default)

    if not given and setting("METRICS_PORT", "0") != "0":
        host, port, tls = setting("METRICS_HOST", "127.0.0.1"), setting("METRICS_PORT", "0"), False
    else:
        host, _, port = given.rpartition(":")
        host = host.strip("[]") or setting("HOST", "127.0.0.1")
        port = port or setting("PORT", "8080")
        tls = bool(setting("TLS_CERT", ""))
    return EVERY_ADDRESS.get(host, host), int(port), tls


def failure(host: str, port: int, timeout: float = 2.0, tls: bool = False) -> str | None:
    """The reason why the service at host:port is not ready; None if it is. timeout: seconds for each socket wait.

    tls: the certificate is not checked, because it names the address of clients and not this one.
    """
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    if tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    try:
        connection.request("GET", PATH, headers={"Connection": "close"})
        answer = connection.getresponse()
        body = answer.read(65_536)
    except (OSError, http.client.HTTPException) as error:
        return f"{host}:{port} does not answer: {error or type(error).__name__}"
    finally:
        connection.close()
    if answer.status == http.HTTPStatus.OK:
        return None
    return f"{host}:{port} answers {answer.status}: {_one_line(body)}"


def _one_line(body: bytes) -> str:
    try:
        return json.dumps(json.loads(body))[:500]
    except ValueError:
        return ascii(body[:200])


if __name__ == "__main__":
    sys.exit(main())
