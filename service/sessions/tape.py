"""One tape in the API process: a session of another kind, whose parameters have no version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.sessions.session import Kind, Session

__all__ = ["TAPES", "OpenTape"]


@dataclass(slots=True)
class OpenTape(Session):
    """One tape. ops: number of its ops; bytes: size of their values; step: number of renewals."""

    ops: int = 0
    bytes: int = 0

    @property
    def position(self) -> dict[str, Any]:
        """The member of a problem document that lets a client continue: its next seq."""
        return {"expected_seq": self.seq + 1}

    def adopt(self, result: Mapping[str, Any]) -> None:
        """Take over seq, ops and bytes from a worker's result."""
        Session.adopt(self, result)  # not super(): a dataclass with slots is a second class
        self.ops, self.bytes = result["ops"], result["bytes"]


TAPES = Kind("tape", "tap_", "tapes", OpenTape)
