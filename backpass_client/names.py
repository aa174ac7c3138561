"""Names of the variables of one tape: equal in equal iterations, and released when nothing refers to them."""

from __future__ import annotations

import weakref
from typing import Any

__all__ = ["Name", "Names"]


class Name:
    """A variable of the service's tape. The client releases it when no expression depends on it any more.

    parents:  the names it was computed from.
    variable: of a leaf, the object whose value it holds.
    used:     of a leaf, the generation of the tape in which an op read it last.
    """

    __slots__ = ("__weakref__", "_dead", "parents", "text", "used", "variable")

    def __init__(self, text: str, parents: tuple[Name, ...], dead: list[str]) -> None:
        """dead: gets `text` when nothing refers to this name any more."""
        self.text = text
        self.parents = parents
        self.variable: weakref.ref[Any] | None = None
        self.used = -1
        self._dead = dead

    def __del__(self) -> None:
        self._dead.append(self.text)


class Names:
    """The names of one tape.

    A renewed tape counts from the start again, so that an iteration which records the same ops uses the same names.
    The names of variables are not counted again, because parameters stay on a renewed tape.
    """

    def __init__(self) -> None:
        self._count = 0
        self._leaves = 0
        self._dead: list[str] = []
        self._dead_leaves: list[str] = []
        self._releasable: list[str] = []

    def new(self, parents: tuple[Name, ...], hint: str = "e") -> Name:
        """The name of an op's output or, with the hint "c", of a constant."""
        self._count += 1
        return Name(f"{hint}{self._count}", parents, self._dead)

    def existing(self, text: str, parents: tuple[Name, ...]) -> Name:
        """A name that the service chose."""
        return Name(text, parents, self._dead)

    def leaf(self, label: str | None) -> Name:
        """The name of a variable."""
        self._leaves += 1
        return Name(f"{label}.{self._leaves}" if label else f"v{self._leaves}", (), self._dead_leaves)

    def renew(self) -> None:
        """Forget the names of the last generation: the service forgets them too."""
        self._count = 0
        self._dead = []  # another list, because names of the last generation still die
        self._releasable = []

    def releasable(self) -> list[str]:
        """The names to release with the next request. No op that was recorded before it can read them."""
        return self._releasable

    def sent(self) -> None:
        """The next request was sent. The names that died before it can be released with the request after it."""
        dead, leaves = len(self._dead), len(self._dead_leaves)
        self._releasable = [*self._dead[:dead], *self._dead_leaves[:leaves]]
        del self._dead[:dead], self._dead_leaves[:leaves]
