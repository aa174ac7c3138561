"""Helpers of several routes: answers, pages, leases, deadlines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Query, Request, Response
from fastapi.openapi.models import Example

from service.caller import CALLER
from service.formats import json_tensors as wire
from service.http.request_body import JSON
from service.problems import HttpProblem, wrong_member
from service.settings import Settings
from service.store.newest import TOKEN_LENGTH, Listed, Place, token_pattern

__all__ = [
    "LOSS",
    "Profiled",
    "WithLabels",
    "administrator",
    "cut_page",
    "deadline_of",
    "json_answer",
    "lease_of",
    "page_token_of",
]


Entry = TypeVar("Entry", bound=Listed)

Profiled = Annotated[
    bool, Query(description="Return the time of each kernel. Measuring makes the call slightly slower.")
]

WithLabels = Annotated[
    list[Annotated[str, Query(min_length=1, max_length=321)]] | None,
    Query(
        max_length=64,
        description="Only those with this label: `name:value`, or `name` for any value. Several must all be there.",
    ),
]
"""The filter of a listing by labels, as of `service.store.labelled.has_labels`."""

LOSS: dict[str, Example] = {"loss": {"value": "loss"}}
"""The loss that forms of the documentation start with."""


async def administrator(request: Request) -> None:
    """A dependency of routes for administrators. The check of keys asks the same, before the request is read.

    Raises HttpProblem 403.
    """
    if "admin" not in CALLER.get().scopes:
        raise HttpProblem("forbidden", "the request needs the scope admin")


def json_answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(wire.dumps(content), status, headers, JSON)


def cut_page(found: Sequence[Entry], size: int, token: str) -> tuple[Sequence[Entry], str | None]:
    """The entries of a page, and the token of the next page; None on the last page.

    found: entries in order, of which there are more than `size` if another page follows. token: of this page.
    """
    page = found[:size]
    return page, Place.of(token).token(page[-1]) if len(found) > size else None


def page_token_of(id: str) -> Any:
    """The description of the parameter `page_token`. id: pattern of the ids of the entries, without anchors."""
    text = "`next_page_token` of the previous page."
    return Query(max_length=TOKEN_LENGTH, pattern=token_pattern(id), description=text)


def lease_of(asked: float | None, default: float, most: float) -> float:
    """The lease in seconds: the requested one, or the default. Raises HttpProblem 422 above the maximum."""
    if asked is not None and asked > most:
        detail = f"lease_s exceeds the maximum of {most:.15g} s"
        raise wrong_member("/lease_s", detail, "too_long", "limit-exceeded")
    return default if asked is None else asked


def deadline_of(asked: float | None, settings: Settings) -> float:
    """The deadline in seconds: the requested one, or the default. Raises HttpProblem 422 above the maximum."""
    if asked is None:
        return settings.step_deadline
    if asked > settings.max_step_deadline:
        detail = f"deadline_s exceeds the maximum of {settings.max_step_deadline:.15g} s"
        raise wrong_member("/deadline_s", detail, "too_long", "limit-exceeded")
    return asked
