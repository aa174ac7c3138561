"""The marker: a file in the root of a directory of files, made when a store first uses the directory.

The empty directory below a mount point has none. It tells a missing file from one whose directory is away. It contains
the id of the directory, which the database has, too.
"""

from __future__ import annotations

import fcntl
import os

from service.ids import new_id

__all__ = ["MARKER", "id_of", "is_there", "make"]

MARKER = ".backpass"
LONGEST_ID = 64


def is_there(root: str) -> bool:
    """Whether the directory has a marker. Raises OSError if that cannot be known."""
    try:
        os.stat(os.path.join(root, MARKER))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def id_of(root: str) -> str | None:
    """The id in the marker, which is empty if a full disk has not taken it; None without a marker. Raises OSError."""
    try:
        with open(os.path.join(root, MARKER), errors="replace") as file:
            return file.read(LONGEST_ID).strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def make(root: str) -> str:
    """The id in the marker, which is made if there is none. Processes that call it at once get one id. Raises OSError.

    On a full disk there may be a marker without an id, which the next call writes.
    """
    path = os.path.join(root, MARKER)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        id = os.pread(descriptor, LONGEST_ID, 0).decode(errors="replace").strip()
        if not id:
            id = new_id("dir_")
            os.pwrite(descriptor, f"{id}\n".encode(), 0)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return id
