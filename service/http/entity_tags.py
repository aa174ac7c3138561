"""Lists of entity tags, the values of If-Match and If-None-Match (RFC 9110, section 8.8.3)."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["tags_in"]

TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')
ANY = "*"


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
