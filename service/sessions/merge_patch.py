"""Merge patches: changes of a JSON object (RFC 7396)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["merged"]


def merged(document: Any, patch: Any) -> Any:
    """`document` with the members of `patch`; null removes a member, and a list replaces a whole list."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(document) if isinstance(document, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found
