"""If-Match: a call that takes effect only at the version that its client knows (RFC 9110, section 13.1.1).

Every call of a resource with an ETag obeys the header, so that two clients cannot overwrite each other's changes
unnoticed. Calls that replace values of a session demand it.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request

from service.http.entity_tags import Accepts, any_tag, is_named, tags_in
from service.problems import FieldError, HttpProblem
from service.sessions.session import Session

__all__ = ["IF_MATCH", "IF_MATCH_NEEDED", "if_match", "require_if_match"]

IF_MATCH: dict[str, Any] = {
    "parameters": [
        {
            "name": "If-Match",
            "in": "header",
            "schema": {"type": "string"},
            "description": "ETag of the version that the call is for in its double quotes, a list of ETags, or * for "
            "any, as without the header. At another version the call changes nothing and is answered with 412.",
        }
    ]
}
"""The header of routes that obey it, for the OpenAPI document."""
IF_MATCH_NEEDED: dict[str, Any] = {
    "parameters": [
        {
            **IF_MATCH["parameters"][0],
            "required": True,
            "description": "ETag of the version to replace in its double quotes, a list of ETags, or * for any.",
            "example": "*",
        }
    ]
}
"""The header of routes that demand it, for the OpenAPI document; see `require_if_match`."""


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


def require_if_match(request: Request, session: Session) -> None:
    """Raises HttpProblem 428 if the request does not say which version it replaces."""
    if "if-match" not in request.headers:
        detail = "the header If-Match is missing; send an ETag or *"
        raise HttpProblem("precondition-required", detail, **session.position)
