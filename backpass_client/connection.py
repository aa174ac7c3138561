"""The connection to one service: requests, responses, and retries where they are safe."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import quote

import httpx
import numpy as np

from backpass_client.errors import Refused, Unreachable
from backpass_client.tensorfile import MEDIA_TYPE, pack, unpack

__all__ = ["NO_TENSORS", "Service", "quoted"]

NO_TENSORS: Mapping[str, Any] = {}
NO_HEADERS: Mapping[str, str] = {}
LONGEST_WAIT_S = 5.0


class Service:
    """One service. ``with Service(url) as service: ...`` closes the connections at the end.

    url:      base address, such as "http://127.0.0.1:8080".
    timeout:  seconds to wait for a response. The service has its own deadline, by default 60 s.
    attempts: the most times one request is sent. The client sends a request again after a broken connection or a
              retryable problem, if repeating is safe: the request changes nothing, or carries a sequence number.
              It never sends a request again that timed out: the next one would take as long.
    """

    def __init__(self, url: str, *, timeout: float = 120.0, attempts: int = 5) -> None:
        self.url = url
        self.attempts = attempts
        self._http = httpx.Client(base_url=url, timeout=timeout)
        self._ops: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # --- the catalogue -------------------------------------------------------------------------------------------

    def ops(self) -> list[str]:
        """The names of all ops of the service."""
        names: list[str] = []
        token: str | None = ""
        while token is not None:
            page = self.call("GET", f"/v1/ops?page_size=200&page_token={token}")
            names += [op["type"] for op in page["ops"]]
            token = page["next_page_token"]
        return names

    def op(self, type: str) -> dict[str, Any]:
        """Slots, attributes and documentation of one op. Raises Refused (not-found), which suggests names."""
        if type not in self._ops:
            self._ops[type] = self.call("GET", f"/v1/ops/{quoted(type)}")
        return self._ops[type]

    # --- requests ------------------------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        repeat: bool | None = None,
    ) -> Any:
        """Send JSON; the JSON of the response, None if that is empty.

        repeat: whether sending the request twice is safe; by default every method but POST is.
        Raises Refused, Unreachable.
        """
        more = {} if body is None else {"json": body}
        answer = self._send(method, path, repeat, params=query, **more)
        return answer.json() if answer.content else None

    def exchange(
        self,
        method: str,
        path: str,
        request: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Any] = NO_TENSORS,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        repeat: bool | None = None,
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Send JSON members and tensors; (JSON members, tensors) of the response. Otherwise as `call`."""
        sent = {"accept": MEDIA_TYPE, **headers}
        if method == "GET":
            return unpack(self._send(method, path, repeat, headers=sent).content)
        sent["content-type"] = MEDIA_TYPE
        return unpack(self._send(method, path, repeat, content=pack(tensors, request or {}), headers=sent).content)

    def upload(self, path: str, request: Mapping[str, Any], tensors: Mapping[str, Any], *, repeat: bool = False) -> Any:
        """POST JSON members and tensors; the JSON of the response. Otherwise as `call`."""
        content, headers = pack(tensors, request), {"content-type": MEDIA_TYPE}
        return self._send("POST", path, repeat, content=content, headers=headers).json()

    def _send(self, method: str, path: str, repeat: bool | None = None, **more: Any) -> httpx.Response:
        again = method != "POST" if repeat is None else repeat
        for attempt in range(1, self.attempts + 1):
            last = attempt == self.attempts
            try:
                answer = self._http.request(method, path, **more)
            except httpx.TransportError as error:
                never_sent = isinstance(error, httpx.ConnectError)
                if last or isinstance(error, httpx.TimeoutException) or not (again or never_sent):
                    raise Unreachable(f"{method} {path}: {error or type(error).__name__}") from error
                wait = None
            else:
                if not answer.is_error:
                    return answer
                refused = _refused(answer, f"{method} {path}")
                # 429 means that the service did not start the request, so repeating it is always safe
                if last or not refused.retryable or not (again or refused.status == 429):
                    raise refused
                wait = refused.retry_after
            time.sleep(min(LONGEST_WAIT_S, 0.05 * 2**attempt if wait is None else wait))
        raise AssertionError("the last attempt returns or raises")

    def __repr__(self) -> str:
        return f"Service({self.url!r})"


def quoted(name: str) -> str:
    """`name` escaped for use as one segment of a path."""
    return quote(name, safe="")


def _refused(answer: httpx.Response, request: str) -> Refused:
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):  # a proxy answered, not the service
        problem = {"status": answer.status_code, "code": "", "detail": answer.reason_phrase}
    wait = answer.headers.get("retry-after", "")
    return Refused(problem, request, float(wait) if wait.isdecimal() else None)
