"""One session in the API process; its arrays are in its worker."""

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
    """One session.

    about:   settings and sizes to show to clients.
    created: seconds since 1970.
    used:    time of the last use, a value of time.monotonic().
    lost:    the reason why its worker was lost; None if it runs.
    turn:    held by the running call; waiting counts the calls that wait for it and the running one.
    unsure:  (seq, digest) of a call that may or may not have taken effect.
    accumulated: number of gradients that wait for an update with their sum.
    """

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
    unsure: tuple[int, str] | None = None
    accumulated: int = 0

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
        """The members of a problem document that let a client continue: its next seq, and the version."""
        return {"expected_seq": self.seq + 1, "weights_version": self.weights_version}

    def adopt(self, result: Mapping[str, Any]) -> None:
        """Take over version, step and seq from a worker's result, and settings that the call changed."""
        self.version, self.step, self.seq = result["version"], result["step"], result["seq"]
        self.accumulated = result.get("accumulated", 0)
        if "optimizer" in result:
            self.about["optimizer"] = result["optimizer"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object that stays in a worker between calls: sessions or tapes.

    name:   its name in messages and in the names of handlers ("session.create").
    prefix: the prefix of its ids.
    plural: the setting that limits its number, and the gauge that counts it.
    entry:  the class that represents it in the API process.
    """

    name: str
    prefix: str
    plural: str
    entry: type[Session]


SESSIONS = Kind("session", "ses_", "sessions", Session)


def version_text(version: int) -> str:
    """The text of a version of the parameters, as clients see it."""
    return f"e{EPOCH}.v{version}"
