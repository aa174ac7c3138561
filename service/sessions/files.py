"""The keys of the files of sessions: those of large journal entries, and the checkpoints that the service makes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["FOLDERS", "checkpoint_of", "checkpoints_of", "file_of", "folder_of", "session_of", "stale"]

JOURNALS, CHECKPOINTS = FOLDERS = "journal", "sessions"


def session_of(key: str) -> str:
    """The session of a file."""
    return key.split("/")[1]


def folder_of(session: str) -> str:
    """The folder of the files of a session's journal."""
    return f"{JOURNALS}/{session}"


def file_of(session: str, n: int, epoch: int) -> str:
    """The key of the file with the tensors of entry `n`. epoch: of the writer, whose files no other writer replaces."""
    return f"{folder_of(session)}/{n:016d}-{epoch}"


def checkpoints_of(session: str) -> str:
    """The folder of the checkpoints that the service makes of a session."""
    return f"{CHECKPOINTS}/{session}"


def checkpoint_of(session: str, n: int, epoch: int) -> str:
    """The key of a checkpoint with all entries up to `n`. epoch: of its writer."""
    return f"{checkpoints_of(session)}/{n:016d}-{epoch}"


def stale(keys: Iterable[str], until: int | None, epoch: int) -> Iterator[str]:
    """The keys with numbers up to `until` (None: all) that writers up to `epoch` have made.

    Files of later writers stay: a process that lost the session may delete long after it.
    """
    for key in keys:
        n, _, made = key.rpartition("/")[2].partition("-")
        if (until is None or int(n) <= until) and int(made) <= epoch:
            yield key
