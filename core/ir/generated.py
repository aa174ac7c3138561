"""Names of generated variables. They stay short at any depth of nesting and any order of differentiation.

A generated name is a client's name, or the name of an op, followed by tags: ``h@GRAD``, ``mul@3@STACK``. A variable
derived from another gets one tag more. Two rules keep names short:

* A residual of a residual replaces the tag: the record of ``h@STACK`` is again ``h@STACK``, with a number if that is
  taken. So the depth of a nest does not count.
* Beyond `TAGS` characters of tags only the last tag remains. So the order of differentiation does not count.

The reader accepts a name whose tags have up to `GENERATED` characters, after a client's name of any legal length.
"""

from __future__ import annotations

import re
from collections.abc import Container

__all__ = [
    "CUTTING",
    "GENERATED",
    "PREFIX",
    "client_part",
    "generated_length",
    "numbered",
    "prefixed",
    "residual",
    "tagged",
]

PREFIX = "grad/"
CUTTING = "@ROOM"
"""A tag of the variables that cut feeds from larger arrays (core.compiler.room). No program and no query may name them,
so that a step with room refuses the names that other steps refuse.
"""
TAGS = 40
"""Tags of this many characters may get one tag more; longer ones are dropped."""
GENERATED = 96
"""The most characters that the service adds to a name: tags, one more tag with a number, and a prefix."""
RESIDUAL = re.compile(r"(?:@(?:STACK|KEPT)(?:@\d+)?)+\Z")
REPEATED = re.compile(r"grad/(?:\d+/)?")


def client_part(name: str) -> str:
    """The name from which a generated name is derived: without its prefix and its tags."""
    if name.startswith(PREFIX):
        name = REPEATED.sub("", name, count=1)
    return name.partition("@")[0]


def generated_length(name: str) -> int:
    """The number of characters that the service added to a client's name."""
    return len(name) - len(client_part(name))


def tagged(name: str, tag: str) -> str:
    """`name` with one tag more, without the leading ``@``."""
    if len(name) > TAGS and generated_length(name) + len(tag) >= TAGS:
        name = client_part(name)
    return f"{name}@{tag}"


def residual(name: str, tag: str) -> str:
    """The name of the record of the variable `name`: ``h@STACK`` for `h`, for ``h@STACK`` and for ``h@KEPT@2``."""
    return tagged(RESIDUAL.sub("", name), tag)


def numbered(name: str, taken: Container[str], last: dict[str, int]) -> str:
    """`name`, or the first of ``name@1``, ``name@2`` and so on that is not in `taken`.

    last: name -> the number tried last. It makes many calls linear; pass the same dict while `taken` only grows.
    """
    n = last.get(name, -1) + 1
    while (free := f"{name}@{n}" if n else name) in taken:
        n += 1
    last[name] = n
    return free


def prefixed(name: str, taken: Container[str], last: dict[str, int]) -> str:
    """`name`, or the first of ``grad/name``, ``grad/2/name``, ``grad/3/name`` and so on that is not in `taken`."""
    if name not in taken:
        return name
    stem = REPEATED.sub("", name, count=1) if name.startswith(PREFIX) else name
    n = last.get(stem, 0) + 1
    while (free := f"{PREFIX}{n}/{stem}" if n > 1 else f"{PREFIX}{stem}") in taken:
        n += 1
    last[stem] = n
    return free
