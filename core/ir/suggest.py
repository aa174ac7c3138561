"""Suggestions for a name that does not exist: the known names that are spelt similarly."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import lru_cache
from heapq import nlargest
from itertools import pairwise

__all__ = ["LONGEST", "MOST", "closest", "near", "plain"]

MOST = 3
LONGEST = 128  # comparing takes time in proportion to both lengths
LETTERS = 200_000  # of the known names together
COMPARED = 10


def closest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of the `known` names, the most similar first. Case and separators count less than letters.

    Only those with the most pairs of letters in common are compared letter by letter, which takes much longer.
    """
    if len(name) > LONGEST:
        return []
    wanted, left = plain(name), LETTERS
    forms: dict[str, str] = {}
    for each in known:
        if len(each) <= LONGEST:
            forms.setdefault(plain(each), each)
            left -= len(each)
        if left < 0:
            break
    if len(forms) > COMPARED:
        pairs = _pairs(wanted)
        likely = nlargest(COMPARED, forms, key=lambda form: _likeness(pairs, _pairs(form)))
        forms = {form: forms[form] for form in likely}
    found = difflib.get_close_matches(wanted, forms, n=MOST, cutoff=0.6)
    return [forms[each] for each in found]


@lru_cache(2**14)
def _pairs(form: str) -> frozenset[str]:
    """The pairs of letters that follow each other, its ends included."""
    ended = f"^{form}$"
    return frozenset(map("".join, pairwise(ended)))


def _likeness(a: frozenset[str], b: frozenset[str]) -> float:
    return 2 * len(a & b) / (len(a) + len(b))


def near(name: str, known: Iterable[str]) -> str | None:
    """The question "did you mean ...?", or None if no known name is similar."""
    found = closest(name, known)
    return f"did you mean {' or '.join(found)}?" if found else None


def plain(name: str) -> str:
    """`name` without case and separators: names that are equal in this form are one name to a reader."""
    return "".join(c for c in name.lower() if c not in "_-. ")
