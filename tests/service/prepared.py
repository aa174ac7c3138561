"""Directories of files that are ready for use."""

from __future__ import annotations

from service.objects import Objects

__all__ = ["prepared"]


def prepared(url: str) -> Objects:
    """The files at `url`; a directory has its marker."""
    objects = Objects(url)
    objects.prepare()
    return objects
