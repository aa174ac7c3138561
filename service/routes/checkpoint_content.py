"""The content of a checkpoint: a safetensors file, whole or in ranges."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from service.caller import tenant
from service.checkpoints.content import FileResponse, content_headers, range_of
from service.http.entity_tags import has_current
from service.http.request_body import SAFETENSORS
from service.problems import HttpProblem, responses
from service.routes.checkpoints import CheckpointId
from service.routes.common import checkpoints
from service.routes.documented import FILE
from service.routes.preconditions import if_match

__all__ = ["router"]

router = APIRouter(prefix="/v1/checkpoints", tags=["checkpoints"])

DESCRIBED = {
    "Range": "`bytes=0-1023`: a part of the file. A download that broke off goes on with the rest.",
    "If-Range": "ETag of the file that Range belongs to. If it is no longer the ETag, the whole file is sent.",
    "If-None-Match": "ETag of a file that the client has.",
}
CONTENT = {SAFETENSORS: FILE}


@router.get(
    "/{checkpoint_id}/content",
    summary="Download a checkpoint",
    response_class=Response,
    responses={
        200: {"description": "The file. Repr-Digest has its SHA-256 (RFC 9530).", "content": CONTENT},
        206: {"description": "The requested range of the file.", "content": CONTENT},
        304: {"description": "The file is that of If-None-Match."},
        **responses(
            "not-found", "precondition-failed", "range-not-satisfiable", "checkpoint-damaged", "invalid-request",
            "storage-unavailable",
        ),
    },
    openapi_extra={
        "parameters": [
            {"name": name, "in": "header", "schema": {"type": "string"}, "description": words}
            for name, words in DESCRIBED.items()
        ]
    },
)  # fmt: skip
async def download_checkpoint(request: Request, checkpoint_id: CheckpointId) -> Response:
    """The tensors have the names of the parameters and states, so that other tools can read the file.

    Optimizer state is named `<parameter>/<slot>`. The metadata has the program and the rest of the session's state.
    """
    found = await checkpoints(request).get(tenant(), checkpoint_id)
    headers = content_headers(found.sha256)
    etag = headers["ETag"]
    if not if_match(request)(etag):
        raise HttpProblem("precondition-failed", "the file is not the one of If-Match")
    if has_current(request.headers, etag):
        return Response(status_code=304, headers=headers)
    part = range_of(request.headers, found.size, etag)
    begin, end = part or (0, found.size)
    headers |= {"Content-Type": SAFETENSORS, "Content-Disposition": f'attachment; filename="{found.id}.safetensors"'}
    if part is not None:
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{found.size}"
    try:
        file = await asyncio.to_thread(checkpoints(request).open, found)
    except HttpProblem:
        await checkpoints(request).get(tenant(), found.id)  # a 404 if it was deleted meanwhile
        raise
    return FileResponse(file, begin, end, 200 if part is None else 206, headers)
