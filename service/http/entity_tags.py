"""Entity tags in If-Match and If-None-Match (RFC 9110, section 8.8.3), and the tags of the forms of one answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers

__all__ = ["VARIES", "Accepts", "any_tag", "has_current", "is_named", "of_file", "tags_in"]

Accepts = Callable[[str], bool]
"""Whether the client of a call accepts the ETag that a resource has before the call."""

TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')
ANY = "*"
FILE = ".safetensors"
VARIES = {"Vary": "Accept"}
"""The header of every answer whose form depends on Accept: a cache must not give it to a client with another Accept."""


def any_tag(tag: str) -> bool:
    """The condition of a call without If-Match: every version is accepted."""
    return True


def of_file(tag: str) -> str:
    """The tag of the safetensors file with the values whose JSON form has `tag`. Each form has a tag of its own."""
    return f'{tag[:-1]}{FILE}"'


def has_current(headers: Headers, tag: str) -> bool:
    """Whether If-None-Match says that the client has the representation with `tag`. A malformed header does not."""
    return any(each.removeprefix("W/") in (ANY, tag) for each in tags_in(headers.getlist("if-none-match")) or ())


def is_named(tags: Sequence[str], tag: str) -> bool:
    """Whether `tags`, the value of If-Match, contain the tag of the JSON form, `tag`, or that of the file."""
    return any(each in (ANY, tag, of_file(tag)) for each in tags)


def tags_in(lines: Sequence[str]) -> list[str] | None:
    """The tags in the lines of a header, quoted as they are, or ["*"].

    None if a line is neither * nor a list of quoted tags with commas between them. Empty members are left out.
    """
    text = ",".join(lines)
    if text.strip(" \t,") == ANY:
        return [ANY]
    first, *between = TAG.split(text)
    last = between.pop() if between else ""
    if any(part.strip(" \t,") for part in (first, *between, last)) or not all("," in part for part in between):
        return None
    return TAG.findall(text)
