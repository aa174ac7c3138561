"""Tapes: open, list, read and close them. Their ops and values have a module of their own."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.caller import tenant
from service.http.request_body import JSON, read_body
from service.problems import responses
from service.routes.common import cut_page, deadline_of, json_answer, lease_of, page_token_of
from service.routes.documented import accepts, empty_answer
from service.routes.on_tape import TapeId
from service.routes.preconditions import IF_MATCH, TAGGED, if_match, tagged
from service.routes.state import settings, tapes
from service.schemas import tapes as schemas
from service.sessions.creation import Creation, Terms
from service.sessions.session import Session
from service.sessions.tape import OpenTape

__all__ = ["open_tape", "router"]

router = APIRouter(prefix="/v1/tapes", tags=["tapes"])

VIEW = {
    "id": "tap_mfrggzdfmztwq2lknnwg23tpob",
    "state": "ready",
    "reason": None,
    "mode": "immediate",
    "seed": 0,
    "worker": "wrk_mfrggzdfmztwq2lknnwg23tpob",
    "ops": 0,
    "bytes": 0,
    "renewals": 0,
    "next_seq": 1,
    "created": 1767225600.0,
    "lease_s": 900.0,
    "lease_left_s": 900.0,
}
OPENING = (
    "invalid-json",
    "body-timeout",
    "body-too-large",
    "unsupported-media-type",
    "unsupported-encoding",
    "invalid-request",
    "limit-exceeded",
    "queue-full",
    "quota-exceeded",
    "no-capacity",
    "worker-lost",
    "deadline-exceeded",
)


@router.post(
    "",
    summary="Open a tape",
    status_code=201,
    response_model=schemas.TapeView,
    responses={201: {"description": "The tape is open.", "content": {JSON: {"example": VIEW}}}, **responses(*OPENING)},
    openapi_extra=accepts(
        schemas.CreateTape,
        binary=False,
        immediate=("Values when ops are appended", {"mode": "immediate"}),
        lazy=("Values when they are read", {"mode": "lazy", "seed": 7}),
    ),
)
async def create_tape(request: Request) -> Response:
    """Create an empty tape in a worker, where it stays until it is closed."""
    body = await read_body(request, settings(request), binary=False)
    tape = await open_tape(request, body.read_as(schemas.CreateTape))
    return json_answer(_view(tape), 201, {"Location": f"/v1/tapes/{tape.id}", "ETag": tape.etag})


async def open_tape(request: Request, asked: schemas.CreateTape, id: str | None = None) -> Session:
    """A new tape. id: by default a fresh one."""
    about = {"mode": asked.mode, "seed": asked.seed}
    lease = lease_of(asked.lease_s, settings(request).tape_lease, settings(request).max_tape_lease)
    deadline = deadline_of(asked.deadline_s, settings(request))
    creation = Creation("tape.create", about, {}, None)
    return await tapes(request).open(creation, Terms(lease, about), tenant=tenant(), deadline=deadline, id=id)


@router.get("", summary="List tapes", response_model=schemas.TapePage, responses=responses("invalid-request"))
async def list_tapes(
    request: Request,
    page_size: Annotated[int, Query(ge=1, le=200, description="Largest number of tapes in the answer.")] = 50,
    page_token: Annotated[str, page_token_of(r"tap_[a-z2-7]{26}")] = "",
) -> Response:
    """One page of the open and lost tapes, the newest first."""
    found = await tapes(request).page(tenant(), page_token, page_size + 1)
    page, token = cut_page(found, page_size, page_token)
    return json_answer({"tapes": [_view(tape) for tape in page], "next_page_token": token})


@router.get(
    "/{tape_id}",
    summary="Read a tape",
    response_model=schemas.TapeView,
    responses={
        200: {"description": "The tape.", "content": {JSON: {"example": VIEW}}},
        **TAGGED,
        **responses("not-found", "gone", "invalid-request"),
    },
)
async def get_tape(request: Request, tape_id: TapeId) -> Response:
    """State and size of the tape, and its next `seq`. Does not renew the lease.

    The ETag covers ops and values of leaves, but not `state`, `lease_left_s`, and `bytes`, which grow when values are
    read. A lost tape is never answered with 304.
    """
    tape = await tapes(request).find(tenant(), tape_id)
    if tape.lost is not None:
        return json_answer(_view(tape), headers={"ETag": tape.etag})
    return tagged(request, _view(tape), tape.etag, "tape")


@router.delete(
    "/{tape_id}",
    summary="Close a tape",
    status_code=204,
    responses=empty_answer("The tape is closed.", "not-found", "precondition-failed", "invalid-request", "no-capacity"),
    openapi_extra=IF_MATCH,
)
async def delete_tape(request: Request, tape_id: TapeId) -> Response:
    """Close the tape after its running call and release its memory. Safe to repeat."""
    await tapes(request).close(tenant(), tape_id, accepts=if_match(request))
    return Response(status_code=204)


def _view(tape: Any) -> dict[str, Any]:
    assert isinstance(tape, OpenTape)
    return {
        "id": tape.id,
        "state": tape.state,
        "reason": tape.lost,
        **{name: tape.about[name] for name in ("mode", "seed")},
        "worker": tape.worker,
        "ops": tape.ops,
        "bytes": tape.bytes,
        "renewals": tape.step,
        "next_seq": tape.seq + 1,
        "created": tape.created,
        "lease_s": tape.lease_s,
        "lease_left_s": max(0.0, tape.lease_left),
    }
