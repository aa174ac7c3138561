"""Patterns of the navigation, such as `recipes/*.md`, as the pages that they match."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

__all__ = ["expanded"]

FIRST = ("README.md", "index.md")
LAST = ("types.md", "problems.md")


def expanded(nav: list[Any], pages: list[str]) -> list[Any]:
    """`nav` with a list of pages in place of each pattern; a section without pages is left out.

    pages: paths below docs/. Order: the index of a folder, then by name, then types and problem codes.
    """
    found = []
    for entry in nav:
        [(title, target)] = entry.items() if isinstance(entry, dict) else [(None, entry)]
        if isinstance(target, list):
            found.append({title: expanded(target, pages)})
        elif "*" not in target:
            found.append(entry)
        elif matched := sorted((page for page in pages if fnmatch(page, target)), key=_rank):
            found.append({title: matched})
    return found


def _rank(page: str) -> tuple[bool, bool, str]:
    name = page.rpartition("/")[2]
    return name not in FIRST, name in LAST, page
