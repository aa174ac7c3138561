"""Errors for attributes that an object lacks, with the name of the one that is meant."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

__all__ = ["Answered", "Hinted"]


class Hinted:
    """A class whose attributes have other names in other libraries."""

    __slots__ = ()

    _elsewhere: ClassVar[Mapping[str, str]] = {}
    """Names of other libraries, several in one text -> the meaning here."""

    if not TYPE_CHECKING:  # a type checker knows the attributes that exist

        def __getattr__(self, name: str) -> NoReturn:
            hint = "" if name.startswith("_") else self._meaning(name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint and '; '}{hint}")

    def _meaning(self, name: str) -> str:
        for names, meaning in self._elsewhere.items():
            if name in names.split():
                return meaning
        public = [each for each in dir(type(self)) if not each.startswith("_")]
        near = difflib.get_close_matches(name, public, 2, 0.7)
        return f"did you mean {' or '.join(near)}?" if near else ""


class Answered(Hinted):
    """The result of a call. said: the members of the answer that have no attribute of their own."""

    __slots__ = ()

    said: Mapping[str, Any]

    def _meaning(self, name: str) -> str:
        return f"see said[{name!r}]" if name in self.said else super()._meaning(name)
