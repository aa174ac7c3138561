"""Pages of the things that have some labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from service.store.newest import Listed, Place

__all__ = ["has_labels", "labelled_page"]

LEAST_READ = 200
"""Rows that are read at a time: few of them may have the labels."""


Entry = TypeVar("Entry", bound=Listed)


def has_labels(labels: Mapping[str, str], wanted: Sequence[str]) -> bool:
    """Whether there is a label for each of `wanted`: ``name:value``, or ``name`` for any value."""
    known = {*labels, *(f"{name}:{value}" for name, value in labels.items())}
    return known.issuperset(wanted)


def labelled_page(
    read: Callable[[str, int], list[Entry]],
    labels_of: Callable[[Entry], Mapping[str, str]],
    after: str,
    size: int,
    wanted: Sequence[str],
) -> list[Entry]:
    """Up to `size` entries that have the labels, from the page token `after` on.

    read: at most so many of all entries from a page token on, in order.
    wanted: as of `has_labels`.
    """
    if not wanted:
        return read(after, size)
    found: list[Entry] = []
    count = max(size, LEAST_READ)
    while len(found) < size:
        page = read(after, count)
        found += [each for each in page if has_labels(labels_of(each), wanted)]
        if len(page) < count:
            break
        after = Place.of(after).token(page[-1])
    return found[:size]
