"""A program as JSON text with its id, so that the API process never holds a large document as objects."""

from __future__ import annotations

import hashlib
from base64 import b32encode
from dataclasses import dataclass
from typing import Any

import orjson

__all__ = ["ProgramText", "program_id"]


def program_id(document: dict[str, Any]) -> str:
    """`prg_` and 26 characters from the digest of the canonical JSON of `document`."""
    canonical = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return "prg_" + b32encode(hashlib.sha256(canonical).digest()).decode().lower()[:26]


@dataclass(frozen=True, slots=True)
class ProgramText:
    """A program. id: derived from its content; text: its document as JSON."""

    id: str
    text: bytes

    @staticmethod
    def of(document: dict[str, Any]) -> ProgramText:
        """The text of a small document, or of a large one outside the event loop."""
        return ProgramText(program_id(document), orjson.dumps(document))
