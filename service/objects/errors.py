"""Errors of stored files and their store. All other failures are OSError."""

from __future__ import annotations

import errno

__all__ = ["DamagedFile", "DirectoryAway", "UnusableStore"]


class DamagedFile(OSError):
    """The content of a stored file is not what the service wrote."""


class UnusableStore(ValueError):
    """Nothing here can open a store of this URL. `str` is a sentence with the remedy."""


class DirectoryAway(OSError):
    """The directory of the files is not there, or is the empty one below a mount point. This may pass."""

    text = "the directory of files is not in its place"

    def __init__(self, root: str) -> None:
        super().__init__(errno.ENODEV, self.text, root)
