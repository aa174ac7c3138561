"""One line in the log for each request: method, route, status, time, sizes, request id, tenant, session or job."""

from __future__ import annotations

import logging
import re
from typing import Literal

__all__ = ["AccessLog", "thing_of"]

log = logging.getLogger("backpass.access")

QUIET = frozenset(
    {"/healthz/live", "/healthz/ready", "/healthz/startup", "/v2/health/live", "/v2/health/ready", "/metrics"}
)
"""Routes of probes, which call them all the time: their lines have the level debug."""

THING = re.compile(r"/v1/[a-z]+/((ses|tap|job|prg|ckp|dst|upl|opn)_[a-z2-7]{26})(?:/|$)")
NAMES = {
    "ses": "session",
    "tap": "tape",
    "job": "job",
    "prg": "program",
    "ckp": "checkpoint",
    "dst": "dataset",
    "upl": "upload",
    "opn": "operation",
}


def thing_of(path: str) -> dict[str, str]:
    """The session, job or other thing that a path names, as a member of log lines. Only a valid id counts."""
    found = THING.match(path)
    return {} if found is None else {NAMES[found[2]]: found[1]}


class AccessLog:
    """Writes the lines. Paths and headers of clients are left out: a route is one of our own templates."""

    def __init__(self, which: Literal["all", "errors", "off"]) -> None:
        self._least = {"all": 0, "errors": 400, "off": 1000}[which]

    def wants(self, route: str, status: int) -> bool:
        """Whether a request gets a line."""
        return status >= self._least and log.isEnabledFor(self._level(route, status))

    def _level(self, route: str, status: int) -> int:
        return logging.DEBUG if route in QUIET and status < 400 else logging.INFO

    def write(self, method: str, route: str, status: int, seconds: float, taken: int, sent: int, tenant: str) -> None:
        """Write the line of one request. taken, sent: bytes of its body and of its answer."""
        fields = {
            "method": method,
            "route": route,
            "status": status,
            "ms": round(seconds * 1e3, 3),
            "bytes_in": taken,
            "bytes_out": sent,
            "tenant": tenant,
        }
        record = logging.LogRecord(log.name, self._level(route, status), "", 0, "request", None, None)
        record.fields = fields
        log.handle(record)
