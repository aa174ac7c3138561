"""Sessions: open, list, read and close them. Their steps and parameters have modules of their own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.caller import tenant
from service.http.given_values import read_values
from service.http.request_body import JSON, Body, read_body
from service.problems import responses
from service.routes.common import cut_page, deadline_of, json_answer, lease_of, page_token_of
from service.routes.documented import HOT_PROBLEMS, accepts, empty_answer
from service.routes.in_session import SessionId
from service.routes.named_programs import named_program, reading_values
from service.routes.new_sessions import NewSession, from_checkpoint, optimizer_of, reading_checkpoint
from service.routes.preconditions import IF_MATCH, TAGGED, if_match, tagged
from service.routes.state import sessions, settings
from service.schemas import sessions as schemas
from service.schemas.examples import REGRESSION_ID, SAMPLE_CHECKPOINT, SAMPLE_SETTINGS
from service.schemas.session_answers import SessionPage, SessionView
from service.sessions.creation import Creation, Terms
from service.sessions.merge_patch import merged
from service.sessions.session import Session

__all__ = ["VIEW", "open_session", "router", "view"]

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

VIEW: dict[str, Any] = {
    "id": "ses_mfrggzdfmztwq2lknnwg23tpob",
    "state": "ready",
    "reason": None,
    "program_id": REGRESSION_ID,
    "loss": "loss",
    "targets": [],
    "optimizer": {"type": "adam", "learning_rate": 0.01},
    "worker": "wrk_mfrggzdfmztwq2lknnwg23tpob",
    "durability": "journal",
    "step": 0,
    "durable_step": 0,
    "next_seq": 1,
    "accumulated": 0,
    "weights_version": "e1.v0",
    "bytes": 12,
    "created": 1767225600.0,
    "lease_s": 604800.0,
    "lease_left_s": 604800.0,
}


@router.post(
    "",
    summary="Open a session",
    status_code=201,
    response_model=SessionView,
    responses={
        201: {"description": "The session is open.", "content": {JSON: {"example": VIEW}}},
        **responses(
            "not-found",
            "invalid-program",
            "no-gradient",
            "quota-exceeded",
            "checkpoint-damaged",
            "values-damaged",
            "storage-full",
            *HOT_PROBLEMS,
        ),
    },
    openapi_extra=accepts(
        schemas.CreateSession,
        regression=(
            "Linear regression with Adam",
            SAMPLE_SETTINGS,
        ),
        checkpoint=("Continue from a checkpoint", {"from_checkpoint": SAMPLE_CHECKPOINT}),
    ),
)
async def create_session(request: Request) -> Response:
    """Load a program with its parameters into a worker, where they stay until the session is closed.

    With `from_checkpoint` a session goes on as a saved one, to the bit; or, with other settings or another program,
    starts from its parameters. All tensors that do not fit are reported at once.
    """
    body = await read_body(request, settings(request))
    session = await open_session(request, body, body.read_as(schemas.CreateSession))
    return json_answer(view(session), 201, {"Location": f"/v1/sessions/{session.id}", "ETag": session.etag})


async def open_session(
    request: Request,
    body: Body,
    asked: schemas.CreateSession,
    id: str | None = None,
    job: str | None = None,
    left: Callable[[Session], Coroutine[Any, Any, None]] | None = None,
) -> Session:
    """A new session with the settings of `body`, which `asked` describes.

    id: by default a fresh one. job: id of the job that owns the session.
    left: called with the session if the caller is cancelled and does not get it.
    """
    given = await read_values(body, settings(request), {"/init/parameters": asked.init.parameters})
    async with reading_checkpoint(request, asked.from_checkpoint):
        if asked.from_checkpoint is not None:
            new = await from_checkpoint(request, asked, bool(given.names))
        else:
            program, stored = await named_program(request, asked.program, asked.program_id)
            new = NewSession(
                "session.create",
                {
                    **stored,
                    "query": asked.query(),
                    "optimizer": optimizer_of(asked.optimizer).document,
                    "shown": asked.optimizer,
                    "clip": asked.clipping(),
                    "loss_scale": asked.scaling(),
                    "seed": asked.init.seed,
                    "initializers": asked.init.initializers,
                },
                program,
                {"loss": asked.loss, "targets": asked.targets, "optimizer": asked.optimizer},
            )
        in_request = None if asked.program is None else new.program
        async with reading_values(request, asked.program_id, in_request, in_body=True):
            with given.told():
                return await sessions(request).open(
                    Creation(new.op, {**new.args, **given.args}, given.tensors, (new.program.id, new.program.text)),
                    Terms(
                        lease_of(asked.lease_s, settings(request).session_lease, settings(request).max_session_lease),
                        new.about,
                        "none" if id is not None else asked.durability,
                        asked.checkpoint_every,
                        job,
                    ),
                    tenant=tenant(),
                    deadline=deadline_of(asked.deadline_s, settings(request)),
                    id=id,
                    left=left,
                )


@router.get("", summary="List sessions", response_model=SessionPage, responses=responses("invalid-request"))
async def list_sessions(
    request: Request,
    page_size: Annotated[int, Query(ge=1, le=200, description="Largest number of sessions in the answer.")] = 50,
    page_token: Annotated[str, page_token_of(r"ses_[a-z2-7]{26}")] = "",
) -> Response:
    """One page of the open and lost sessions, the newest first."""
    found = await sessions(request).page(tenant(), page_token, page_size + 1)
    page, token = cut_page(found, page_size, page_token)
    return json_answer({"sessions": [view(session) for session in page], "next_page_token": token})


@router.get(
    "/{session_id}",
    summary="Read a session",
    response_model=SessionView,
    responses={
        200: {"description": "The session.", "content": {JSON: {"example": VIEW}}},
        **TAGGED,
        **responses("not-found", "gone", "invalid-request"),
    },
)
async def get_session(request: Request, session_id: SessionId) -> Response:
    """State of the session, its next `seq` and the version of its parameters. Does not renew the lease.

    The ETag covers parameters, states, optimizer, settings and accumulated gradients, but not `state`, `worker`,
    `durable_step` and `lease_left_s`. A lost session is never answered with 304.
    """
    session = await sessions(request).seen(tenant(), session_id, settings(request).step_deadline)
    if session.lost is not None:
        return json_answer(view(session), headers={"ETag": session.etag})
    return tagged(request, view(session), session.etag, "session")


@router.patch(
    "/{session_id}",
    summary="Change the optimizer",
    response_model=SessionView,
    responses={
        200: {"description": "The session after the change.", "content": {JSON: {"example": VIEW}}},
        **responses("not-found", "gone", "precondition-failed", *HOT_PROBLEMS),
    },
    openapi_extra=accepts(
        schemas.PatchSession,
        binary=False,
        rate=("Another learning rate", {"optimizer": {"learning_rate": 0.003}}),
    )
    | IF_MATCH,
)
async def update_session(request: Request, session_id: SessionId) -> Response:
    """Merge the members into the optimizer of the session (a merge patch of RFC 7396).

    The optimizer state stays. The ETag changes, as with every change of the session.
    """
    session = await sessions(request).find(tenant(), session_id)
    body = await read_body(request, settings(request), binary=False)
    asked = body.read_as(schemas.PatchSession)

    def args(session: Session) -> dict[str, Any]:
        whole = merged(session.about["optimizer"], asked.optimizer)
        return {"optimizer": optimizer_of(whole).document, "shown": whole}

    deadline = settings(request).step_deadline
    await sessions(request).change(session, "session.configure", args, {}, if_match(request), deadline)
    session = await sessions(request).seen(tenant(), session_id, deadline)
    return json_answer(view(session), headers={"ETag": session.etag})


@router.delete(
    "/{session_id}",
    summary="Close a session",
    status_code=204,
    responses=empty_answer(
        "The session is closed.", "not-found", "precondition-failed", "invalid-request", "no-capacity"
    ),
    openapi_extra=IF_MATCH,
)
async def delete_session(request: Request, session_id: SessionId) -> Response:
    """Close the session after its running call and release its memory.

    Safe to repeat: a closed session is known until the service restarts, which answers 404 after that.
    """
    await sessions(request).close(tenant(), session_id, accepts=if_match(request))
    return Response(status_code=204)


def view(session: Session) -> dict[str, Any]:
    """The session as clients see it."""
    return {
        "id": session.id,
        "state": session.state,
        "reason": session.lost,
        "program_id": session.program_id,
        **session.about,
        "worker": session.worker or None,
        "durability": session.durability,
        "step": session.step,
        "durable_step": session.durable_step,
        "next_seq": session.seq + 1,
        "accumulated": session.accumulated,
        "weights_version": session.weights_version,
        "created": session.created,
        "lease_s": session.lease_s,
        "lease_left_s": max(0.0, session.lease_left),
    }
