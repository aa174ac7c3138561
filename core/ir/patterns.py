"""Names of variables chosen by patterns, as in parameter groups and initializers."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

__all__ = ["first_match", "matches"]


def matches(pattern: str, name: str) -> bool:
    """Whether `pattern` is `name`, or a glob that covers all of it: ``*``, ``?``, ``[abc]`` and ``[!abc]``.

    ``*`` covers any characters, dots and slashes too. Capital letters differ from small ones.
    """
    return pattern == name or fnmatchcase(name, pattern)


def first_match(patterns: Iterable[Iterable[str]], name: str) -> int | None:
    """The position of the first list of patterns with one that matches `name`; None if there is no such list."""
    for i, each in enumerate(patterns):
        if any(matches(pattern, name) for pattern in each):
            return i
    return None
