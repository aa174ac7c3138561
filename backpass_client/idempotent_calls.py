"""Idempotent calls: each carries a sequence number, and the service executes it once however often it arrives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

import httpx
import numpy as np

from backpass_client.connection import Service, condition, etag_of
from backpass_client.errors import PreconditionFailed, Refused
from backpass_client.streams import MEDIA_TYPE, GradientStream
from backpass_client.tensorfile import MEDIA_TYPE as TENSORS
from backpass_client.tensorfile import pack

__all__ = ["IdempotentCalls"]

T = TypeVar("T")


class IdempotentCalls:
    """The calls that change one session or one tape. next: the sequence number of the next call.

    A failed call does not use up its number. When the caller sends the same body again, the service executes it only
    if it did not execute the first one. When the caller sends another body, that body takes the failed call's number;
    if the service did execute the failed call, the new body takes the number after it.

    A call for a version that another client has written asks for the number to take: that client has used some.

    Threads take turns: two calls with one number would be one call to the service.
    """

    def __init__(self, service: Service, path: str, next: int, version: str | None = None) -> None:
        """version: of the session, when `next` was its next number; None for a tape."""
        self._service = service
        self._path = path
        self.next = next
        self._version = version
        self._unsure = False  # whether the last call failed, so that the service may be one number ahead
        self._turn = threading.Lock()

    def send(
        self, call: str, asked: Mapping[str, Any], tensors: Mapping[str, Any], if_match: str | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """POST `asked` and `tensors` to <path>/`call`; (JSON members, tensors) of the response.

        if_match: the version that the call is for. Raises Refused, Unreachable.
        """
        headers = condition(if_match)
        with self._turn:
            self._catch_up(headers)
            left = self._renumberings(if_match)
            while True:
                try:
                    said, found = self._send(call, asked, tensors, headers)
                except Refused as error:
                    self._unsure = True
                    if not self._renumbered(error, left):
                        raise
                    left -= 1
                except BaseException:
                    self._unsure = True
                    raise
                else:
                    self._took_effect(said)
                    return said, found

    def stream(
        self,
        call: str,
        asked: Mapping[str, Any],
        tensors: Mapping[str, Any],
        done: Callable[[dict[str, Any], dict[str, np.ndarray]], T],
        if_match: str | None = None,
    ) -> GradientStream[T]:
        """POST `asked` and `tensors` to <path>/`call` for a stream of gradients. done: as of `GradientStream`.

        The call takes its number when the caller begins to read, and uses it up when the last line arrives. A broken
        connection sends the request again.
        """
        headers = {"content-type": TENSORS, "accept": MEDIA_TYPE, **condition(if_match)}
        number: int | None = None

        def ended(said: dict[str, Any], found: dict[str, np.ndarray]) -> T:
            self._took_effect(said)
            return done(said, found)

        def sent() -> AbstractContextManager[httpx.Response]:
            content = pack(tensors, {"seq": number, **asked})
            return self._service.stream("POST", f"{self._path}/{call}", content=content, headers=headers)

        @contextmanager
        def opened() -> Iterator[httpx.Response]:
            nonlocal number
            left = 0  # a repeated request may have used the number itself
            if number is None:
                self._catch_up(headers)
                number, left = self.next, self._renumberings(if_match)
            self._unsure = True
            with ExitStack() as stack:
                while True:
                    try:
                        answer = stack.enter_context(sent())
                        break
                    except Refused as error:
                        if not self._renumbered(error, left):
                            raise
                        number, left = self.next, left - 1
                yield answer

        return GradientStream(opened, ended, attempts=self._service.attempts)

    def _took_effect(self, said: Mapping[str, Any]) -> None:
        self.next, self._version, self._unsure = said["next_seq"], etag_of(said), False

    def _renumberings(self, if_match: str | None) -> int:
        """How often a call may take another number.

        Once if the failed call before it may have used its own; again and again if other clients use numbers, because
        the version tells whether that matters.
        """
        return self._service.attempts if if_match is not None else int(self._unsure)

    def _renumbered(self, error: Refused, left: int) -> bool:
        """Take the number that the refusal of a call names; whether the call is to be sent again with it."""
        if isinstance(error, PreconditionFailed):
            self.next, self._unsure = error.problem["expected_seq"], False
            return False
        if error.code != "sequence-conflict" or not left:
            return False
        self.next = error.problem["expected_seq"]
        return True

    def _catch_up(self, headers: Mapping[str, str]) -> None:
        """Ask for the next number, if the call is for a version that another client has written."""
        wanted = headers.get("if-match")
        if wanted not in (None, "*", self._version) and not self._unsure:
            view = self._service.call("GET", self._path)
            self.next, self._version = view["next_seq"], etag_of(view)

    def _send(
        self, call: str, asked: Mapping[str, Any], tensors: Mapping[str, Any], headers: Mapping[str, str]
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        request = {"seq": self.next, **asked}
        return self._service.exchange("POST", f"{self._path}/{call}", request, tensors, headers=headers, repeat=True)
