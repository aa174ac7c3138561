"""Suggestions for a name that does not exist: the known names that are spelt similarly."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["closest", "near"]

MOST = 3
LONGEST = 128  # comparing takes time in proportion to both lengths
COMPARED = 20_000


def closest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of the `known` names, the most similar first. Case and separators count less than letters."""
    if len(name) > LONGEST:
        return []
    plain: dict[str, str] = {}
    for each in known:
        plain.setdefault(_plain(each), each)
        if len(plain) >= COMPARED:
            break
    found = difflib.get_close_matches(_plain(name), plain, n=MOST, cutoff=0.6)
    return [plain[each] for each in found]


def near(name: str, known: Iterable[str]) -> str | None:
    """The question "did you mean ...?", or None if no known name is similar."""
    found = closest(name, known)
    return f"did you mean {' or '.join(found)}?" if found else None


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c not in "_-. ")
