"""Computations of a session: steps, updates, gradients, evaluations."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from service.engine import Reply
from service.engine.protocol import PartCallback
from service.http.given_values import Values, read_gradients, read_values
from service.http.ndjson_stream import GradientStream
from service.http.request_body import NDJSON, SAFETENSORS
from service.http.tensor_payloads import Answer, render
from service.routes.common import Profiled, sessions, settings
from service.routes.documented import accepts, answers, lines
from service.routes.gradients import deadline_of
from service.routes.in_session import (
    AT,
    IN_SESSION,
    TIMING,
    SessionId,
    etag,
    read_answer,
    received,
    received_for,
    shown,
)
from service.schemas import sessions as schemas
from service.schemas.examples import REGRESSION_FEEDS
from service.sessions.registry import Write
from service.sessions.session import Session

__all__ = ["router"]

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

GRADIENTS = {
    "w": {"dtype": "float32", "shape": [2, 1], "data": [-7.533333, -9.866667]},
    "b": {"dtype": "float32", "shape": [1], "data": [-2.3333333]},
}
LOSS = {"dtype": "float32", "shape": [], "data": [1.61]}
GIVEN: dict[str, Any] = {
    "finite": True,
    "missing": {},
    "sparse": {},
    "densified": [],
    "messages": [],
    "messages_left_out": 0,
    "compiled": False,
    "timing_ms": TIMING,
}
NORMS = {"gradient_norms": {"w": 12.414, "b": 2.333, "global": 12.631}}
GRADIENTS_ANSWER = {"loss": LOSS, "fetched": {}, "gradients": GRADIENTS, "recorded": {}, **NORMS, **AT, **GIVEN}
STEP_ANSWER = {**GRADIENTS_ANSWER, "gradients": {}, "seq": 1, "next_seq": 2}


@router.post(
    "/{session_id}/steps",
    summary="Train one step",
    responses=answers(
        schemas.StepAnswer,
        STEP_ANSWER,
        "sequence-conflict",
        "sequence-gap",
        *IN_SESSION,
    ),
    openapi_extra=accepts(
        schemas.StepRequest,
        regression=("A step without a number", {"feeds": REGRESSION_FEEDS, "return_gradients": "norms"}),
    ),
)
async def post_step(request: Request, session_id: SessionId, profile: Profiled = False) -> Response:
    """Forward pass, backward pass and update.

    With a `seq` the request can be repeated safely: the step is done once.
    """
    as_file, body, session = await received(request, sessions(request), session_id)
    asked = body.read_as(schemas.StepRequest)
    args = {"fetch": asked.fetch, "returned": asked.return_gradients, "require_finite": asked.require_finite}
    feeds = await read_values(body, settings(request), {"/feeds": asked.feeds})
    args |= {"profile": profile, **feeds.args}
    write = Write("session.step", args, feeds.tensors, asked.seq, "steps", body)
    members: dict[str, Any] = {"loss": None, "fetched": {}, "gradients": {}, "recorded": {}}
    return await _written(request, session, write, feeds, asked.deadline_s, as_file, members)


@router.post(
    "/{session_id}/updates",
    summary="Apply gradients",
    responses=answers(
        schemas.UpdateAnswer,
        {"seq": 1, "next_seq": 2, **AT, "densified": [], "compiled": False, "timing_ms": TIMING},
        "sequence-conflict",
        "sequence-gap",
        *IN_SESSION,
    ),
    openapi_extra=accepts(schemas.UpdateRequest, regression=("Gradients of both parameters", {"gradients": GRADIENTS})),
)
async def post_update(request: Request, session_id: SessionId) -> Response:
    """Update the parameters with gradients that the client computed, or added up over several workers."""
    as_file, body, session = await received(request, sessions(request), session_id)
    asked = body.read_as(schemas.UpdateRequest)
    given = await read_gradients(body, settings(request), asked.gradients)
    args = {"require_finite": asked.require_finite, "tables": given.tables, **given.args}
    write = Write("session.update", args, given.tensors, asked.seq, "updates", body)
    return await _written(request, session, write, given, asked.deadline_s, as_file, {})


@router.post(
    "/{session_id}/gradients",
    summary="Compute gradients at the current parameters",
    responses=answers(
        schemas.SessionGradientsAnswer,
        GRADIENTS_ANSWER,
        *IN_SESSION,
        stream=lines(GRADIENTS_ANSWER, b=12, w=13),
    ),
    openapi_extra=accepts(schemas.SessionGradientsRequest, regression=("A batch", {"feeds": REGRESSION_FEEDS})),
)
async def post_session_gradients(request: Request, session_id: SessionId, profile: Profiled = False) -> Response:
    """Forward and backward pass; parameters, states and optimizer state do not change.

    With `Accept: application/x-ndjson` the answer is a stream, as of `POST /v1/gradients`. Closing the connection does
    not cancel the call.
    """
    form, body, session = await received_for(request, sessions(request), session_id, NDJSON)
    asked = body.read_as(schemas.SessionGradientsRequest)
    args = {"fetch": asked.fetch, "returned": asked.return_gradients, "stream": form == NDJSON, "profile": profile}
    feeds = await read_values(body, settings(request), {"/feeds": asked.feeds})
    args |= feeds.args
    deadline = deadline_of(asked.deadline_s, settings(request))

    async def call(on_part: PartCallback | None = None) -> Reply:
        with feeds.told():
            return await sessions(request).read(session, "session.gradients", args, feeds.tensors, deadline, on_part)

    members: dict[str, Any] = {"loss": None, "fetched": {}, "recorded": {}}
    if form == NDJSON:
        return GradientStream(call, shown, members)
    return await read_answer(await call(), form == SAFETENSORS, {**members, "gradients": {}})


@router.post(
    "/{session_id}/evaluations",
    summary="Run the forward pass",
    responses=answers(
        schemas.EvaluationAnswer,
        {"fetched": {"loss": LOSS}, **AT, **GIVEN},
        *IN_SESSION,
    ),
    openapi_extra=accepts(
        schemas.EvaluationRequest,
        regression=("Predictions", {"feeds": {"x": REGRESSION_FEEDS["x"]}, "fetch": ["prediction"]}),
    ),
)
async def post_evaluation(request: Request, session_id: SessionId, profile: Profiled = False) -> Response:
    """Forward pass at the current parameters. Feeds that the fetched values do not need may be left out."""
    as_file, body, session = await received(request, sessions(request), session_id)
    asked = body.read_as(schemas.EvaluationRequest)
    feeds = await read_values(body, settings(request), {"/feeds": asked.feeds})
    deadline = deadline_of(asked.deadline_s, settings(request))
    args = {"fetch": asked.fetch or [session.about["loss"]], "profile": profile, **feeds.args}
    with feeds.told():
        reply = await sessions(request).read(session, "session.evaluate", args, feeds.tensors, deadline)
    return await read_answer(reply, as_file, {"fetched": {}})


async def _written(
    request: Request,
    session: Session,
    write: Write,
    values: Values,
    deadline_s: float | None,
    as_file: bool,
    members: dict[str, Any],
) -> Response:
    deadline = deadline_of(deadline_s, settings(request))

    async def answer(reply: Reply) -> Answer:
        document = {**shown(reply.result), "seq": reply.result["seq"], "next_seq": reply.result["seq"] + 1}
        return await render(reply, document, as_file=as_file, headers={"ETag": etag(reply)}, members=members)

    with values.told():
        found, replayed = await sessions(request).write(session, write, deadline, answer)
    return found.response({"Idempotency-Replayed": "true"} if replayed else {})
