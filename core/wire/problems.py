"""The problems of a program that are found while it is read."""

from __future__ import annotations

from core.ir.errors import InvalidProgram, Location, Problem

__all__ = ["Problems"]


class Problems:
    """A list of problems with a maximum length. `raise_if_any` raises InvalidProgram if there is one."""

    def __init__(self, limit: int = 50) -> None:
        self.found: list[Problem] = []
        self.limit = limit

    def add(
        self,
        code: str,
        message: str,
        pointer: str,
        location: Location | None = None,
        suggestion: str | None = None,
    ) -> None:
        self.found.append(Problem(code, message, pointer, location, suggestion))
        if len(self.found) >= self.limit:
            self.raise_if_any()

    def raise_if_any(self) -> None:
        if self.found:
            raise InvalidProgram(self.found)
