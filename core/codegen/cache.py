"""A cache of object code on disk, so that a process that starts again compiles nothing twice.

A key is a digest of everything that object code depends on; `machine.key_of` makes it. An entry on disk is one file: a
line that names the format, a digest of key and code, the code. Files appear whole or not at all, and several processes
may share a directory. The cache never returns a file that another user owns or may write, or whose digest is wrong; the
next `put` replaces it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["DiskCache"]

log = logging.getLogger("backpass.codegen")

MAGIC = b"backpass object code 1\n"
SUFFIX = ".o"
ABANDONED = 3600.0
"""Seconds after which a partly written file counts as abandoned by its writer."""


class DiskCache:
    """Object code by key, in a directory of its own. The first entry creates the directory, but not the one above it:
    a data directory that is gone must not appear again as another one.

    limit: bytes of all entries together. Beyond it the least recently used entries go; a larger entry is not stored.

    If the directory cannot be used, the cache logs one warning and stores nothing; no call fails.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self._warned = False

    def get(self, key: str) -> bytes | None:
        """The code stored under `key`; None if the entry is absent or damaged."""
        path = self._path(key)
        try:
            whole = _read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(error)
            return None
        head = MAGIC + _digest(key, whole[len(MAGIC) + 32 :])
        if not whole.startswith(head):
            log.warning("ignoring %s: its digest is wrong", path)
            return None
        with suppress(OSError):  # another process may have removed it; the code read is still good
            os.utime(path)
        return whole[len(head) :]

    def put(self, key: str, code: bytes) -> None:
        """Store `code` under `key`; it replaces an older entry."""
        whole = MAGIC + _digest(key, code) + code
        if len(whole) > self.limit:
            return
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            if not _is_ours(self.directory.stat()):
                raise PermissionError(f"{self.directory} belongs to another user, or other users may write to it")
            descriptor, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=self.directory)  # with mode 0600
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(whole)
                os.replace(name, self._path(key))
            except BaseException:
                os.unlink(name)
                raise
            self._trim()
        except OSError as error:
            self._warn(error)

    def _path(self, key: str) -> Path:
        return self.directory / (key + SUFFIX)

    def _trim(self) -> None:
        """Remove the least recently used entries until the rest is within the limit."""
        found = []
        now = time.time()
        for entry in os.scandir(self.directory):
            try:
                about = entry.stat(follow_symlinks=False)
                if entry.name.endswith(SUFFIX):
                    found.append((about.st_mtime, about.st_size, entry.path))
                elif entry.name.endswith(".part") and now - about.st_mtime > ABANDONED:
                    os.unlink(entry.path)
            except FileNotFoundError:  # removed by another process
                continue
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.limit:
                return
            Path(path).unlink(missing_ok=True)
            total -= size

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            log.warning("cannot store object code in %s: %s", self.directory, error)
            self._warned = True


def _read(path: Path) -> bytes:
    """Raises PermissionError for a file that another user could have written."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or not _is_ours(about):
            raise PermissionError(f"{path} is not a regular file that this user alone may write")
        return file.read()


def _is_ours(about: os.stat_result) -> bool:
    return about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _digest(key: str, code: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + code).digest()
