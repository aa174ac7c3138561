"""Entity tags in If-Match and If-None-Match (RFC 9110, section 8.8.3), and the tags of the forms of one answer.

Every call of a resource with an ETag obeys If-Match, so that two clients cannot overwrite each other's changes
unnoticed, and every GET of one obeys If-None-Match, so that a client that polls gets only what has changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from service.problems import FieldError, HttpProblem

__all__ = [
    "VARIES",
    "Accepts",
    "any_tag",
    "check_if_match",
    "has_current",
    "if_match",
    "is_named",
    "known_before",
    "of_file",
    "of_view",
    "tags_in",
    "unchanged",
]

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


def of_view(view: Mapping[str, Any]) -> str:
    """The tag of a resource that clients see as `view`, with its members in any order."""
    content = orjson.dumps(view, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS)
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def if_match(request: Request) -> Accepts:
    """The ETags that the client accepts: those of If-Match, which is * or a list of ETags in quotes; any without it.

    Raises HttpProblem 422 if the header, which protects a change, is malformed.
    """
    # not `request.headers.getlist`, which decodes every header of every step
    lines = [value.decode("latin-1") for name, value in request.scope["headers"] if name == b"if-match"]
    if not lines:
        return any_tag
    tags = tags_in(lines)
    if tags is None:
        detail = 'must be * or a list of ETags in double quotes, such as "e1.v0"'
        error = FieldError("", "invalid", detail, parameter="header: If-Match")
        raise HttpProblem("invalid-request", f"the header If-Match {detail}", errors=[error])
    return lambda etag: is_named(tags, etag)


def check_if_match(accepts: Accepts, tag: str, thing: str) -> None:
    """Raises HttpProblem 412 unless the client accepts `tag`, which the `thing` of its call has."""
    if not accepts(tag):
        raise HttpProblem("precondition-failed", f"the {thing} has changed since the version in If-Match")


def unchanged(request: Request, tag: str, thing: str, headers: Mapping[str, str] | None = None) -> Response | None:
    """The answer 304 to a GET whose client has the representation with `tag`; None if it needs the representation.

    headers: those that the representation has besides its ETag. Raises HttpProblem 412 for another ETag than those of
    If-Match, 422 for a malformed one.
    """
    check_if_match(if_match(request), tag, thing)
    if has_current(request.headers, tag):
        return Response(status_code=304, headers={"ETag": tag, **(headers or {})})
    return None


def known_before(request: Request, tag: str, headers: Mapping[str, str]) -> Response | None:
    """The answer 304 to a GET whose client names `tag`, which an earlier answer to the same question has told it.

    None to compute the answer, and to compare the headers by `unchanged` if there is one: `*` and If-Match do not tell
    that the question is right.
    headers: as of `unchanged`.
    """
    given = tags_in(request.headers.getlist("if-none-match"))
    return None if given == [ANY] or "if-match" in request.headers else unchanged(request, tag, "answer", headers)


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
