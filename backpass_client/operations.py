"""Operations: long calls that go on in the service while no connection waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import httpx
import numpy as np

from backpass_client.answers import json_of, refused
from backpass_client.connection import NO_TENSORS, Service, new_key, quoted
from backpass_client.errors import Refused
from backpass_client.hints import Hinted
from backpass_client.tensorfile import MEDIA_TYPE, pack, unpack

__all__ = ["Operation", "Operations"]

ACCEPT = f"{MEDIA_TYPE}, application/json;q=0.5"
LONGEST_WAIT_S = 30.0
"""Seconds for which one request waits for the end of an operation."""

Result = tuple[dict[str, Any], dict[str, np.ndarray]]


class Operation(Hinted):
    """A call that goes on in the service.

    id:   None for a call that ended before the service made it an operation: its result is here.
    said: its view when this object was made, with state, request, status, created and expires_at; `view` asks again.
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "status state done running ready": "write view()",
        "get join value answer": "write result()",
        "stop kill abort": "write cancel()",
    }

    def __init__(self, service: Service, view: Mapping[str, Any], result: Result | None = None) -> None:
        """view: the answer 202 to the call, or the response to GET. result: that of a call that has ended at once."""
        self.service = service
        self.said: dict[str, Any] = dict(view)
        self.id: str | None = view["id"]
        self._result = result

    @property
    def path(self) -> str:
        """The path of the operation. Raises Refused (not-found) for a call that ended at once."""
        if self.id is None:
            detail = "the call ended at once, so that there is no operation; its result is here"
            raise Refused({"status": 404, "code": "not-found", "detail": detail}, self.said["request"])
        return f"/v1/operations/{quoted(self.id)}"

    def view(self) -> dict[str, Any]:
        """The state of the operation: running, succeeded, failed or canceled; the status and the times of its end."""
        return dict(self.said) if self.id is None else self.service.call("GET", self.path)

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the end of the operation; returns its view.

        timeout: seconds; None for no limit.
        Raises TimeoutError when time is up, and Unreachable when the service is away for longer than the client tries:
        the call goes on, and can be waited for again.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = LONGEST_WAIT_S if end is None else min(LONGEST_WAIT_S, max(0.0, end - time.monotonic()))
            headers = {"prefer": f"wait={int(left)}"}
            view = self.view() if self.id is None else self.service.call("GET", self.path, headers=headers)
            if view["state"] != "running":
                return view
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"operation {self.id} ({view['request']}) runs after {timeout} s")
            if left < 1:
                time.sleep(left)

    def result(self, timeout: float | None = None) -> Result:
        """Wait as `wait` does; (JSON members, tensors) of the answer of the call. One without a body has neither.

        Raises Refused with the problem of the call if it failed or was canceled, and Refused (not-found) an hour after
        its end, when the service has deleted the operation.
        """
        if self._result is None:
            status = self.wait(timeout)["status"]
            answer = self.service.stored(f"{self.path}/result", status)
            if not answer.is_success:
                raise refused(answer, self.said["request"])
            self._result = _result(answer, self.said["request"])
        return self._result

    def cancel(self) -> dict[str, Any]:
        """Stop the call; returns the view. Safe to repeat; an operation that has ended stays as it is.

        Several steps of a session end after the one that runs. Any other call that may change something goes on, and
        its result tells the effect.
        """
        return self.view() if self.id is None else self.service.call("POST", f"{self.path}/cancel", repeat=True)

    def delete(self) -> None:
        """Delete the operation with its answer, and stop its call as `cancel` does. Raises Refused (not-found)."""
        self.service.call("DELETE", self.path)

    def __repr__(self) -> str:
        return f"Operation({self.service.url!r}, {self.id!r}, {self.said['request']!r})"


class Operations:
    """The operations of a service; `service.operations`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def start(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Any] = NO_TENSORS,
        *,
        method: str = "POST",
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
    ) -> Operation:
        """Send a call that goes on in the service.

        path:    of a call with the method POST or PUT, such as f"/v1/programs/{program.id}/gradients". Those below
                 /v1/keys and /v1/operations never become operations.
        body:    the JSON members of the request.
        tensors: arrays by name, such as those of feeds and parameters.
        headers: more headers, such as if-match.
        wait:    seconds to wait for the answer first. A call that ends before is no operation: its `id` is None.
        Raises Refused, also with the problem of a call that failed before it became an operation; Unreachable.
        """
        sent = {"accept": ACCEPT, "prefer": f"respond-async, wait={int(wait)}", **(headers or {})}
        if method == "POST":
            sent = {**new_key(), **sent}
        content: dict[str, Any] = {} if body is None else {"json": body}
        if tensors:
            content = {"content": pack(tensors, body or {})}
            sent["content-type"] = MEDIA_TYPE
        answer = self._service.send(method, path, repeat=True, params=query, headers=sent, **content)
        request = f"{method} {path}"
        if answer.status_code == 202:
            return Operation(self._service, json_of(answer, request))
        view = {"id": None, "state": "succeeded", "request": request, "status": answer.status_code}
        return Operation(self._service, view, _result(answer, request))

    def get(self, id: str) -> Operation:
        """The operation with this id, such as one of an earlier process. Raises Refused (not-found)."""
        return Operation(self._service, self._service.call("GET", f"/v1/operations/{quoted(id)}"))

    def list(self) -> Iterator[Operation]:
        """The operations that run, and those that ended within the last hour, page by page."""
        return (Operation(self._service, each) for each in self._service.entries("/v1/operations", "operations"))


def _result(answer: httpx.Response, request: str) -> Result:
    if not answer.content:
        return {}, {}
    if answer.headers.get("content-type", "").partition(";")[0] == MEDIA_TYPE:
        return unpack(answer.content)
    return json_of(answer, request), {}
