"""Suggestions for a name that does not exist: the known names that are spelt similarly."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["LONGEST", "MOST", "closest", "near", "plain"]

MOST = 3
LONGEST = 128  # comparing takes time in proportion to both lengths
COMPARED = 20_000


def closest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of the `known` names, the most similar first. Case and separators count less than letters."""
    if len(name) > LONGEST:
        return []
    forms: dict[str, str] = {}
    for each in known:
        forms.setdefault(plain(each), each)
        if len(forms) >= COMPARED:
            break
    found = difflib.get_close_matches(plain(name), forms, n=MOST, cutoff=0.6)
    return [forms[each] for each in found]


def near(name: str, known: Iterable[str]) -> str | None:
    """The question "did you mean ...?", or None if no known name is similar."""
    found = closest(name, known)
    return f"did you mean {' or '.join(found)}?" if found else None


def plain(name: str) -> str:
    """`name` without case and separators: names that are equal in this form are one name to a reader."""
    return "".join(c for c in name.lower() if c not in "_-. ")
