"""Calls under a number, which the service does once however often they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backpass_client.answers import Arrays
from backpass_client.connection import Service
from backpass_client.errors import Refused

__all__ = ["Numbered"]


class Numbered:
    """The calls that change one session or tape. next: the number of the next one.

    A call that fails keeps its number: sent again with the same body, it is done once even if it had been done before.
    Another call takes the number in its place, or, if the lost one had been done, the one behind it.
    """

    def __init__(self, service: Service, path: str, next: int) -> None:
        self._service = service
        self._path = path
        self.next = next
        self._unsure = False

    def send(self, call: str, asked: Mapping[str, Any], tensors: Mapping[str, Any]) -> tuple[dict[str, Any], Arrays]:
        """POST it. Raises Refused, Unreachable."""
        try:
            said, found = self._send(call, asked, tensors)
        except Refused as error:
            lost = self._unsure and error.code == "sequence-conflict"
            self._unsure = True
            if not lost:
                raise
            self.next = error.problem["expected_seq"]
            said, found = self._send(call, asked, tensors)
        except BaseException:
            self._unsure = True
            raise
        self._unsure = False
        self.next = said["next_seq"]
        return said, found

    def _send(self, call: str, asked: Mapping[str, Any], tensors: Mapping[str, Any]) -> tuple[dict[str, Any], Arrays]:
        request = {"seq": self.next, **asked}
        return self._service.exchange("POST", f"{self._path}/{call}", request, tensors, repeat=True)
