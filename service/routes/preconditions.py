"""Resources with an ETag: their answers, the headers of calls that depend on it, and the calls that demand one.

A call with If-Match takes effect only at the version that its client knows (RFC 9110, section 13.1.1). Calls that
replace values of a session demand the header.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response

from service.http.entity_tags import if_match, unchanged
from service.problems import HttpProblem
from service.routes.common import json_answer
from service.schemas.headers import IF_MATCH as HEADER
from service.sessions.session import Session

__all__ = ["IF_MATCH", "IF_MATCH_NEEDED", "TAGGED", "if_match", "require_if_match", "tagged"]

IF_MATCH: dict[str, Any] = {"parameters": [HEADER]}
"""The header of routes that obey it, for the OpenAPI document."""
IF_MATCH_NEEDED: dict[str, Any] = {
    "parameters": [
        {
            **HEADER,
            "required": True,
            "description": "ETag of the version to replace in its double quotes, a list of ETags, or * for any.",
            "example": "*",
        }
    ]
}
"""The header of routes that demand it, for the OpenAPI document; see `require_if_match`."""
TAGGED: dict[int | str, dict[str, Any]] = {304: {"description": "The ETag is that of If-None-Match."}}
"""The entry of `responses` that a GET of a resource with an ETag has; its headers and 412 follow from it."""


def tagged(request: Request, view: Mapping[str, Any], tag: str, thing: str) -> Response:
    """The answer to a GET of a `thing` that clients see as `view`, which has the ETag `tag`; or 304 without it.

    Raises HttpProblem 412.
    """
    return unchanged(request, tag, thing) or json_answer(view, headers={"ETag": tag})


def require_if_match(request: Request, session: Session) -> None:
    """Raises HttpProblem 428 if the request does not say which version it replaces."""
    if "if-match" not in request.headers:
        detail = "the header If-Match is missing; send an ETag or *"
        raise HttpProblem("precondition-required", detail, **session.position)
