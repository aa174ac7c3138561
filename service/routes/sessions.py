"""Sessions: open, look at, train, read and write parameters, close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from core.errors import ProgramError
from core.optim import Optimizer
from service import tensors
from service.body import JSON, Body, read_body, wants_tensorfile
from service.engine import Reply
from service.exchange import Answer, given_tensors, render
from service.problems import FieldError, HttpProblem, responses
from service.routes.common import program, sessions, settings
from service.routes.documented import HOT_PROBLEMS, accepts, answers
from service.routes.gradients import deadline_of
from service.samples import REGRESSION_FEEDS, REGRESSION_ID, REGRESSION_PARAMETERS
from service.schemas import sessions as schemas
from service.sessions import Session, Write
from service.settings import Settings
from service.store.programs import program_id as id_of

__all__ = ["router"]

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

SessionId = Annotated[str, Path(pattern=r"^ses_[a-z2-7]{26}$", description="Id of a session.")]

IN_SESSION = ("not-found", "gone", "numeric-error", *HOT_PROBLEMS)
GRADIENTS = {
    "w": {"dtype": "float32", "shape": [2, 1], "data": [-7.533333, -9.866667]},
    "b": {"dtype": "float32", "shape": [1], "data": [-2.3333333]},
}
LOSS = {"dtype": "float32", "shape": [], "data": [1.61]}
TIMING = {"queue": 0.1, "transfer_in": 0.1, "compute": 0.9, "transfer_out": 0.1, "total": 1.5}
GIVEN = {"finite": True, "missing": {}, "compiled": False, "timing_ms": TIMING}
AT = {"step": 1, "weights_version": "e1.v1"}
VIEW = {
    "id": "ses_mfrggzdfmztwq2lknnwg23tpob",
    "state": "ready",
    "reason": None,
    "program_id": REGRESSION_ID,
    "loss": "loss",
    "optimizer": {"type": "adam", "learning_rate": 0.01},
    "worker": "wrk_mfrggzdfmztwq2lknnwg23tpob",
    "step": 0,
    "next_seq": 1,
    "weights_version": "e1.v0",
    "bytes": 12,
    "created": 1767225600.0,
    "lease_s": 900.0,
    "lease_left_s": 900.0,
}


@router.post(
    "",
    summary="Open a session",
    status_code=201,
    response_model=schemas.SessionView,
    responses={
        201: {"description": "It is open.", "content": {JSON: {"example": VIEW}}},
        **responses("not-found", "invalid-program", "no-gradient", "quota-exceeded", *HOT_PROBLEMS),
    },
    openapi_extra=accepts(
        schemas.CreateSession,
        regression=(
            "Linear regression with Adam",
            {
                "program_id": REGRESSION_ID,
                "loss": "loss",
                "optimizer": {"type": "adam", "learning_rate": 0.01},
                "init": {"seed": 0},
            },
        ),
    ),
)
async def create_session(request: Request) -> Response:
    """Put a program with its parameters into a worker, where they stay. Read its `id` in the answer."""
    body = await read_body(request, settings(request))
    asked = schemas.CreateSession.model_validate(body.document)
    optimizer = _optimizer(asked.optimizer)
    given = await given_tensors(body, settings(request), {"/init/parameters": asked.init.parameters})
    if asked.program is not None:
        id, document = id_of(asked.program), asked.program
    else:
        stored = await program(request, asked.program_id or "")
        id, document = stored.id, stored.document
    session = await sessions(request).open(
        id,
        document,
        {
            "query": asked.query(),
            "optimizer": {"type": optimizer.type, "attrs": dict(optimizer.attrs)},
            "clip_norm": asked.clip_norm,
            "seed": asked.init.seed,
            "initializers": asked.init.initializers,
        },
        given,
        lease_s=_lease(asked.lease_s, settings(request)),
        deadline=deadline_of(asked.deadline_s, settings(request)),
        about={"loss": asked.loss, "optimizer": asked.optimizer},
    )
    return _json(_view(session), 201, {"Location": f"/v1/sessions/{session.id}", "ETag": session.etag})


@router.get("", summary="List sessions", response_model=schemas.SessionPage, responses=responses("invalid-request"))
async def list_sessions(
    request: Request,
    page_size: Annotated[int, Query(ge=1, le=200, description="Sessions on a page.")] = 50,
    page_token: Annotated[str, Query(max_length=40, pattern=r"^(ses_[a-z2-7]{26})?$")] = "",
) -> Response:
    """Open and lost sessions, a page at a time, in the order of their ids."""
    found = sessions(request).page(page_token, page_size + 1)
    page = found[:page_size]
    token = page[-1].id if len(found) > page_size else None
    return _json({"sessions": [_view(session) for session in page], "next_page_token": token})


@router.get(
    "/{session_id}",
    summary="Look at a session",
    response_model=schemas.SessionView,
    responses={
        200: {"description": "The session.", "content": {JSON: {"example": VIEW}}},
        **responses("not-found", "gone", "invalid-request"),
    },
)
async def get_session(request: Request, session_id: SessionId) -> Response:
    """Its state, the next seq, and the version of its parameters. Looking does not renew the lease."""
    session = sessions(request).get(session_id)
    return _json(_view(session), headers={"ETag": session.etag})


@router.delete(
    "/{session_id}",
    summary="Close a session",
    status_code=204,
    responses={204: {"description": "It is closed."}, **responses("not-found", "invalid-request", "no-capacity")},
)
async def delete_session(request: Request, session_id: SessionId) -> Response:
    """Release its memory, after a step that runs has ended. Closing it again is fine."""
    await sessions(request).close(session_id)
    return Response(status_code=204)


@router.post(
    "/{session_id}/steps",
    summary="Train one step",
    responses=answers(
        schemas.StepAnswer,
        {"loss": LOSS, "fetched": {}, "gradients": {}, "seq": 1, "next_seq": 2, **AT, **GIVEN},
        "sequence-conflict",
        "sequence-gap",
        *IN_SESSION,
    ),
    openapi_extra=accepts(
        schemas.StepRequest,
        regression=("Any step, numbered by the service", {"feeds": REGRESSION_FEEDS, "return_gradients": "norms"}),
    ),
)
async def post_step(request: Request, session_id: SessionId) -> Response:
    """Forward, backward, update. With a `seq` it can be sent again safely: it is done once, and answered the same."""
    as_file, body, session = await _received(request, session_id)
    asked = schemas.StepRequest.model_validate(body.document)
    args = {"fetch": asked.fetch, "returned": asked.return_gradients, "require_finite": asked.require_finite}
    feeds = await given_tensors(body, settings(request), {"/feeds": asked.feeds})
    write = Write("session.step", args, feeds, asked.seq, f"steps {body.digest}")
    members: dict[str, Any] = {"loss": None, "fetched": {}, "gradients": {}}
    return await _written(request, session, write, asked.deadline_s, as_file, members)


@router.post(
    "/{session_id}/updates",
    summary="Apply gradients",
    responses=answers(
        schemas.UpdateAnswer,
        {"seq": 1, "next_seq": 2, **AT, "compiled": False, "timing_ms": TIMING},
        "sequence-conflict",
        "sequence-gap",
        *IN_SESSION,
    ),
    openapi_extra=accepts(schemas.UpdateRequest, regression=("Gradients of both parameters", {"gradients": GRADIENTS})),
)
async def post_update(request: Request, session_id: SessionId) -> Response:
    """Let the optimizer apply gradients that were computed elsewhere, or summed over several workers."""
    as_file, body, session = await _received(request, session_id)
    asked = schemas.UpdateRequest.model_validate(body.document)
    given = await given_tensors(body, settings(request), {"/gradients": asked.gradients})
    args = {"require_finite": asked.require_finite}
    write = Write("session.update", args, given, asked.seq, f"updates {body.digest}")
    return await _written(request, session, write, asked.deadline_s, as_file, {})


@router.post(
    "/{session_id}/gradients",
    summary="Gradients at the present parameters",
    responses=answers(
        schemas.SessionGradientsAnswer,
        {"loss": LOSS, "fetched": {}, "gradients": GRADIENTS, **AT, **GIVEN},
        *IN_SESSION,
    ),
    openapi_extra=accepts(schemas.SessionGradientsRequest, regression=("A batch", {"feeds": REGRESSION_FEEDS})),
)
async def post_session_gradients(request: Request, session_id: SessionId) -> Response:
    """Forward and backward; parameters, states and optimizer stay as they are."""
    as_file, body, session = await _received(request, session_id)
    asked = schemas.SessionGradientsRequest.model_validate(body.document)
    args = {"fetch": asked.fetch, "returned": asked.return_gradients}
    feeds = await given_tensors(body, settings(request), {"/feeds": asked.feeds})
    deadline = deadline_of(asked.deadline_s, settings(request))
    reply = await sessions(request).read(session, "session.gradients", args, feeds, deadline)
    return await _read(reply, as_file, {"loss": None, "fetched": {}, "gradients": {}})


@router.post(
    "/{session_id}/evaluations",
    summary="Evaluate",
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
async def post_evaluation(request: Request, session_id: SessionId) -> Response:
    """Forward only. Feeds that the fetched values do not depend on may be left out."""
    as_file, body, session = await _received(request, session_id)
    asked = schemas.EvaluationRequest.model_validate(body.document)
    feeds = await given_tensors(body, settings(request), {"/feeds": asked.feeds})
    deadline = deadline_of(asked.deadline_s, settings(request))
    args = {"fetch": asked.fetch or [session.about["loss"]]}
    reply = await sessions(request).read(session, "session.evaluate", args, feeds, deadline)
    return await _read(reply, as_file, {"fetched": {}})


@router.get(
    "/{session_id}/parameters",
    summary="Read the parameters",
    responses=answers(
        schemas.ParametersAnswer,
        {"parameters": REGRESSION_PARAMETERS, "states": {}, **AT, "timing_ms": TIMING},
        *IN_SESSION,
    )
    | {304: {"description": "They are still those of If-None-Match."}},
)
async def get_parameters(
    request: Request,
    session_id: SessionId,
    names: Annotated[list[str] | None, Query(max_length=1000, description="Only these.")] = None,
) -> Response:
    """Parameters and states, as JSON or as a safetensors file. The ETag is their version."""
    as_file = wants_tensorfile(request)
    session = sessions(request).get(session_id)
    deadline = settings(request).step_deadline
    if session.lost is None and session.unsure is None and _matches(request, "if-none-match", weak=True)(session.etag):
        return Response(status_code=304, headers={"ETag": session.etag})
    reply = await sessions(request).read(session, "session.get_parameters", {"names": names}, {}, deadline)
    states = reply.result.pop("states")
    headers = {"ETag": _etag(reply)}
    if as_file:
        answer = await render(reply, {**_said(reply.result), "states": states}, as_file=True, headers=headers)
        return answer.response()
    prefixed = {f"{'state' if name in states else 'parameter'}/{name}": a for name, a in reply.tensors.items()}
    members: dict[str, Any] = {"parameters": {}, "states": {}}
    reply = Reply(reply.result, prefixed, reply.timing_ms, reply.worker)
    return (await render(reply, _said(reply.result), as_file=False, headers=headers, members=members)).response()


@router.put(
    "/{session_id}/parameters",
    summary="Replace parameters",
    responses=answers(
        schemas.VersionAnswer,
        {**AT, "timing_ms": TIMING},
        "precondition-required",
        "precondition-failed",
        *IN_SESSION,
    ),
    openapi_extra=accepts(schemas.PutParameters, regression=("Both parameters", {"parameters": REGRESSION_PARAMETERS}))
    | {
        "parameters": [
            {
                "name": "If-Match",
                "in": "header",
                "required": True,
                "schema": {"type": "string"},
                "description": "ETag of the version that is replaced, or * for any.",
                "example": "*",
            }
        ]
    },
)
async def put_parameters(request: Request, session_id: SessionId) -> Response:
    """Replace parameters and states: all that are sent, or none. Optimizer state stays."""
    as_file, body, session = await _received(request, session_id)
    if "if-match" not in request.headers:
        raise HttpProblem("precondition-required", "PUT needs If-Match, with an ETag or *", **session.position)
    asked = schemas.PutParameters.model_validate(body.document)
    members = {"/parameters": asked.parameters, "/states": asked.states}
    given = await given_tensors(body, settings(request), members)
    deadline = settings(request).step_deadline
    reply = await sessions(request).replace(session, given, _matches(request, "if-match", weak=False), deadline)
    return await _read(reply, as_file, {})


async def _received(request: Request, session_id: str) -> tuple[bool, Body, Session]:
    """Whether a file is wanted back, the body, and the session; the cheapest refusals come first."""
    as_file = wants_tensorfile(request)
    session = sessions(request).get(session_id)
    return as_file, await read_body(request, settings(request)), session


async def _written(
    request: Request, session: Session, write: Write, deadline_s: float | None, as_file: bool, members: dict[str, Any]
) -> Response:
    deadline = deadline_of(deadline_s, settings(request))

    async def answer(reply: Reply) -> Answer:
        said = {**_said(reply.result), "seq": reply.result["seq"], "next_seq": reply.result["seq"] + 1}
        return await render(reply, said, as_file=as_file, headers={"ETag": _etag(reply)}, members=members)

    found, replayed = await sessions(request).write(session, write, deadline, answer)
    return found.response({"Idempotency-Replayed": "true"} if replayed else {})


async def _read(reply: Reply, as_file: bool, members: dict[str, Any]) -> Response:
    answer = await render(reply, _said(reply.result), as_file=as_file, headers={"ETag": _etag(reply)}, members=members)
    return answer.response()


def _said(result: dict[str, Any]) -> dict[str, Any]:
    """What a worker says, with its version in the form that clients see."""
    said = {name: value for name, value in result.items() if name not in ("version", "seq")}
    return {**said, "weights_version": _version(result)}


def _version(result: dict[str, Any]) -> str:
    return f"e1.v{result['version']}"


def _etag(reply: Reply) -> str:
    return f'"{_version(reply.result)}"'


def _matches(request: Request, header: str, *, weak: bool) -> Callable[[str], bool]:
    """Whether an ETag is among those of `header`; weak ones count only where RFC 9110 lets them."""
    tags = [tag.strip() for tag in request.headers.get(header, "").split(",")]
    if weak:
        tags = [tag.removeprefix("W/") for tag in tags]
    return lambda etag: "*" in tags or etag in tags


def _optimizer(given: dict[str, Any]) -> Optimizer:
    """Raises HttpProblem 422."""
    attrs = {name: value for name, value in given.items() if name != "type"}
    try:
        return Optimizer(str(given.get("type", "")), attrs)
    except ProgramError as error:
        place = FieldError("/optimizer", error.code, error.message, suggestion=error.suggestion)
        raise HttpProblem("invalid-request", error.message, errors=[place]) from None


def _lease(asked: float | None, settings: Settings) -> float:
    if asked is not None and asked > settings.max_session_lease:
        detail = f"the longest lease is {settings.max_session_lease:g} s"
        raise HttpProblem("limit-exceeded", detail, errors=[FieldError("/lease_s", "too_long", detail)])
    return settings.session_lease if asked is None else asked


def _view(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "state": session.state,
        "reason": session.lost,
        "program_id": session.program_id,
        **session.about,
        "worker": session.worker,
        "step": session.step,
        "next_seq": session.seq + 1,
        "weights_version": session.weights_version,
        "created": session.created,
        "lease_s": session.lease_s,
        "lease_left_s": max(0.0, session.lease_left),
    }


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(tensors.dumps(content), status, headers, JSON)
