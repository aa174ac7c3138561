"""Where the reader stands while it reads one op."""

from __future__ import annotations

from dataclasses import dataclass

from core.ir.builder import BlockBuilder, Value
from core.ir.errors import ProgramError
from core.wire.document import RawBlock, RawOp
from core.wire.versions import Versions

__all__ = ["KEY", "Env", "Known", "Site"]

KEY = "@KEY"
"""The variable that random ops draw from: a parameter of every program that has any."""

Env = dict[str, Value | None]
"""Client name -> its current version. None marks a name whose definition was wrong: one mistake is told once."""


class Known(Exception):
    """The op at hand cannot be read because of a problem that has been noted already."""


@dataclass(frozen=True, slots=True)
class Site:
    """The op at hand, the block it stands in, the names it can see, and the core's block that is being written."""

    versions: Versions
    env: Env
    block: RawBlock
    raw: RawOp

    @property
    def b(self) -> BlockBuilder:
        return self.versions.builder

    def known(self, names: list[str]) -> list[Value]:
        """The current versions of names that are in `env`. Raises Known if one of them is wrong."""
        values = [self.env[n] for n in names]
        if None in values:
            raise Known
        return [v for v in values if v is not None]

    def refuse(self, message: str, code: str, place: str = "", suggestion: str | None = None) -> ProgramError:
        """An error at this op; `place` is the end of a JSON pointer, such as ``inputs/x``."""
        pointer = f"{self.raw.pointer}/{place}" if place else self.raw.pointer
        return ProgramError(message, code, pointer=pointer, suggestion=suggestion)
