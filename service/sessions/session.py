"""One session in the API process; its arrays are in its worker, or in the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from service.engine import Reply
from service.sessions.entry import Entry
from service.sessions.replay import History

__all__ = ["FIRST_LINE", "SESSIONS", "Durability", "Kind", "Session", "Unsure", "etag_text", "version_text"]

FIRST_LINE = 1
Durability = Literal["journal", "checkpoint", "none"]


@dataclass(frozen=True, slots=True)
class Unsure:
    """A call that may or may not have taken effect.

    seq, digest: of the call; 0 for one without a number. op: what it asked of the worker.
    entry: its journal entry and the number of that, if any.
    """

    seq: int
    digest: str
    op: str
    entry: tuple[int, Entry] | None


@dataclass(slots=True, eq=False)
class Session:
    """One session.

    worker:  id of the worker that holds its arrays; empty if none does.
    about:   settings and sizes to show to clients.
    created: seconds since 1970.
    used:    time of the last use, a value of time.monotonic().
    lost:    the reason why its values are lost; None if they exist.
    turn:    held by the running call; waiting counts the calls that wait for it and the running one.
    unsure:  the last call, if it may or may not have taken effect.
    accumulated: number of gradients that wait for an update with their sum.
    handle:  the id of its copy in a worker. Each copy that is made from the store has an id of its own, so that a late
             deletion of another one leaves it alone; the samples of all tenants have the same id.
    job:     id of the job that owns it; such a session is in no list.
    document: the program as JSON; empty if the store has it.

    Of a session that outlives its worker:
    epoch:        goes up whenever a process of the service takes the session over, and when a rollback is told to a
                  client; writes of others are refused.
    entry:        number of the last call that is known to have changed it, which is that of its journal entry.
    saved_entry:  number of the last entry that the checkpoint contains. saved_step: step of the checkpoint.
    checkpoint:   key of the file of the checkpoint; None if the session is rebuilt from its creation. sha256: of it.
    checkpoint_every: steps between two checkpoints; only for the durability `checkpoint`.
    dirty:        whether the store knows that the session changed after its checkpoint.
    void:         number of the first journal entry that never took effect and is not deleted yet.
    unsaved_bytes, unsaved_s: size and compute time of the entries after the checkpoint.
    lacks_room:   whether a call did not fit on the disk since the last try to save the session.
    rolled_back:  whether changes after the checkpoint are lost and no client knows.
    rebuilding:   rebuilds the session in a worker; its result is the number and the reply of the last entry.
    deaths:       (entry, number of workers that ended while they ran it).
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
    unsure: Unsure | None = None
    accumulated: int = 0
    tenant: str = "local"
    handle: str = ""
    job: str | None = None
    document: bytes = field(default=b"", repr=False)
    durability: Durability = "none"
    epoch: int = 0
    entry: int = 0
    saved_entry: int = 0
    saved_step: int = 0
    saved_at: float = field(default_factory=time.monotonic)
    checkpoint: str | None = None
    sha256: str | None = None
    checkpoint_every: int = 100
    dirty: bool = False
    void: int | None = None
    unsaved_bytes: int = 0
    unsaved_s: float = 0.0
    lacks_room: bool = False
    rolled_back: bool = False
    rebuilding: asyncio.Task[tuple[int, Reply | None]] | None = None
    deaths: tuple[int, int] = (0, 0)

    @property
    def key(self) -> tuple[str, str]:
        """The tenant and the id."""
        return self.tenant, self.id

    @property
    def is_stored(self) -> bool:
        """Whether the session outlives its worker."""
        return self.durability != "none"

    @property
    def is_settled(self) -> bool:
        """Whether version, step and seq are those of the values in its worker."""
        return self.lost is None and self.unsure is None and bool(self.worker)

    @property
    def state(self) -> Literal["ready", "busy", "parked", "lost"]:
        if self.lost is not None:
            return "lost"
        if self.turn.locked():
            return "busy"
        return "ready" if self.worker else "parked"

    @property
    def durable_step(self) -> int | None:
        """The step that a loss of the worker or of this process cannot undo; None if nothing is stored."""
        if self.durability == "none":
            return None
        return self.step if self.durability == "journal" else self.saved_step

    @property
    def line(self) -> int:
        """The line of versions that the session is on: without a journal, a version may come again with other values
        after each loss of this process or its worker."""
        return self.epoch if self.durability == "checkpoint" else FIRST_LINE

    @property
    def weights_version(self) -> str:
        return version_text(self.version, self.line)

    @property
    def etag(self) -> str:
        return etag_text(self.version, self.accumulated, self.seq, self.line)

    @property
    def lease_left(self) -> float:
        return self.used + self.lease_s - time.monotonic()

    @property
    def position(self) -> dict[str, Any]:
        """The members of a problem document that let a client continue: its next seq, and the version."""
        return {"expected_seq": self.seq + 1, "weights_version": self.weights_version}

    @property
    def origin(self) -> dict[str, Any]:
        """The member of a problem document that lets a client open the session again."""
        return {"program_id": self.program_id} if self.program_id else {}

    def adopt_saved(self, stored: Session) -> None:
        """Take over the checkpoint of the session as it is stored."""
        self.checkpoint, self.sha256, self.dirty = stored.checkpoint, stored.sha256, stored.dirty
        self.saved_entry, self.saved_step = stored.saved_entry, stored.saved_step

    def adopt(self, result: Mapping[str, Any]) -> None:
        """Take over version, step and seq from a worker's result, and settings that the call changed."""
        self.version, self.step, self.seq = result["version"], result["step"], result["seq"]
        self.accumulated = result.get("accumulated", 0)
        if "optimizer" in result:
            self.about["optimizer"] = result["optimizer"]

    def noted(self, reply: Reply) -> Reply:
        """The reply with the durable step, and the line of its version if it is not the first one."""
        if self.program_id:
            reply.result["durable_step"] = self.durable_step
        if self.line != FIRST_LINE:
            reply.result["line"] = self.line
        return reply


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


def version_text(version: int, line: int = FIRST_LINE) -> str:
    """The text of a version of the parameters, as clients see it. line: as of `Session`."""
    return f"e{line}.v{version}"


def etag_text(version: int, accumulated: int, seq: int, line: int = FIRST_LINE) -> str:
    """The ETag of a session: its version, and the number of the call that was the last to add to its sum of gradients.

    While a session has a sum, each call that uses a number changes the sum or the version.
    """
    sum = f".g{seq}" if accumulated else ""
    return f'"{version_text(version, line)}{sum}"'
