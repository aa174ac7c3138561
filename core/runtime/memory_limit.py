"""The memory that runs may take: the process that runs steps measures it, runs ask it before they allocate."""

from __future__ import annotations

from typing import Protocol

__all__ = ["GRAIN", "MemoryLimit"]

GRAIN = 1 << 20
"""Bytes up to which an allocation is not checked by itself: a check takes some microseconds."""


class MemoryLimit(Protocol):
    """The memory of a process, or of a device, that all arrays share."""

    @property
    def capacity(self) -> int:
        """Bytes that arrays may take together."""

    def used(self) -> int:
        """Bytes in use now. Idle buffers of earlier runs count too."""

    def available(self, wanted: int, keep_idle: bool = False) -> int:
        """Bytes that can be allocated now.

        If these are fewer than `wanted`, idle memory is freed first. With `keep_idle` it is not freed, but counts as
        available: a run that is about to start can use it.
        """
