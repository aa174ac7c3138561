"""Parameters of a session: reading and replacing them, with ETags."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.engine import Reply
from service.http.given_values import read_values
from service.http.request_body import wants_tensorfile
from service.http.tensor_payloads import render
from service.routes.documented import accepts, answers
from service.routes.in_session import (
    AT,
    IN_SESSION,
    TIMING,
    SessionId,
    read_answer,
    read_named,
    received,
    shown,
    tags_of,
)
from service.routes.preconditions import IF_MATCH, IF_MATCH_NEEDED, if_match, require_if_match
from service.routes.state import sessions, settings
from service.schemas import sessions as schemas
from service.schemas.examples import REGRESSION_PARAMETERS
from service.schemas.session_answers import ParametersAnswer, VersionAnswer

__all__ = ["router"]

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])


@router.get(
    "/{session_id}/parameters",
    summary="Read the parameters",
    responses=answers(
        ParametersAnswer,
        {"parameters": REGRESSION_PARAMETERS, "states": {}, **AT, "timing_ms": TIMING},
        *IN_SESSION,
    )
    | {304: {"description": "The parameters are those of If-None-Match."}},
    openapi_extra=IF_MATCH,
)
async def get_parameters(
    request: Request,
    session_id: SessionId,
    names: Annotated[
        list[str] | None, Query(max_length=1000, description="Parameters and states to return; by default all.")
    ] = None,
) -> Response:
    """Parameters and states as JSON or as a safetensors file. The ETag is their version, and the form."""
    as_file = wants_tensorfile(request)
    reply = await read_named(request, session_id, "session.get_parameters", names, as_file)
    if isinstance(reply, Response):
        return reply
    states = reply.result.pop("states")
    headers = tags_of(reply, as_file)
    if as_file:
        answer = await render(reply, {**shown(reply.result), "states": states}, as_file=True, headers=headers)
        return answer.response()
    prefixed = {f"{'state' if name in states else 'parameter'}/{name}": a for name, a in reply.tensors.items()}
    members: dict[str, Any] = {"parameters": {}, "states": {}}
    reply = Reply(reply.result, prefixed, reply.timing_ms, reply.worker)
    return (await render(reply, shown(reply.result), as_file=False, headers=headers, members=members)).response()


@router.put(
    "/{session_id}/parameters",
    summary="Replace parameters",
    responses=answers(
        VersionAnswer,
        {**AT, "timing_ms": TIMING},
        "precondition-required",
        *IN_SESSION,
    ),
    openapi_extra=accepts(schemas.PutParameters, regression=("Both parameters", {"parameters": REGRESSION_PARAMETERS}))
    | IF_MATCH_NEEDED,
)
async def set_parameters(request: Request, session_id: SessionId) -> Response:
    """Replace the given parameters and states, all of them or, on an error, none. Optimizer state stays."""
    as_file, body, session = await received(request, sessions(request), session_id)
    require_if_match(request, session)
    asked = body.read_as(schemas.PutParameters)
    members = {"/parameters": asked.parameters, "/states": asked.states}
    given = await read_values(body, settings(request), members)
    deadline = settings(request).step_deadline
    allowed = if_match(request)
    with given.told():
        reply = await sessions(request).change(
            session, "session.put_parameters", lambda session: given.args, given.tensors, allowed, deadline
        )
    return await read_answer(reply, as_file, {})
