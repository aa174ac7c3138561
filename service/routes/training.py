"""Computations of a session: steps, updates, gradients, evaluations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response

from service.caller import tenant
from service.engine import Reply
from service.engine.protocol import PartCallback
from service.http.given_values import Values, read_gradients, read_values
from service.http.ndjson_stream import GradientStream, StepStream
from service.http.request_body import NDJSON, SAFETENSORS, Body
from service.http.tensor_payloads import Answer, sent
from service.problems import wrong_member
from service.routes.at_values import COTANGENTS
from service.routes.common import Profiled, deadline_of
from service.routes.documented import accepts, answers, empty_answer, lines
from service.routes.in_session import (
    AT,
    IN_SESSION,
    TIMING,
    SessionId,
    read_answer,
    received,
    received_for,
    shown,
)
from service.routes.preconditions import IF_MATCH, if_match
from service.routes.state import live, sessions, settings
from service.schemas import sessions as schemas
from service.schemas.examples import REGRESSION_FEEDS
from service.schemas.session_answers import EvaluationAnswer, SessionGradientsAnswer, StepAnswer, UpdateAnswer
from service.sessions.answer import written
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
RATE = {"learning_rate": 0.01}
GRADIENTS_ANSWER = {"loss": LOSS, "fetched": {}, "gradients": GRADIENTS, "recorded": {}, **NORMS, **AT, **GIVEN}
STEP_ANSWER = {**GRADIENTS_ANSWER, "gradients": {}, **RATE, "applied": 1, "seq": 1, "next_seq": 2}
STEP = {"feeds": REGRESSION_FEEDS, "return_gradients": "norms"}
TWO_BATCHES = {
    name: {**tensor, "shape": [2, *tensor["shape"]], "data": tensor["data"] * 2}
    for name, tensor in REGRESSION_FEEDS.items()
}


@router.post(
    "/{session_id}/steps",
    summary="Train one step",
    responses=answers(
        StepAnswer,
        STEP_ANSWER,
        "sequence-conflict",
        "sequence-gap",
        *IN_SESSION,
        stream=lines({**STEP_ANSWER, "gradients": GRADIENTS}, b=12, w=13),
    ),
    openapi_extra=accepts(
        schemas.StepRequest,
        regression=("A step without a number", STEP),
        rate=("Another learning rate for this step", {**STEP, "learning_rate": 0.001}),
        batches=("Two steps in one call", {**STEP, "feeds": TWO_BATCHES, "batches": 2}),
        accumulate=(
            "One update with the mean gradient of two batches",
            {**STEP, "feeds": TWO_BATCHES, "accumulate": 2, "reduction": "mean"},
        ),
    )
    | IF_MATCH,
)
async def train_step(request: Request, session_id: SessionId, profile: Profiled = False) -> Response:
    """Forward pass, backward pass and update; with `batches` several of them, in one call.

    With a `seq` the request can be repeated safely: the step is done once, and the stored answer is sent again in the
    form that it has (406 if `Accept` does not allow it). If a step of several fails, or the deadline
    passes between them, the earlier ones stay: the answer has their number as `applied` and the reason as `stopped`.

    With `Accept: application/x-ndjson` the gradients, by default all of them, leave in the order in which the backward
    pass completes them. The last line is the answer of the step, after it took effect. Such a step runs op by op.
    """
    form, body, session = await received_for(request, sessions(request), session_id, NDJSON)
    asked = body.read_as(schemas.StepRequest)
    returned = asked.return_gradients
    if form == NDJSON:
        if asked.batches is not None or asked.accumulate is not None:
            raise wrong_member(
                "/accumulate" if asked.batches is None else "/batches", "a step on several batches is not streamed"
            )
        if "return_gradients" not in asked.model_fields_set:
            returned = "all"
    args: dict[str, Any] = {
        "fetch": asked.fetch,
        "returned": returned,
        "require_finite": asked.require_finite,
    }
    args |= {"learning_rate": asked.learning_rate, "batches": asked.batches, "accumulate": asked.accumulate}
    feeds = await _feeds(request, body, session, asked.feeds, asked.target_gradients)
    args |= {"reduction": asked.reduction, "profile": profile, **feeds.args}
    members: dict[str, Any] = {"loss": None, "fetched": {}, "recorded": {}}
    if form == NDJSON:
        args["stream"] = True
    write = Write("session.step", args, feeds.tensors, asked.seq, "steps", body)
    if form == NDJSON:
        return _streamed(request, session, write, feeds, asked.deadline_s, members)
    every = {**members, "gradients": {}}
    return await _written(request, session, write, feeds, asked.deadline_s, form == SAFETENSORS, every)


@router.post(
    "/{session_id}/updates",
    summary="Apply gradients",
    responses=answers(
        UpdateAnswer,
        {"seq": 1, "next_seq": 2, **AT, **RATE, "densified": [], "compiled": False, "timing_ms": TIMING},
        "sequence-conflict",
        "sequence-gap",
        *IN_SESSION,
    ),
    openapi_extra=accepts(
        schemas.UpdateRequest,
        regression=("Gradients of both parameters", {"gradients": GRADIENTS}),
    )
    | IF_MATCH,
)
async def apply_gradients(request: Request, session_id: SessionId) -> Response:
    """Update the parameters with gradients that the client computed, or added up over several workers.

    Without gradients the update applies those that calls of `POST .../gradients` with `accumulate` have added up.
    """
    as_file, body, session = await received(request, sessions(request), session_id)
    asked = body.read_as(schemas.UpdateRequest)
    given = await read_gradients(body, settings(request), asked.gradients)
    args: dict[str, Any] = {"require_finite": asked.require_finite, "tables": given.tables, **given.args}
    args |= {"learning_rate": asked.learning_rate, "reduction": asked.reduction}
    write = Write("session.update", args, given.tensors, asked.seq, "updates", body)
    return await _written(request, session, write, given, asked.deadline_s, as_file, {})


@router.post(
    "/{session_id}/gradients",
    summary="Compute gradients at the current parameters",
    responses=answers(
        SessionGradientsAnswer,
        GRADIENTS_ANSWER,
        *IN_SESSION,
        stream=lines(GRADIENTS_ANSWER, b=12, w=13),
    ),
    openapi_extra=accepts(
        schemas.SessionGradientsRequest,
        regression=("A batch", {"feeds": REGRESSION_FEEDS}),
        accumulate=("Add the gradients up in the session", {"feeds": REGRESSION_FEEDS, "accumulate": True}),
    )
    | IF_MATCH,
)
async def compute_session_gradients(request: Request, session_id: SessionId, profile: Profiled = False) -> Response:
    """Forward and backward pass; parameters, states and optimizer state do not change.

    With `accumulate` the gradients are added up in the session and not returned unless the request names them; the
    call is numbered as a step is, and writes the states. Steps and updates with gradients leave the sum as it is.

    With `Accept: application/x-ndjson` the answer is a stream, as of `POST /v1/gradients`. Closing the connection does
    not cancel the call.
    """
    form, body, session = await received_for(request, sessions(request), session_id, NDJSON)
    asked = body.read_as(schemas.SessionGradientsRequest)
    returned = asked.return_gradients
    if returned is None:
        returned = "none" if asked.accumulate else "all"
    feeds = await _feeds(request, body, session, asked.feeds, asked.target_gradients)
    args: dict[str, Any] = {"fetch": asked.fetch, "returned": returned, "profile": profile, **feeds.args}
    members: dict[str, Any] = {"loss": None, "fetched": {}, "recorded": {}}
    if asked.accumulate:
        if form == NDJSON:
            raise wrong_member("/accumulate", "gradients that are added up are not streamed")
        if asked.compile != "auto":
            raise wrong_member("/compile", "the session decides about the code of gradients that are added up")
        args |= {"stream": False, "accumulate": True, "batches": asked.batches}
        write = Write("session.gradients", args, feeds.tensors, asked.seq, "gradients", body)
        every = {**members, "gradients": {}}
        return await _written(request, session, write, feeds, asked.deadline_s, form == SAFETENSORS, every)
    if asked.seq is not None:
        raise wrong_member("/seq", "only a call with accumulate changes the session and has a number")
    if asked.batches is not None:
        raise wrong_member("/batches", "only a call with accumulate takes several batches")
    args |= {"stream": form == NDJSON, "compile": asked.compile}
    deadline, accepted = deadline_of(asked.deadline_s, settings(request)), if_match(request)

    async def call(on_part: PartCallback | None = None) -> Reply:
        with feeds.told():
            return await sessions(request).read(
                session, "session.gradients", args, feeds.tensors, deadline, on_part, accepts=accepted
            )

    if form == NDJSON:
        return GradientStream(call, shown, members)
    return await read_answer(await call(), form == SAFETENSORS, {**members, "gradients": {}})


@router.post(
    "/{session_id}/evaluations",
    summary="Run the forward pass",
    responses=answers(
        EvaluationAnswer,
        {"fetched": {"loss": LOSS}, **AT, **GIVEN},
        *IN_SESSION,
    ),
    openapi_extra=accepts(
        schemas.EvaluationRequest,
        regression=("Predictions", {"feeds": {"x": REGRESSION_FEEDS["x"]}, "fetch": ["prediction"]}),
    )
    | IF_MATCH,
)
async def evaluate_session(request: Request, session_id: SessionId, profile: Profiled = False) -> Response:
    """Forward pass at the current parameters. Feeds that the fetched values do not need may be left out."""
    as_file, body, session = await received(request, sessions(request), session_id, reads=True)
    asked = body.read_as(schemas.EvaluationRequest)
    feeds = await read_values(body, settings(request), {"/feeds": asked.feeds})
    deadline = deadline_of(asked.deadline_s, settings(request))
    fetch = asked.fetch or session.about["targets"] or [session.about["loss"]]
    options = {"for_test": asked.for_test, "compile": asked.compile, "profile": profile}
    args = {"fetch": fetch, **options, **feeds.args}
    with feeds.told():
        reply = await sessions(request).read(
            session, "session.evaluate", args, feeds.tensors, deadline, accepts=if_match(request)
        )
    return await read_answer(reply, as_file, {"fetched": {}})


@router.delete(
    "/{session_id}/gradients",
    summary="Discard the accumulated gradients",
    status_code=204,
    responses=empty_answer("No gradients are accumulated.", *IN_SESSION),
    openapi_extra=IF_MATCH,
)
async def discard_gradients(request: Request, session_id: SessionId) -> Response:
    """Forget the gradients that `POST .../gradients` with `accumulate` has added up. Safe to repeat."""
    session = await sessions(request).find(tenant(), session_id)
    deadline = settings(request).step_deadline
    await sessions(request).change(session, "session.discard", lambda session: {}, {}, if_match(request), deadline)
    return Response(status_code=204)


async def _feeds(
    request: Request, body: Body, session: Session, feeds: dict[str, Any], cotangents: list[Any]
) -> Values:
    """The feeds and the cotangents of targets in the request by name. Raises HttpProblem 422."""
    targets = session.about["targets"]
    if len(cotangents) > len(targets):
        raise wrong_member(
            "/target_gradients", f"{len(cotangents)} target gradients are given for {len(targets)} targets"
        )
    given = {str(i): value for i, value in enumerate(cotangents) if value is not None}
    members = {"/feeds": feeds, COTANGENTS: given}
    return await read_values(body, settings(request), members, {COTANGENTS: "target_gradients/"})


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
    write = replace(write, form={"as_file": as_file, "members": members}, accepts=if_match(request))
    with values.told():
        found, replayed = await _recorded(request, session, write, deadline)
    return sent(request, found, replayed)


async def _recorded(request: Request, session: Session, write: Write, deadline: float) -> tuple[Answer, bool]:
    """As `SessionRegistry.write`, with a point in the live curves of the session if the call is not a repeated one."""

    async def answer(reply: Reply) -> Answer:
        live(request).record(session.key, reply.result, reply.tensors, reply.timing_ms)
        return await written(reply, write.form or {})

    return await sessions(request).write(session, write, deadline, answer)


def _streamed(
    request: Request, session: Session, write: Write, values: Values, deadline_s: float | None, members: dict[str, Any]
) -> Response:
    """The answer of a step as a stream."""
    deadline = deadline_of(deadline_s, settings(request))
    form = {"as_file": False, "members": members, "stream": True}
    write = replace(write, form=form, accepts=if_match(request))

    async def call(on_part: PartCallback) -> tuple[Answer, bool]:
        with values.told():
            return await _recorded(request, session, replace(write, on_part=on_part), deadline)

    return StepStream(call)
