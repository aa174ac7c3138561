"""The content of a checkpoint: a safetensors file, whole or in ranges."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.caller import tenant
from service.http.file_answer import FILE_HEADERS, file_answer
from service.http.request_body import SAFETENSORS
from service.problems import HttpProblem, responses
from service.routes.checkpoints import CheckpointId
from service.routes.documented import FILE
from service.routes.state import checkpoints

__all__ = ["router"]

router = APIRouter(prefix="/v1/checkpoints", tags=["checkpoints"])

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
    openapi_extra=FILE_HEADERS,
)  # fmt: skip
async def download_checkpoint(request: Request, checkpoint_id: CheckpointId) -> Response:
    """The tensors have the names of the parameters and states, so that other tools can read the file.

    Optimizer state is named `<parameter>/<slot>`. The metadata has the program and the rest of the session's state.
    """
    found = await checkpoints(request).get(tenant(), checkpoint_id)
    try:
        return await file_answer(
            request,
            lambda: checkpoints(request).open(found),
            found.size,
            found.sha256,
            f"{found.id}.safetensors",
            SAFETENSORS,
        )
    except HttpProblem as problem:
        if problem.code == "checkpoint-damaged":
            await checkpoints(request).get(tenant(), found.id)  # a 404 if it was deleted meanwhile
        raise
