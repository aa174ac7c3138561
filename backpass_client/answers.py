"""Answers that are not the expected ones: of the service, or of a proxy in front of it; and the wait before a retry."""

from __future__ import annotations

import random
import re
import time
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from backpass_client.errors import BackpassError, Refused, refusal

__all__ = ["LONGEST_WAIT_S", "checked", "json_of", "of_type", "pause", "refused"]

LONGEST_WAIT_S = 60.0
FIRST_PAUSE_S, FACTOR = 0.1, 3.0
"""Five pauses take twelve seconds: a service stops and starts again within them."""

PASSING = (429, 502, 503, 504)
"""Statuses by which a proxy tells that the same request may succeed later."""

TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.S | re.I)
SHOWN = 120
"""Characters of the text of a proxy that are shown."""


def checked(answer: httpx.Response, request: str) -> httpx.Response:
    """The answer, if it is a success. Raises Refused. request: method and path."""
    if answer.is_success:
        return answer
    raise refused(answer, request)


def json_of(answer: httpx.Response, request: str) -> Any:
    """The JSON of a success. Raises BackpassError if it has none: another server answered."""
    try:
        return answer.json()
    except ValueError:
        raise _foreign(answer, request, "application/json") from None


def of_type(answer: httpx.Response, request: str, media_type: str) -> httpx.Response:
    """The answer, if its content has this media type. Raises BackpassError otherwise: another server answered."""
    if answer.headers.get("content-type", "").partition(";")[0] == media_type:
        return answer
    raise _foreign(answer, request, media_type)


def refused(answer: httpx.Response, request: str) -> Refused:
    """The exception for an answer that is no success. It has the problem document of the service, or one with the
    status and the text of the proxy that answered in its place."""
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if not (isinstance(problem, dict) and problem.get("status") == answer.status_code and "code" in problem):
        problem = _problem(answer)
    return refusal(problem, request, _retry_after(answer))


def _problem(answer: httpx.Response) -> dict[str, Any]:
    status, phrase = answer.status_code, answer.reason_phrase
    place = answer.headers.get("location", "")
    if answer.is_redirect and place:
        detail = f"redirects to {place}: give the client the address of the service itself"
    else:
        said = " ".join(TAGS.sub(" ", answer.text).split()) if _is_text(answer) else ""
        said = f"{said[:SHOWN]}..." if len(said) > SHOWN else said
        detail = f"{_origin(answer)}{', with the text: ' + said if said and said != phrase else ''}"
    return {"status": status, "code": "", "title": phrase, "detail": detail, "retryable": status in PASSING}


def _foreign(answer: httpx.Response, request: str, expected: str) -> BackpassError:
    kind = answer.headers.get("content-type", "no media type")
    return BackpassError(f"{request}: {answer.status_code} with {kind} in place of {expected}: {_origin(answer)}")


def _is_text(answer: httpx.Response) -> bool:
    return answer.headers.get("content-type", "").startswith(("text/", "application/json", "application/xml"))


def _origin(answer: httpx.Response) -> str:
    server = answer.headers.get("server", "")
    return f"this is no answer of Backpass, but of a proxy or another server{f' ({server})' if server else ''}"


def _retry_after(answer: httpx.Response) -> float | None:
    """Seconds to wait by the header Retry-After, which has a number or a date; None without a valid one."""
    given = answer.headers.get("retry-after", "").strip()
    if given.isascii() and given.isdecimal():
        return float(given)
    at = _seconds(given)
    if at is None:
        return None
    now = _seconds(answer.headers.get("date", ""))  # the clock of the sender, if it tells the time
    return max(0.0, at - (time.time() if now is None else now))


def _seconds(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def pause(attempt: int, retry_after: float | None = None) -> float:
    """Seconds to wait behind a failed attempt, the first of which is 1: as long as asked for, otherwise longer and
    longer. Clients that failed together do not come back together."""
    if retry_after is not None:
        return min(LONGEST_WAIT_S, retry_after)
    return min(LONGEST_WAIT_S, FIRST_PAUSE_S * FACTOR ** (attempt - 1)) * random.uniform(0.75, 1.25)
