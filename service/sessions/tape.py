"""One tape as the service knows it: a session of another kind, without parameters that have a version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.sessions.session import Kind, Session

__all__ = ["TAPES", "Tape"]


@dataclass(slots=True)
class Tape(Session):
    """One tape. ops: on it now; bytes: of their values; step: how often it was renewed."""

    ops: int = 0
    bytes: int = 0

    @property
    def position(self) -> dict[str, Any]:
        """Where a client that lost count can go on."""
        return {"expected_seq": self.seq + 1}

    def adopt(self, result: Mapping[str, Any]) -> None:
        """Take over what the worker says about its tape."""
        Session.adopt(self, result)  # not super(): a dataclass with slots is made anew, and super() knows the first one
        self.ops, self.bytes = result["ops"], result["bytes"]


TAPES = Kind("tape", "tap_", "tapes", Tape)
