"""Events of the service as they happen, across broken connections and restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from typing import Any

import httpx

from backpass_client.connection import Service
from backpass_client.errors import Refused

__all__ = ["PATIENCE_S", "Event", "followed"]

PATIENCE_S = 120.0
LONGEST_PAUSE_S = 5.0
EVENT_STREAM = "text/event-stream"
Event = tuple[str, dict[str, Any]]


def followed(service: Service, resource: str, after: int, patience: float) -> Generator[Event, None, None]:
    """(kind, data) of each event of the resource with this path, until it has ended. After a broken connection the
    stream goes on behind the last event.

    after:    number of the last event that the caller has; data["id"] is that of an event.
    patience: seconds that the service may be away, such as for a restart.
    Raises Refused, and Unreachable when the service was away for longer.
    """
    last, failures, seen = after, 0, time.monotonic()
    while True:
        before = last
        try:
            headers = {"accept": EVENT_STREAM, "last-event-id": str(last)}
            with service.stream("GET", f"{resource}/events", headers=headers) as answer:
                seen = time.monotonic()
                if answer.status_code == 204:
                    return
                for id, kind, data in _events(answer.iter_lines()):
                    seen = time.monotonic()
                    if id is not None:
                        last = id
                        yield kind, {"id": id, **data}
                    elif kind == "reset":
                        last = data["oldest"] - 1
        except Refused as error:
            if not error.retryable:
                raise
            failures += 1
        except httpx.TransportError:
            failures += 1
        failures = 0 if last > before else failures
        if failures >= service.attempts and time.monotonic() - seen >= patience:
            service.call("GET", resource)  # raises Unreachable, or tells that the service is back
            failures = 0
        if failures:
            time.sleep(min(LONGEST_PAUSE_S, 0.1 * 2 ** min(failures, 10)))


def _events(lines: Iterator[str]) -> Iterator[tuple[int | None, str, dict[str, Any]]]:
    """(number, kind, data) of the events in a stream; unnumbered ones have None. Half an event is left out."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if line and name:
            fields[name] = value.removeprefix(" ")
        elif not line:
            if "event" in fields:
                number = fields.get("id")
                yield None if number is None else int(number), fields["event"], json.loads(fields["data"])
            fields = {}
