"""The connection to one service: requests, responses, and retries where they are safe."""

from __future__ import annotations

import os
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self
from urllib.parse import quote
from uuid import uuid4

import httpx
import numpy as np

from backpass_client.address import advice, authorization, checked_url, trusted, will_fail_again
from backpass_client.answers import LONGEST_WAIT_S, checked, json_of, of_type, pause, refused
from backpass_client.errors import BackpassError, Refused, Unreachable
from backpass_client.hints import Hinted
from backpass_client.tensorfile import MEDIA_TYPE, pack, unpack

__all__ = ["NO_HEADERS", "NO_TENSORS", "Service", "condition", "etag_of", "new_key", "quoted"]

NO_TENSORS: Mapping[str, Any] = {}
NO_HEADERS: Mapping[str, str] = {}
PIECE = 2**20  # bytes that are sent at once
PAGE = 200  # entries of a listing in one answer, the most that a service gives


class _Pieces:
    """Content that is sent piece by piece. httpcore copies all that it has not sent yet after each packet."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)

    def __iter__(self) -> Iterator[memoryview]:
        for begin in range(0, len(self._content), PIECE):
            yield self._content[begin : begin + PIECE]


class Service(Hinted):
    """The connection to one service: requests, answers and retries.

    Its arguments are those of `backpass_client.Service`.
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "program create_program register compile": "write programs.create(program)",
        "session open_session train": "write create_session(program, optimizer=...)",
        "dataset create_dataset upload_dataset": "write datasets.upload(source)",
        "job submit create_job": "write jobs.submit(dataset, ...), or fit(dataset) of a session",
        "checkpoint": "see checkpoints, and checkpoint() of a session",
        "gradients evaluate backward": "write programs.create(program).gradients(...) or .evaluate(...)",
        "tape": "write bp.Tape(service)",
        "key create_key api_key api_keys": "write keys.create(tenant), with the scope admin",
        "operation submit_operation respond_async": "write operations.start(path, body)",
        "audit_log": "write audit(), with the scope admin",
    }

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 120.0,
        attempts: int = 6,
        verify: str | None = None,
    ) -> None:
        self.url = checked_url(url)
        if attempts < 1:
            raise BackpassError(f"attempts={attempts}: at least one is needed")
        self.attempts = attempts
        headers = authorization(os.environ.get("BACKPASS_API_KEY") if api_key is None else api_key)
        self._http = httpx.Client(base_url=url, timeout=timeout, headers=headers, verify=trusted(url, verify))
        self._ops: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def me(self) -> dict[str, Any]:
        """The tenant and the scopes of the key, and the quotas of the tenant with their use."""
        return self.call("GET", "/v1/me")

    # --- the catalogue -------------------------------------------------------------------------------------------

    def ops(self) -> list[str]:
        """The names of all ops of the service."""
        return [op["type"] for op in self.entries("/v1/ops", "ops")]

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
        headers: Mapping[str, str] = NO_HEADERS,
        repeat: bool | None = None,
    ) -> Any:
        """Send JSON; the JSON of the response, None if that is empty.

        repeat: whether sending the request twice is safe; by default every method but POST is, and a POST with an
                Idempotency-Key.
        Raises Refused, Unreachable.
        """
        more = {} if body is None else {"json": body}
        repeat = True if repeat is None and "idempotency-key" in headers else repeat
        answer = self._send(method, path, repeat, params=query, headers=headers, **more)
        return json_of(answer, f"{method} {path}") if answer.content and not answer.is_error else None

    def entries(
        self, path: str, member: str, labels: Mapping[str, str | None] | None = None, **query: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield the entries of a listing. The client asks for a page when the caller has read the one before.

        member: of each page, with its entries. labels: that the entries have; None for any value.
        query: more query parameters; None is left out.
        """
        given = {name: value for name, value in query.items() if value is not None}
        if labels:
            given["label"] = [name if value is None else f"{name}:{value}" for name, value in labels.items()]
        token: str | None = ""
        while token is not None:
            page = self.call("GET", path, query={"page_size": PAGE, "page_token": token, **given})
            yield from page[member]
            token = page["next_page_token"]

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
        """Send JSON members and tensors; (JSON members, tensors) of the response. Otherwise as `call`.

        The header ETag is the member `etag`, in the form that it has for JSON.
        """
        sent = {"accept": MEDIA_TYPE, **headers}
        if method == "GET":
            answer = self._send(method, path, repeat, headers=sent)
        else:
            sent["content-type"] = MEDIA_TYPE
            answer = self._send(method, path, repeat, content=pack(tensors, request or {}), headers=sent)
        said, found = unpack(of_type(answer, f"{method} {path}", MEDIA_TYPE).content)
        if "etag" in answer.headers:
            said["etag"] = answer.headers["etag"].replace(".safetensors", "")
        return said, found

    def upload(self, path: str, request: Mapping[str, Any], tensors: Mapping[str, Any], *, repeat: bool = False) -> Any:
        """POST JSON members and tensors; the JSON of the response. Otherwise as `call`.

        repeat: whether the request changes nothing. One that creates something carries an Idempotency-Key instead.
        """
        content, headers = pack(tensors, request), {"content-type": MEDIA_TYPE}
        if not repeat:
            headers |= new_key()
        return json_of(self._send("POST", path, True, content=content, headers=headers), f"POST {path}")

    def send_file(self, path: str, file: BinaryIO, *, headers: Mapping[str, str], query: Mapping[str, Any]) -> Any:
        """POST the content of an open file, which is never held in memory; the JSON of the response.

        headers: with an Idempotency-Key, so that sending the file twice is safe.
        """

        def content() -> Iterator[bytes]:
            file.seek(0)
            while piece := file.read(PIECE):
                yield piece

        return json_of(self._send("POST", path, True, content=content, headers=headers, params=query), f"POST {path}")

    def download(self, path: str, target: Path) -> None:
        """Write the content at `path` to the file `target`, which appears whole or not at all. Otherwise as
        `receive_file`."""
        partial = target.with_name(f"{target.name}.{uuid4().hex}.partial")
        try:
            with partial.open("xb") as file:
                self.receive_file(path, file)
                os.fsync(file.fileno())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def receive_file(self, path: str, file: BinaryIO) -> None:
        """Write the content at `path` to an empty file. After a broken connection it goes on where that broke.

        Raises Refused, Unreachable; BackpassError if the content does not have the digest that the service announced.
        """
        digest, done, etag = sha256(), 0, ""
        for attempt in range(1, self.attempts + 1):
            headers = {"accept-encoding": "identity"}
            if done and etag:
                headers |= {"range": f"bytes={done}-", "if-range": etag}
            try:
                with self._http.stream("GET", path, headers=headers) as answer:
                    if not answer.is_success:
                        answer.read()
                        raise refused(answer, f"GET {path}")
                    if answer.status_code != 206:  # the whole file: the first try, or another content by now
                        digest, done, etag = sha256(), 0, answer.headers.get("etag", "")
                        file.seek(0)
                        file.truncate()
                    for piece in answer.iter_bytes():
                        file.write(piece)
                        digest.update(piece)
                        done += len(piece)
            except (httpx.TransportError, Refused) as error:
                final = isinstance(error, Refused) and not error.retryable
                if final or attempt == self.attempts:
                    if isinstance(error, Refused):
                        raise
                    raise self._unreachable("GET", path, error) from error
                time.sleep(pause(attempt, error.retry_after if isinstance(error, Refused) else None))
                continue
            wanted = answer.headers.get("repr-digest", "")
            found = f"sha-256=:{b64encode(digest.digest()).decode()}:"
            if wanted.startswith("sha-256=") and wanted != found:
                raise BackpassError(f"GET {path}: the content does not have its digest {wanted}")
            return

    def send(self, method: str, path: str, *, repeat: bool | None = None, **more: Any) -> httpx.Response:
        """Send a request of `httpx`; the response. Otherwise as `call`."""
        return self._send(method, path, repeat, **more)

    def stored(self, path: str, status: int) -> httpx.Response:
        """The response to GET `path` that the service has stored with this status, which may be that of a problem.
        Otherwise as `call`."""
        return self._send("GET", path, status=status)

    @contextmanager
    def stream(self, method: str, path: str, **more: Any) -> Iterator[httpx.Response]:
        """Send a request of `httpx`, once; the response, to be read inside the block. Raises Refused, BackpassError if
        its content is not of the type that the header accept asks for, and the exceptions of httpx."""
        with self._http.stream(method, path, **_in_pieces(more)) as answer:
            if not answer.is_success:
                answer.read()
            checked(answer, f"{method} {path}")
            if answer.status_code != 204:
                of_type(answer, f"{method} {path}", more["headers"]["accept"])
            yield answer

    def _unreachable(self, method: str, path: str, error: Exception) -> Unreachable:
        """The exception for a request without an answer. It has the address of the service, without a password."""
        address = str(httpx.URL(self.url).copy_with(userinfo=b"")).rstrip("/")
        return Unreachable(f"{method} {address}{path}: {str(error) or type(error).__name__}{advice(error)}")

    def _send(
        self, method: str, path: str, repeat: bool | None = None, *, status: int | None = None, **more: Any
    ) -> httpx.Response:
        """The response. A `content` that can be called makes the content of each try.

        status: of a problem that is the response, and not a reason to send the request again.

        A DELETE that is sent again and finds nothing has succeeded: the first one was executed, its answer was lost.
        """
        again = method != "POST" if repeat is None else repeat
        more = _in_pieces(more)
        content = more.pop("content", None)
        for attempt in range(1, self.attempts + 1):
            last = attempt == self.attempts
            try:
                answer = self._http.request(method, path, content=content() if callable(content) else content, **more)
            except httpx.TransportError as error:
                never_sent = isinstance(error, httpx.ConnectError)
                final = last or isinstance(error, httpx.TimeoutException) or will_fail_again(error)
                if final or not (again or never_sent):
                    raise self._unreachable(method, path, error) from error
                wait = None
            else:
                if (
                    answer.is_success
                    or answer.status_code == status
                    or (method == "DELETE" and answer.status_code == 404 and attempt > 1)
                ):
                    return answer
                problem = refused(answer, f"{method} {path}")
                # 429 means that the service did not start the request, so repeating it is always safe
                if last or not problem.retryable or not (again or problem.status == 429):
                    raise problem
                wait = problem.retry_after
                if wait is not None and wait > LONGEST_WAIT_S:  # such as a quota that is free again tomorrow
                    raise problem
            time.sleep(pause(attempt, wait))
        raise AssertionError("the last attempt returns or raises")

    def __repr__(self) -> str:
        return f"Service({self.url!r})"


def _in_pieces(request: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a request of httpx; large content is sent in pieces."""
    content = request.get("content")
    if not isinstance(content, bytes) or len(content) <= PIECE:
        return dict(request)
    headers = {**(request.get("headers") or {}), "content-length": str(len(content))}
    return {**request, "content": _Pieces(content), "headers": headers}


def new_key() -> dict[str, str]:
    """The header that makes a request that creates something safe to repeat."""
    return {"idempotency-key": str(uuid4())}


def condition(if_match: str | None) -> dict[str, str]:
    """The header If-Match for a version, with or without its quotes, a list of ETags, or "*"; none for None."""
    if if_match is None:
        return {}
    if not isinstance(if_match, str):
        raise TypeError(f"if_match is a version, such as session.etag, not {if_match!r}")
    return {"if-match": if_match if if_match == "*" or '"' in if_match else f'"{if_match}"'}


def etag_of(said: Mapping[str, Any]) -> str | None:
    """The version in an answer of a session, or in its view, whose ETag follows from its members; None without one."""
    if "etag" in said or "weights_version" not in said:
        return said.get("etag")
    has_sum = said.get("accumulated") and "next_seq" in said
    return f'"{said["weights_version"]}{".g" + str(said["next_seq"] - 1) if has_sum else ""}"'


def quoted(name: str) -> str:
    """`name` escaped for use as one segment of a path."""
    return quote(name, safe="")
