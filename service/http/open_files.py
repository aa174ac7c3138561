"""File descriptors that connections leave to the rest of the service: workers, the database, files of large values."""

from __future__ import annotations

import resource

__all__ = ["RESERVED", "is_last"]

RESERVED = 64
"""Descriptors that connections do not take; a quarter of the limit if that is less."""


def is_last(descriptor: int) -> bool:
    """Whether a connection with this descriptor takes a reserved one. The kernel gives out the lowest that is free."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and descriptor >= limit - min(RESERVED, limit // 4)
