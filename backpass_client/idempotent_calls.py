"""Idempotent calls: each carries a sequence number, and the service executes it once however often it arrives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from backpass_client.connection import Service
from backpass_client.errors import Refused
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

    Threads take turns: two calls with one number would be one call to the service.
    """

    def __init__(self, service: Service, path: str, next: int) -> None:
        self._service = service
        self._path = path
        self.next = next
        self._unsure = False  # whether the last call failed, so that the service may be one number ahead
        self._turn = threading.Lock()

    def send(
        self, call: str, asked: Mapping[str, Any], tensors: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """POST `asked` and `tensors` to <path>/`call`; (JSON members, tensors) of the response.

        Raises Refused, Unreachable.
        """
        with self._turn:
            try:
                said, found = self._send(call, asked, tensors)
            except Refused as error:
                was_executed = self._unsure and error.code == "sequence-conflict"
                self._unsure = True
                if not was_executed:
                    raise
                self.next = error.problem["expected_seq"]
                said, found = self._send(call, asked, tensors)
            except BaseException:
                self._unsure = True
                raise
            self._unsure = False
            self.next = said["next_seq"]
            return said, found

    def stream(
        self,
        call: str,
        asked: Mapping[str, Any],
        tensors: Mapping[str, Any],
        done: Callable[[dict[str, Any], dict[str, np.ndarray]], T],
    ) -> GradientStream[T]:
        """POST `asked` and `tensors` to <path>/`call` for a stream of gradients. done: as of `GradientStream`.

        The number is used up when the last line arrives. A broken connection sends the request again.
        """
        content = pack(tensors, {"seq": self.next, **asked})
        headers = {"content-type": TENSORS, "accept": MEDIA_TYPE}
        self._unsure = True

        def ended(said: dict[str, Any], found: dict[str, np.ndarray]) -> T:
            self.next, self._unsure = said["next_seq"], False
            return done(said, found)

        opened = lambda: self._service.stream("POST", f"{self._path}/{call}", content=content, headers=headers)
        return GradientStream(opened, ended, attempts=self._service.attempts)

    def _send(
        self, call: str, asked: Mapping[str, Any], tensors: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        request = {"seq": self.next, **asked}
        return self._service.exchange("POST", f"{self._path}/{call}", request, tensors, repeat=True)
