"""The place of the op that the reader is reading."""

from __future__ import annotations

from dataclasses import dataclass

from core.ir.builder import BlockBuilder, Value
from core.ir.errors import ProgramError
from core.wire.records import RawBlock, RawOp
from core.wire.versions import Versions

__all__ = ["KEY", "AlreadyReported", "Env", "Site"]

KEY = "@KEY"
"""The key of the random ops: a parameter of every program with random ops."""

Env = dict[str, Value | None]
"""Client name -> its current version. None marks a name whose definition was wrong: a mistake is reported once."""


class AlreadyReported(Exception):
    """The current op cannot be read because of a problem that is already reported."""


@dataclass(frozen=True, slots=True)
class Site:
    """The current op, its block, the visible names, and the core block that is being built."""

    versions: Versions
    env: Env
    block: RawBlock
    raw: RawOp

    @property
    def b(self) -> BlockBuilder:
        return self.versions.builder

    def current(self, names: list[str]) -> list[Value]:
        """The current versions of names in `env`. Raises AlreadyReported if the definition of one was wrong."""
        values = [self.env[n] for n in names]
        if None in values:
            raise AlreadyReported
        return [v for v in values if v is not None]

    def refuse(self, message: str, code: str, place: str = "", suggestion: str | None = None) -> ProgramError:
        """A ProgramError at this op. `place` is the end of its JSON pointer, such as ``inputs/x``."""
        pointer = f"{self.raw.pointer}/{place}" if place else self.raw.pointer
        return ProgramError(message, code, pointer=pointer, suggestion=suggestion)
