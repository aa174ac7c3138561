"""Pages of the entries of a list, the newest first, and the tokens that lead from one page to the next.

A token names the last entry of the page before: `<created>~<id>`. New entries come before that entry, and deletions
move no entry, so a reader of all pages gets each remaining entry exactly once. Earlier versions listed entries in the
order of ids, and their tokens are ids alone: the pages after such a token follow in that order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sqlalchemy import ColumnElement, Select, Table, literal, tuple_

__all__ = ["TOKEN_LENGTH", "Listed", "Place", "token_pattern"]

TOKEN_LENGTH = 80
SIGN = "~"  # known to `service.problems.words`


class Listed(Protocol):
    """An entry of a list. created: seconds since 1970."""

    @property
    def id(self) -> str: ...
    @property
    def created(self) -> float: ...


Entry = TypeVar("Entry", bound=Listed)


def token_pattern(id: str) -> str:
    """The pattern of the tokens of a list, and of no token. id: pattern of the ids of its entries, without anchors."""
    return rf"^(([0-9]{{1,12}}\.[0-9]{{1,17}}{SIGN})?{id})?$"


@dataclass(frozen=True, slots=True)
class Place:
    """The place in a list where a page begins.

    created, id: of the last entry before it; an empty id for the beginning. is_of_ids: whether the list is in the order
    of ids.
    """

    created: float
    id: str
    is_of_ids: bool

    @staticmethod
    def of(token: str) -> Place:
        created, sign, id = token.rpartition(SIGN)
        return Place(float(created or 0.0), id, bool(id) and not sign)

    def token(self, last: Listed) -> str:
        """The token of the page after the one that ends with `last`."""
        return last.id if self.is_of_ids else f"{last.created!r}{SIGN}{last.id}"

    def query(self, found: Select[Any], table: Table) -> Select[Any]:
        """`found`, which selects rows of `table`, from this place on and in order."""
        if self.is_of_ids:
            return found.where(table.c.id > self.id).order_by(table.c.id)
        if self.id:
            found = found.where(self._is_older(table))
        return found.order_by(table.c.created.desc(), table.c.id.desc())

    def _is_older(self, table: Table) -> ColumnElement[bool]:
        return tuple_(table.c.created, table.c.id) < tuple_(literal(self.created), literal(self.id))

    def sorted(self, entries: Iterable[Entry]) -> list[Entry]:
        """The entries from this place on, in order."""
        if self.is_of_ids:
            return sorted((each for each in entries if each.id > self.id), key=lambda each: each.id)
        last = self.created, self.id
        found = [each for each in entries if not self.id or (each.created, each.id) < last]
        return sorted(found, key=lambda each: (each.created, each.id), reverse=True)
