"""A location in the client's program as JSON."""

from __future__ import annotations

from typing import Any

from core.ir.errors import Location

__all__ = ["place"]


def place(location: Location | None) -> dict[str, Any] | None:
    if location is None:
        return None
    return {**location.as_document(), "backward": location.adjoint}
