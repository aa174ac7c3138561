"""Errors of stored files. All other failures are OSError."""

from __future__ import annotations

__all__ = ["DamagedFile"]


class DamagedFile(OSError):
    """The content of a stored file is not what the service wrote."""
