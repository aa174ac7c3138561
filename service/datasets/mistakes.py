"""The mistakes in an uploaded file, collected so that all are reported at once."""

from __future__ import annotations

from typing import Any

from core.ir.errors import escaped
from service.problems import FieldError, HttpProblem

__all__ = ["Mistakes", "refused"]

SHOWN = 50  # mistakes that a problem document lists


class Mistakes:
    """Mistakes found so far. Readers go on after a mistake where they can, until the list is `full`."""

    def __init__(self) -> None:
        self._found: list[FieldError] = []

    @property
    def full(self) -> bool:
        return len(self._found) >= SHOWN

    def add(
        self,
        detail: str,
        column: str | None = None,
        row: int | None = None,
        code: str = "invalid",
        member: tuple[str | int, ...] = (),
    ) -> None:
        """row: number of the row, the first is 1. The detail must not contain values of the file.

        member: the path of the option that is wrong, in place of the column; at least two parts.
        """
        if self.full:
            return
        place: dict[str, Any] = {}
        if row is not None:
            place["row"] = row
        if column is not None:
            place["column"] = column
        where = ", ".join([f"row {row}"] * (row is not None) + [f"column {column!r}"] * (column is not None))
        path = member or (() if column is None else (column,))
        pointer = "".join(f"/{escaped(str(part))}" for part in path)
        self._found.append(FieldError(pointer, code, f"{where}: {detail}" if where else detail, place or None))

    def check(self) -> None:
        """Raises HttpProblem 422 if there are mistakes."""
        if self._found:
            count = len(self._found)
            more = "at least " * self.full
            text = "the file has a mistake" if count == 1 else f"the file has {more}{count} mistakes"
            raise HttpProblem("invalid-dataset", f"{text}: {self._found[0].detail}", errors=self._found)

    def stop(self) -> HttpProblem:
        """The refusal with all mistakes so far, of which there is at least one."""
        try:
            self.check()
        except HttpProblem as problem:
            return problem
        raise AssertionError("there is no mistake")


def refused(detail: str, column: str | None = None, row: int | None = None) -> HttpProblem:
    """The refusal of a file with one mistake, after which nothing can be read."""
    mistakes = Mistakes()
    mistakes.add(detail, column, row)
    return mistakes.stop()
