"""One session as the service knows it; the arrays are in its worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from service.sessions.replay import History

__all__ = ["SESSIONS", "Kind", "Session", "version_text"]

EPOCH = 1


@dataclass(slots=True)
class Session:
    """One session. created is in seconds since 1970; `used` is a value of time.monotonic(); about: for people."""

    id: str
    program_id: str
    worker: str
    lease_s: float
    about: dict[str, Any]
    created: float = field(default_factory=time.time)
    used: float = field(default_factory=time.monotonic)
    lost: str | None = None
    version: int = 0
    step: int = 0
    seq: int = 0
    history: History = field(default_factory=History)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    unsure: tuple[int, str] | None = None  # seq and digest of a call that may or may not have taken effect

    @property
    def state(self) -> Literal["ready", "busy", "lost"]:
        if self.lost is not None:
            return "lost"
        return "busy" if self.turn.locked() else "ready"

    @property
    def weights_version(self) -> str:
        return version_text(self.version)

    @property
    def etag(self) -> str:
        return f'"{self.weights_version}"'

    @property
    def lease_left(self) -> float:
        return self.used + self.lease_s - time.monotonic()

    @property
    def position(self) -> dict[str, Any]:
        """Where a client that lost count can go on."""
        return {"expected_seq": self.seq + 1, "weights_version": self.weights_version}

    def adopt(self, result: Mapping[str, Any]) -> None:
        """Take over what the worker says about its session."""
        self.version, self.step, self.seq = result["version"], result["step"], result["seq"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What lives in a worker between calls.

    name:   of one, in sentences and in what workers are asked ("session.create"). prefix: of ids.
    plural: the setting that says how many there may be, and the gauge that counts them.
    entry:  how the service knows one.
    """

    name: str
    prefix: str
    plural: str
    entry: type[Session]


SESSIONS = Kind("session", "ses_", "sessions", Session)


def version_text(version: int) -> str:
    """A version of the parameters as clients see it."""
    return f"e{EPOCH}.v{version}"
