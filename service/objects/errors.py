"""Errors of stored files and their store. All other failures are OSError."""

from __future__ import annotations

__all__ = ["DamagedFile", "UnusableStore"]


class DamagedFile(OSError):
    """The content of a stored file is not what the service wrote."""


class UnusableStore(ValueError):
    """Nothing here can open a store of this URL. `str` is a sentence with the remedy."""
