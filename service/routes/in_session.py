"""Helpers of the routes of one session: finding it, reading the body, reporting its version."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Request, Response

from service.caller import tenant
from service.engine import Reply
from service.http.entity_tags import VARIES, has_current, of_file
from service.http.given_values import told_in_query
from service.http.request_body import SAFETENSORS, Body, read_body, wanted_form
from service.http.tensor_payloads import render
from service.routes.documented import HOT_PROBLEMS
from service.routes.preconditions import if_match
from service.routes.state import sessions, settings
from service.schemas.examples import SAMPLE_SESSION
from service.sessions.answer import etag_of as etag
from service.sessions.answer import shown
from service.sessions.registry import SessionRegistry
from service.sessions.session import Session

__all__ = [
    "AT",
    "IN_SESSION",
    "SESSION_ID",
    "TIMING",
    "SessionId",
    "etag",
    "known",
    "known_now",
    "read_answer",
    "read_named",
    "received",
    "received_for",
    "shown",
    "tags_of",
]

SESSION_ID = r"^ses_[a-z2-7]{26}$"
SessionId = Annotated[
    str,
    Path(
        pattern=SESSION_ID,
        description="Id of a session.",
        openapi_examples={"sample": {"summary": "The sample session", "value": SAMPLE_SESSION}},
    ),
]

IN_SESSION = ("not-found", "precondition-failed", "invalid-program", "storage-full", *HOT_PROBLEMS)
TIMING = {"queue": 0.1, "transfer_in": 0.1, "compute": 0.9, "transfer_out": 0.1, "total": 1.5}
AT = {"step": 1, "weights_version": "e1.v1", "accumulated": 0, "durable_step": 1}


async def received(
    request: Request, registry: SessionRegistry, id: str, reads: bool = False
) -> tuple[bool, Body, Session]:
    """Whether the answer is a file, the body, and the session (or tape). The cheapest checks come first.

    reads: as of `SessionRegistry.find`.
    """
    form, body, session = await received_for(request, registry, id, reads=reads)
    return form == SAFETENSORS, body, session


async def received_for(
    request: Request, registry: SessionRegistry, id: str, *more: str, reads: bool = False
) -> tuple[str, Body, Session]:
    """The media type of the answer (JSON, safetensors or one of `more`), the body, and the session."""
    form = wanted_form(request, *more)
    session = await registry.find(tenant(), id, reads)
    return form, await read_body(request, settings(request)), session


async def read_answer(reply: Reply, as_file: bool, members: dict[str, Any]) -> Response:
    """The answer to a call without a number, with its ETag. members: as of `render`."""
    answer = await render(reply, shown(reply.result), as_file=as_file, headers={"ETag": etag(reply)}, members=members)
    return answer.response()


async def read_named(request: Request, id: str, op: str, names: list[str] | None, as_file: bool) -> Reply | Response:
    """The reply of `op` for these names (None: all) of a session, or the answer 304 if the client has this form of its
    version.

    All names of a session have one version, so that only its worker knows whether those of the client exist.
    """
    session = await sessions(request).find(tenant(), id, reads=True)
    if names is None and (answer := await known(request, sessions(request), session, as_file)) is not None:
        return answer
    with told_in_query("names", names or ()):
        deadline = settings(request).step_deadline
        reply = await sessions(request).read(session, op, {"names": names}, {}, deadline, accepts=if_match(request))
    return known_now(request, tags_of(reply, as_file)) or reply


async def known(request: Request, registry: SessionRegistry, session: Session, as_file: bool | None) -> Response | None:
    """The answer 304 if the client has this form of the version that the session (or tape) has.

    as_file: whether the form is a file; None for an answer that has one form.
    """
    tag, accepts = of_file(session.etag) if as_file else session.etag, if_match(request)
    is_known = session.is_settled and accepts(session.etag) and has_current(request.headers, tag)
    if is_known and await registry.is_current(session):
        return Response(status_code=304, headers={"ETag": tag} | ({} if as_file is None else VARIES))
    return None


def known_now(request: Request, headers: dict[str, str]) -> Response | None:
    """The answer 304 if the client has the answer with these headers, of which one is the ETag."""
    return Response(status_code=304, headers=headers) if has_current(request.headers, headers["ETag"]) else None


def tags_of(reply: Reply, as_file: bool) -> dict[str, str]:
    """The headers of an answer to GET whose form depends on Accept."""
    return {"ETag": of_file(etag(reply)) if as_file else etag(reply), **VARIES}
