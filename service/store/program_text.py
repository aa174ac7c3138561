"""A program as JSON text with its id, so that the API process never holds a large document as objects."""

from __future__ import annotations

import hashlib
from base64 import b32encode
from dataclasses import dataclass
from typing import Any

import orjson

__all__ = ["ProgramText", "program_id"]


VALUES = "values"
"""The member of a program that holds the SHA-256 of the file of its initial values."""


def program_id(document: dict[str, Any]) -> str:
    """`prg_` and 26 characters from the digest of the canonical JSON of `document`.

    The id of a program with values is that of its id without values and the digest of the values.
    """
    values = document.get(VALUES)
    if isinstance(values, str):
        return _with_values(program_id({name: each for name, each in document.items() if name != VALUES}), values)
    return _id(orjson.dumps(document, option=orjson.OPT_SORT_KEYS))


def _with_values(id: str, values: str) -> str:
    return _id(f"{id} {values}".encode())


def _id(content: bytes) -> str:
    return "prg_" + b32encode(hashlib.sha256(content).digest()).decode().lower()[:26]


@dataclass(frozen=True, slots=True)
class ProgramText:
    """A program. id: derived from its content; text: its document as JSON.

    values: the member `values` of the document: the SHA-256 of the file of its initial values.
    """

    id: str
    text: bytes
    values: str | None = None

    @staticmethod
    def of(document: dict[str, Any]) -> ProgramText:
        """The text of a small document, or of a large one outside the event loop."""
        values = document.get(VALUES)
        return ProgramText(program_id(document), orjson.dumps(document), values if isinstance(values, str) else None)

    def with_values(self, sha256: str) -> ProgramText:
        """The program whose initial values have this digest."""
        if self.values == sha256:
            return self
        if self.values is not None or len(self.text) < len(b'{"":0}'):  # rare: it is parsed again
            return ProgramText.of({**orjson.loads(self.text), VALUES: sha256})
        return ProgramText(
            _with_values(self.id, sha256), b'{"%b":"%b",%b' % (b"values", sha256.encode(), self.text[1:]), sha256
        )
