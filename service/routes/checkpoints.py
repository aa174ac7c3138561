"""Checkpoints: list, read, change, delete, download and upload them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as PathParameter

from service.caller import tenant
from service.checkpoints.checkpoints import new_key
from service.checkpoints.upload import checked_header, digest_in, store
from service.http.entity_tags import check_if_match, of_view
from service.http.given_values import read_values
from service.http.request_body import JSON, body_chunks, media_type, read_body
from service.ids import new_id
from service.objects import Written
from service.objects.tensor_file import chunks
from service.problems import HttpProblem, responses
from service.routes.common import WithLabels, cut_page, json_answer, page_token_of
from service.routes.documented import accepts, empty_answer
from service.routes.preconditions import IF_MATCH, TAGGED, if_match, tagged
from service.routes.state import calls, checkpoints, objects, quotas, settings
from service.schemas import checkpoints as schemas
from service.schemas.examples import REGRESSION_ID, REGRESSION_PARAMETERS, SAMPLE_CHECKPOINT
from service.schemas.members import LINE
from service.sessions.merge_patch import merged
from service.store.checkpoints import StoredCheckpoint
from service.store.directory import refusal

__all__ = ["VIEW", "CheckpointId", "PageSize", "PageToken", "end_of", "etag_of", "page_of", "router", "view"]

router = APIRouter(prefix="/v1/checkpoints", tags=["checkpoints"])

ID = r"ckp_[a-z2-7]{26}"
CheckpointId = Annotated[
    str,
    PathParameter(
        pattern=f"^{ID}$",
        description="Id of a checkpoint.",
        openapi_examples={"sample": {"summary": "The sample checkpoint", "value": SAMPLE_CHECKPOINT}},
    ),
]
PageSize = Annotated[int, Query(ge=1, le=200, description="Largest number of checkpoints in the answer.")]
PageToken = Annotated[str, page_token_of(ID)]
VIEW: dict[str, Any] = {
    "id": "ckp_mfrggzdfmztwq2lknnwg23tpob",
    "name": "after 1000 steps",
    "labels": {"run": "7"},
    "session": "ses_mfrggzdfmztwq2lknnwg23tpob",
    "program_id": REGRESSION_ID,
    "resumable": True,
    "step": 1000,
    "loss": "loss",
    "targets": [],
    "optimizer": {"type": "adam", "learning_rate": 0.01},
    "size": 3160,
    "sha256": "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
    "created": 1767225600.0,
    "expires_at": 1767830400.0,
    "expires": 1767830400.0,
}
KEPT = {**VIEW, "session": None, "expires_at": None, "expires": None}
UPLOADED = {**KEPT, "program_id": None, "loss": None, "optimizer": None, "resumable": False, "step": 0, "labels": {}}
STORED = ("storage-full", "storage-unavailable")
MOST_LABELS = 64
NAMED_IN_QUERY = "Of a safetensors body; JSON has it in the body. "


@router.get(
    "", summary="List checkpoints", response_model=schemas.CheckpointPage, responses=responses("invalid-request")
)
async def list_checkpoints(
    request: Request, label: WithLabels = None, page_size: PageSize = 50, page_token: PageToken = ""
) -> Response:
    """One page of the checkpoints, the newest first."""
    return await page_of(request, page_size, page_token, None, label or ())


async def page_of(request: Request, size: int, token: str, session: str | None, labels: Sequence[str] = ()) -> Response:
    """One page of the checkpoints of a session, or of all. labels: that they have."""
    found = await checkpoints(request).page(tenant(), token, size + 1, session, labels)
    page, following = cut_page(found, size, token)
    return json_answer({"checkpoints": [view(each) for each in page], "next_page_token": following})


@router.post(
    "",
    summary="Upload a checkpoint",
    status_code=201,
    response_model=schemas.CheckpointView,
    responses={
        201: {"description": "The checkpoint is stored.", "content": {JSON: {"example": UPLOADED}}},
        **responses(
            "invalid-json", "invalid-tensor-file", "body-timeout", "body-too-large", "unsupported-media-type",
            "unsupported-encoding", "invalid-request", "invalid-program", "limit-exceeded", "shape-mismatch",
            "dtype-mismatch", "quota-exceeded", "no-capacity", "deadline-exceeded", *STORED,
        ),
    },
    openapi_extra=accepts(
        schemas.UploadCheckpoint, parameters=("Parameters", {"name": "initial", "tensors": REGRESSION_PARAMETERS})
    )
    | {
        "parameters": [
            {
                "name": "Repr-Digest",
                "in": "header",
                "schema": {"type": "string"},
                "description": "`sha-256=:<base64>:` of the file (RFC 9530); another file is refused.",
            }
        ]
    },
)  # fmt: skip
async def upload_checkpoint(
    request: Request,
    name: Annotated[
        str | None, Query(max_length=128, pattern=LINE, description=NAMED_IN_QUERY + "Name for people.")
    ] = None,
    ttl_s: Annotated[
        float | None,
        Query(
            gt=0,
            le=schemas.LONGEST_S,
            allow_inf_nan=False,
            description=NAMED_IN_QUERY + "Seconds after which the checkpoint is deleted; by default never.",
        ),
    ] = None,
) -> Response:
    """Store a file that `GET /v1/checkpoints/{id}/content` answered, here or elsewhere, or a file of parameters.

    The program, the settings and all tensors of a session's file are checked. A file appears whole or not at all.
    """
    made = StoredCheckpoint(
        new_id("ckp_"), None, "", name or "", 0, new_key(), 0, "", {"labels": {}}, time.time(), None
    )
    size = request.scope.get("declared_bytes") or 0
    async with quotas(request).room_for(tenant(), "checkpoint_bytes", size) as check:
        if media_type(request, binary=True) == JSON:
            asked, written = await _written(request, made.key)
            about = {"labels": asked.labels}
            made = replace(made, name=asked.name, about=about, expires=end_of(asked.ttl_s))
        else:
            made, written = await _received(request, made)
            made = replace(made, expires=end_of(ttl_s))
        made = replace(made, size=written.size, sha256=written.sha256)
        made = await checkpoints(request).add(tenant(), made, check)
    return json_answer(view(made), 201, {"Location": f"/v1/checkpoints/{made.id}", "ETag": etag_of(made)})


async def _written(request: Request, key: str) -> tuple[schemas.UploadCheckpoint, Written]:
    """The members of a JSON body, and the file with its tensors."""
    body = await read_body(request, settings(request))
    asked = body.read_as(schemas.UploadCheckpoint)
    given = await read_values(body, settings(request), {"/tensors": asked.tensors})
    with given.told():
        pass
    return asked, await _stored(request, asyncio.to_thread(objects(request).write, key, chunks(given.tensors, {})))


async def _received(request: Request, made: StoredCheckpoint) -> tuple[StoredCheckpoint, Written]:
    """The checkpoint with the members in the header of the body, and its file."""
    digest = digest_in(request.headers)
    received = body_chunks(request, settings(request).binary_body_bytes, settings(request))
    header = await checked_header(received, settings(request), calls(request))
    state = header.state
    if state is not None:
        shown = state.shown or {"type": state.optimizer.type, **state.optimizer.attrs}
        settled = {"loss": state.query.get("loss"), "targets": state.query.get("targets", []), "optimizer": shown}
        about = {"labels": {}, "resumable": True, **settled}
        made = replace(made, program_id=state.program_id, step=state.step, about=about)
    return made, await _stored(request, store(objects(request), made.key, header, received, digest))


async def _stored(request: Request, writing: Awaitable[Written]) -> Written:
    try:
        return await writing
    except OSError as error:
        raise refusal(error, Path(objects(request).url)) from error


@router.get(
    "/{checkpoint_id}",
    summary="Read a checkpoint",
    response_model=schemas.CheckpointView,
    responses={
        200: {"description": "The checkpoint.", "content": {JSON: {"example": VIEW}}},
        **TAGGED,
        **responses("not-found", "invalid-request"),
    },
)
async def get_checkpoint(request: Request, checkpoint_id: CheckpointId) -> Response:
    """The origin, size and digest of the checkpoint, and its labels."""
    found = await checkpoints(request).get(tenant(), checkpoint_id)
    return tagged(request, view(found), etag_of(found), "checkpoint")


@router.patch(
    "/{checkpoint_id}",
    summary="Change name, labels or end",
    response_model=schemas.CheckpointView,
    responses={
        200: {"description": "The checkpoint after the change.", "content": {JSON: {"example": KEPT}}},
        **responses(
            "invalid-json", "not-found", "precondition-failed", "body-timeout", "body-too-large",
            "unsupported-media-type", "unsupported-encoding", "invalid-request", *STORED,
        ),
    },
    openapi_extra=accepts(schemas.PatchCheckpoint, binary=False, labels=("A label", {"labels": {"run": "7"}}))
    | IF_MATCH,
)  # fmt: skip
async def update_checkpoint(request: Request, checkpoint_id: CheckpointId) -> Response:
    """Merge the members into the checkpoint (a merge patch of RFC 7396). Its content never changes."""
    body = await read_body(request, settings(request), binary=False)
    asked = body.read_as(schemas.PatchCheckpoint)
    accepted = _accepted(request)

    def changed(found: StoredCheckpoint) -> StoredCheckpoint:
        accepted(found)
        given = asked.model_fields_set
        if "labels" in given:
            labels = merged(found.about["labels"], asked.labels) or {}
            if len(labels) > MOST_LABELS:
                raise HttpProblem("limit-exceeded", f"a checkpoint has at most {MOST_LABELS} labels")
            found = replace(found, about={**found.about, "labels": labels})
        if "name" in given:
            found = replace(found, name=asked.name or "")
        for name in given & {"expires", "expires_at"}:
            found = replace(found, expires=getattr(asked, name))
        return found

    new = await checkpoints(request).change(tenant(), checkpoint_id, changed)
    return json_answer(view(new), headers={"ETag": etag_of(new)})


@router.delete(
    "/{checkpoint_id}",
    summary="Delete a checkpoint",
    status_code=204,
    responses=empty_answer(
        "The checkpoint is deleted.", "not-found", "precondition-failed", "invalid-request", "storage-unavailable"
    ),
    openapi_extra=IF_MATCH,
)
async def delete_checkpoint(request: Request, checkpoint_id: CheckpointId) -> Response:
    """Delete the checkpoint and its file. Sessions that were opened from it go on."""
    if not await checkpoints(request).remove(tenant(), checkpoint_id, _accepted(request)):
        raise HttpProblem("not-found", "there is no checkpoint with this id")
    return Response(status_code=204)


def _accepted(request: Request) -> Callable[[StoredCheckpoint], None]:
    """A check of a checkpoint that a request is about to change. It raises HttpProblem 412."""
    accepts = if_match(request)
    return lambda found: check_if_match(accepts, etag_of(found), "checkpoint")


def end_of(ttl_s: float | None) -> float | None:
    """The time at which a checkpoint with this time to live is deleted."""
    return None if ttl_s is None else time.time() + ttl_s


def etag_of(checkpoint: StoredCheckpoint) -> str:
    """The ETag of the description of a checkpoint; its content has another."""
    return of_view(view(checkpoint))


def view(checkpoint: StoredCheckpoint) -> dict[str, Any]:
    """The checkpoint as clients see it."""
    about = checkpoint.about
    return {
        "id": checkpoint.id,
        "name": checkpoint.name,
        "labels": about["labels"],
        "session": checkpoint.session,
        "program_id": checkpoint.program_id or None,
        "resumable": about.get("resumable", False),
        "step": checkpoint.step,
        "loss": about.get("loss"),
        "targets": about.get("targets", []),
        "optimizer": about.get("optimizer"),
        "size": checkpoint.size,
        "sha256": checkpoint.sha256,
        "created": checkpoint.created,
        "expires_at": checkpoint.expires,
        "expires": checkpoint.expires,
    }
