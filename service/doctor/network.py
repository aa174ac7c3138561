"""Ports: free, or taken by the service itself."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

from service.doctor.finding import Finding, ok, wrong
from service.machine import check_port, place, reaching
from service.settings import Settings

__all__ = ["ports"]


def ports(settings: Settings) -> Iterator[Finding]:
    """The port of the service and the one for metrics."""
    yield _port("port", settings.host, settings.port, settings.tls_cert is not None)
    if settings.metrics_port:
        yield _port("metrics_port", settings.metrics_host, settings.metrics_port, False)


def _port(setting: str, host: str, port: int, tls: bool) -> Finding:
    name = f"BACKPASS_{setting.upper()}"
    if port == 0:
        return ok("ports", f"{name}: a free one is chosen at start")
    try:
        check_port(host, port)
    except PermissionError:
        return wrong("ports", f"{name}: this user may not listen on {port}", "Choose a port above 1023.")
    except socket.gaierror as error:
        return wrong("ports", f"{name}: {host} has no address here: {error.strerror}", "Correct the host.")
    except OSError as error:
        if _is_service(host, port, tls):
            return ok("ports", f"{name}: a service answers on {place(host, port)}")
        text = f"{name}: cannot listen on {place(host, port)}: {error.strerror}"
        return wrong("ports", text, "End the other program, or choose another port.")
    return ok("ports", f"{name}: {place(host, port)} is free")


def _is_service(host: str, port: int, tls: bool) -> bool:
    """Whether a service of this kind answers there."""
    if tls:
        return _accepts(host, port)
    connection = http.client.HTTPConnection(reaching(host), port, timeout=2.0)
    try:
        connection.request("GET", "/healthz/live", headers={"Connection": "close"})
        return b'"status"' in connection.getresponse().read(1024)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((reaching(host), port), timeout=2.0).close()
    except OSError:
        return False
    return True
