"""The optimizer state of a session: reading and replacing it, with ETags."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.engine import Reply
from service.http.given_values import read_values
from service.http.request_body import SAFETENSORS, wants_tensorfile
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
from service.schemas import checkpoints as schemas
from service.schemas.session_answers import VersionAnswer

__all__ = ["router"]

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

STEP = {"dtype": "int64", "shape": [], "data": [1]}
FIRST = {"dtype": "float32", "shape": [2, 1], "data": [0.1, -0.2]}
ADAM = {"type": "adam", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
NO_DECAY = {"weight_decay": 0.0, "l1_decay": 0.0}


@router.get(
    "/{session_id}/optimizer",
    summary="Read the optimizer state",
    responses=answers(
        schemas.OptimizerAnswer,
        {"optimizer": {**ADAM, **NO_DECAY}, "slots": {"w/first": FIRST, "w/step": STEP}, **AT, "timing_ms": TIMING},
        *IN_SESSION,
    )
    | {304: {"description": "The session is the one of If-None-Match."}},
    openapi_extra=IF_MATCH,
)
async def get_optimizer(
    request: Request,
    session_id: SessionId,
    names: Annotated[
        list[str] | None,
        Query(max_length=1000, description="Slots to return, or parameters for all their slots; by default all slots."),
    ] = None,
) -> Response:
    """The optimizer with all attributes, and its state as JSON or as a safetensors file. The ETag is the
    version of the session, and the form."""
    as_file = wants_tensorfile(request)
    reply = await read_named(request, session_id, "session.get_optimizer", names, as_file)
    if isinstance(reply, Response):
        return reply
    # the session goes on showing its optimizer in the words of its client, to which a merge patch refers
    reply.result["optimizer"] = reply.result.pop("complete")
    said, headers = shown(reply.result), tags_of(reply, as_file)
    if as_file:
        return (await render(reply, said, as_file=True, headers=headers)).response()
    prefixed = Reply(reply.result, {f"slot/{n}": a for n, a in reply.tensors.items()}, reply.timing_ms, reply.worker)
    members: dict[str, Any] = {"slots": {}}
    return (await render(prefixed, said, as_file=False, headers=headers, members=members)).response()


@router.put(
    "/{session_id}/optimizer",
    summary="Replace optimizer state",
    responses=answers(VersionAnswer, {**AT, "timing_ms": TIMING}, "precondition-required", *IN_SESSION),
    openapi_extra=accepts(
        schemas.PutOptimizer, moment=("A slot of Adam, and the step", {"slots": {"w/first": FIRST}, "step": 1})
    )
    | IF_MATCH_NEEDED,
)
async def set_optimizer(request: Request, session_id: SessionId) -> Response:
    """Replace the given optimizer state, all of it or, on an error, none. Parameters stay."""
    as_file, body, session = await received(request, sessions(request), session_id)
    require_if_match(request, session)
    asked = body.read_as(schemas.PutOptimizer)
    given = await read_values(body, settings(request), {"/slots": asked.slots})
    args = {**given.args, "step": asked.step, "member": "" if body.media_type == SAFETENSORS else "/slots"}
    allowed = if_match(request)
    with given.told():
        reply = await sessions(request).change(
            session,
            "session.put_optimizer",
            lambda session: args,
            given.tensors,
            allowed,
            settings(request).step_deadline,
        )
    return await read_answer(reply, as_file, {})
