"""The initial values of a program: a safetensors file, whole or in ranges."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from service.http.file_answer import FILE_HEADERS, file_answer
from service.http.request_body import SAFETENSORS
from service.problems import HttpProblem, responses
from service.routes.documented import FILE
from service.routes.named_programs import FittedProgramId, program, reading_values
from service.routes.state import objects

__all__ = ["router"]

router = APIRouter(prefix="/v1/programs", tags=["programs"])
CONTENT = {SAFETENSORS: FILE}


@router.get(
    "/{program_id}/values",
    summary="Download the initial values",
    response_class=Response,
    responses={
        200: {"description": "The file. Repr-Digest has its SHA-256 (RFC 9530).", "content": CONTENT},
        206: {"description": "The part of the file that the header Range asks for.", "content": CONTENT},
        304: {"description": "The file is that of If-None-Match."},
        **responses("not-found", "invalid-request", "range-not-satisfiable", "values-damaged", "storage-unavailable"),
    },
    openapi_extra=FILE_HEADERS,
)
async def get_program_values(request: Request, program_id: FittedProgramId) -> Response:
    """The initial values of parameters and states by name. A program without some is answered with 404."""
    stored = await program(request, program_id)
    values = stored.values
    if values is None:
        raise HttpProblem("not-found", "the program has no initial values")
    open = partial(objects(request).open, values.key)
    async with reading_values(request, program_id):
        try:
            return await file_answer(request, open, values.size, values.sha256, f"{stored.id}.safetensors", SAFETENSORS)
        except FileNotFoundError as error:
            detail = "the file of the program's values is missing"
            raise HttpProblem("values-damaged", detail, reason="values-missing") from error
        except OSError as error:
            raise HttpProblem("storage-unavailable", "the file of the program's values cannot be read now") from error
