"""Deletions of stored files wait while a backup copies them, also those of other processes.

The backup holds a lock on the file `.hold`. A process that wants to delete a file meanwhile writes its name to
`.deleted`, and the backup deletes it at its end. The kernel releases the lock of a process that dies; the next start
deletes the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

__all__ = ["HIDDEN", "delete", "delete_postponed", "held"]

LOCK, POSTPONED = ".hold", ".deleted"
HIDDEN = (LOCK, POSTPONED)


def delete(root: str, key: str) -> None:
    """Delete the file, or postpone that while deletions are held. Raises OSError, FileNotFoundError."""
    with _opened(root, LOCK) as lock:
        if not _locked(lock, fcntl.LOCK_SH):
            with _opened(root, POSTPONED) as listed:
                fcntl.flock(listed, fcntl.LOCK_EX)
                if not _locked(lock, fcntl.LOCK_SH):
                    os.lseek(listed, 0, os.SEEK_END)
                    os.write(listed, f"{_identity(os.path.join(root, key))} {key}\n".encode())
                    return
        _unlink(root, key)


@contextlib.contextmanager
def held(root: str) -> Iterator[None]:
    """No file is deleted until the block ends. Waits for another holder. Raises OSError."""
    with _opened(root, LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            _delete_listed(root, lock)


def delete_postponed(root: str) -> None:
    """Delete what a backup that died left over; nothing while one goes on."""
    if not os.path.exists(os.path.join(root, POSTPONED)):
        return
    with _opened(root, LOCK) as lock:
        if _locked(lock, fcntl.LOCK_EX):
            _delete_listed(root, lock)


def _delete_listed(root: str, lock: int) -> None:
    """lock: held alone. It is released before the list is, so that nobody adds to a list that is done."""
    with _opened(root, POSTPONED) as listed:
        fcntl.flock(listed, fcntl.LOCK_EX)
        with open(listed, closefd=False, errors="replace") as file:
            lines = file.read().splitlines()
        for line in lines:
            identity, _, key = line.partition(" ")
            with contextlib.suppress(FileNotFoundError):
                if key and _identity(os.path.join(root, key)) == identity:
                    _unlink(root, key)
        os.ftruncate(listed, 0)
        fcntl.flock(lock, fcntl.LOCK_UN)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlink(root: str, key: str) -> None:
    path = os.path.join(root, key)
    os.unlink(path)
    _remove_empty(root, os.path.dirname(path))


def _identity(path: str) -> str:
    """It tells the file from one that is written under the same name later. Numbers of files are used again."""
    about = os.stat(path)
    return f"{about.st_ino}.{about.st_mtime_ns}"


def _remove_empty(root: str, folder: str) -> None:
    """Remove the folder and those above it, below the root, that are empty."""
    root = root.rstrip("/")
    while folder.startswith(f"{root}/"):
        try:
            os.rmdir(folder)
        except OSError:  # not empty, or a writer was faster
            return
        folder = os.path.dirname(folder)


@contextlib.contextmanager
def _opened(root: str, name: str) -> Iterator[int]:
    descriptor = os.open(os.path.join(root, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
