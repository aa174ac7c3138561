"""Streams of gradients: each arrives as soon as the backward pass has completed it, those of the last layers first."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, Self, TypeVar

import httpx
import numpy as np

from backpass_client.answers import LONGEST_WAIT_S, pause
from backpass_client.errors import Refused, Unreachable, refusal
from backpass_client.rows import Rows

__all__ = ["MEDIA_TYPE", "GradientStream"]

MEDIA_TYPE = "application/x-ndjson"
T = TypeVar("T")
Opened = Callable[[], AbstractContextManager[httpx.Response]]


class GradientStream(Generic[T]):
    """Iterate over (name, gradient). At its end `result` has the rest of the answer.

    A gradient is an array, or `Rows` of a table with sparse lookups. `with` closes the connection when the block ends.
    """

    def __init__(
        self, opened: Opened, done: Callable[[dict[str, Any], dict[str, np.ndarray]], T], *, attempts: int
    ) -> None:
        """opened: sends the request. done: makes the result from the members and tensors of the last line.

        attempts: how often the request may be sent when the connection breaks: a repeated one must be safe.
        """
        self._opened, self._done, self._attempts = opened, done, attempts
        self._result: T | None = None
        self._lines = self._read()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self._lines

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading. The call ends, unless it is a step, which takes effect."""
        self._lines.close()

    @property
    def result(self) -> T:
        """The rest of the answer. Reads the stream to its end. Raises Refused if the call failed, Unreachable."""
        for _ in self._lines:
            pass
        if self._result is None:
            raise Unreachable("the stream was closed before its end")
        return self._result

    def _read(self) -> Any:
        seen: set[str] = set()
        for attempt in range(1, self._attempts + 1):
            begun, wait = False, None
            try:
                with self._opened() as response:
                    begun = True
                    for line in response.iter_lines():
                        event = json.loads(line)
                        if event["event"] == "gradient":
                            if event["name"] not in seen:  # a repeated stream begins with those that were read
                                seen.add(event["name"])
                                yield event["name"], _gradient(event["gradient"])
                        elif event["event"] == "error":
                            raise refusal(event["problem"], "stream")
                        else:
                            self._result = self._done(*_members(event))
                            return
                raise Unreachable("the stream ended before its last line")
            except (httpx.TransportError, Unreachable) as error:
                if isinstance(error, httpx.TimeoutException) or attempt == self._attempts:
                    raise error if isinstance(error, Unreachable) else _unreachable(error) from error
            except Refused as error:
                wait = error.retry_after
                final = begun or not error.retryable or attempt == self._attempts
                if final or (wait is not None and wait > LONGEST_WAIT_S):
                    raise
            time.sleep(pause(attempt, wait))


def _unreachable(error: httpx.TransportError) -> Unreachable:
    """The exception for a stream that broke. It has the address of the request, without a password."""
    sent = error.request
    return Unreachable(f"{sent.method} {sent.url.copy_with(userinfo=b'')}: {str(error) or type(error).__name__}")


def _members(event: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(JSON members, tensors) of the last line; the tensors have the names that they have in a file."""
    tensors = {} if event.get("loss") is None else {"loss": _array(event["loss"])}
    for member, prefix in (("fetched", "fetch"), ("recorded", "recorded"), ("states", "state")):
        tensors |= {f"{prefix}/{name}": _array(each) for name, each in event.get(member, {}).items()}
    left_out = ("event", "loss", "fetched", "recorded", "states")
    return {name: value for name, value in event.items() if name not in left_out}, tensors


def _gradient(value: dict[str, Any]) -> Any:
    if "rows" in value:
        return Rows(_array(value["rows"]), _array(value["values"]), tuple(value["shape"]))
    return _array(value)


def _array(value: dict[str, Any]) -> np.ndarray:
    dtype = np.dtype(value["dtype"])
    if "b64" in value:
        return np.frombuffer(base64.b64decode(value["b64"]), dtype).reshape(value["shape"]).copy()
    return np.array(value["data"], dtype).reshape(value["shape"])
