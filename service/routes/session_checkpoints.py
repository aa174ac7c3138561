"""Checkpoints of one session, and copies of it."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response

from service.caller import tenant
from service.checkpoints.checkpoints import PROGRAM, new_key
from service.engine import Reply
from service.http.request_body import JSON, Body, read_body
from service.ids import new_id
from service.problems import responses
from service.routes import checkpoints as of_all
from service.routes.checkpoints import PageSize, PageToken, end_of, etag_of, page_of
from service.routes.common import WithLabels, deadline_of, json_answer, lease_of
from service.routes.documented import HOT_PROBLEMS, accepts
from service.routes.in_session import SessionId
from service.routes.preconditions import IF_MATCH, if_match
from service.routes.sessions import VIEW, view
from service.routes.state import checkpoints, quotas, sessions, settings
from service.schemas import checkpoints as schemas
from service.schemas.session_answers import SessionView
from service.sessions.creation import Creation, Terms
from service.sessions.session import Session
from service.store.checkpoints import StoredCheckpoint

__all__ = ["router"]

router = APIRouter(prefix="/v1/sessions", tags=["checkpoints"])


async def save(request: Request, session: Session, key: str, deadline: float) -> Reply:
    """Write the session to the file `key`, in its turn. The reply has the optimizer of the saved session.

    Raises HttpProblem 412 if the client does not accept its ETag.
    """
    optimizer = session.about["optimizer"]
    text = await sessions(request).program_text(session)
    args = {"key": key, "about": {PROGRAM: text.decode()}}
    reply = await sessions(request).read(session, "session.save", args, {}, deadline, accepts=if_match(request))
    reply.result.setdefault("optimizer", optimizer)
    return reply


@router.post(
    "/{session_id}/checkpoints",
    summary="Save the session",
    status_code=201,
    response_model=schemas.CheckpointView,
    responses={
        201: {"description": "The checkpoint is stored.", "content": {JSON: {"example": of_all.VIEW}}},
        **responses("not-found", "gone", "precondition-failed", "quota-exceeded", "storage-full", *HOT_PROBLEMS),
    },
    openapi_extra=accepts(
        schemas.CreateCheckpoint,
        required=False,
        binary=False,
        week=("Keep it for a week", {"name": "after 1000 steps", "labels": {"run": "7"}, "ttl_s": 604800}),
    )
    | IF_MATCH,
)
async def create_checkpoint(request: Request, session_id: SessionId) -> Response:
    """Write all of the session to a file: parameters, states, optimizer state, accumulated gradients and settings.

    A session that is opened from it goes on with the same numbers. The call waits for earlier calls of the session.
    """
    session = await sessions(request).find(tenant(), session_id, reads=True)
    body = await read_body(request, settings(request), binary=False, optional=True)
    asked = body.read_as(schemas.CreateCheckpoint)
    key = new_key()
    async with quotas(request).room_for(tenant(), "checkpoint_bytes", session.about["bytes"]) as check:
        reply = await save(request, session, key, deadline_of(asked.deadline_s, settings(request)))
        said = reply.result
        shown = {"loss": session.about["loss"], "targets": session.about["targets"], "optimizer": said["optimizer"]}
        made = StoredCheckpoint(
            id=new_id("ckp_"),
            session=session.id,
            program_id=session.program_id,
            name=asked.name,
            step=said["step"],
            key=key,
            size=said["size"],
            sha256=said["sha256"],
            about={"labels": asked.labels, "resumable": True, **shown},
            created=time.time(),
            expires=end_of(asked.ttl_s),
        )
        made = await checkpoints(request).add(tenant(), made, check)
    return json_answer(of_all.view(made), 201, {"Location": f"/v1/checkpoints/{made.id}", "ETag": etag_of(made)})


@router.get(
    "/{session_id}/checkpoints",
    summary="List the checkpoints of a session",
    response_model=schemas.CheckpointPage,
    responses=responses("not-found", "gone", "invalid-request"),
)
async def list_session_checkpoints(
    request: Request,
    session_id: SessionId,
    label: WithLabels = None,
    page_size: PageSize = 50,
    page_token: PageToken = "",
) -> Response:
    """One page of the checkpoints of the session, the newest first. They outlive the session."""
    if not await checkpoints(request).page(tenant(), "", 1, session_id):
        await sessions(request).seen(tenant(), session_id, settings(request).step_deadline)
    return await page_of(request, page_size, page_token, session_id, label or ())


@router.post(
    "/{session_id}/fork",
    summary="Copy a session",
    status_code=201,
    response_model=SessionView,
    responses={
        201: {"description": "The new session.", "content": {JSON: {"example": VIEW}}},
        **responses("not-found", "gone", "precondition-failed", "quota-exceeded", "storage-full", *HOT_PROBLEMS),
    },
    openapi_extra=accepts(schemas.ForkSession, required=False, binary=False, plain=("A copy", {})) | IF_MATCH,
)
async def fork_session(request: Request, session_id: SessionId) -> Response:
    """Open a session that is equal to this one to the bit: both go on with the same numbers, each for itself.

    The sequence numbers go on, too: the next call of both has the same `seq`.
    """
    old = await sessions(request).find(tenant(), session_id, reads=True)
    body: Body = await read_body(request, settings(request), binary=False, optional=True)
    asked = body.read_as(schemas.ForkSession)
    lease = lease_of(asked.lease_s, old.lease_s, settings(request).max_session_lease)
    give_up = time.monotonic() + deadline_of(asked.deadline_s, settings(request))
    key = new_key()
    try:
        reply = await save(request, old, key, give_up - time.monotonic())
        text = await sessions(request).program_text(old)
        about: dict[str, Any] = {name: value for name, value in old.about.items() if name != "bytes"}
        made = await sessions(request).open(
            Creation("session.restore", {"key": key, "sha256": reply.result["sha256"]}, {}, (old.program_id, text)),
            Terms(lease, about | {"optimizer": reply.result["optimizer"]}, old.durability, old.checkpoint_every),
            tenant=tenant(),
            deadline=max(0.0, give_up - time.monotonic()),
        )
    finally:
        await checkpoints(request).delete_file(key)
    return json_answer(view(made), 201, {"Location": f"/v1/sessions/{made.id}", "ETag": made.etag})
