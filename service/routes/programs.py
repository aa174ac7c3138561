"""Programs: register, list, read and delete them, and compute their backward pass."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from core.backward.query import GradientQuery, Unconnected
from service import __version__
from service.caller import tenant
from service.formats.packed import as_text
from service.http.pieces import Part, PiecedResponse
from service.http.request_body import JSON, decoded, read_body
from service.http.tensor_payloads import joined
from service.problems import HttpProblem, responses
from service.routes.common import LOSS, ProgramId, UnusedProgramId, calls, program, programs, sessions, settings
from service.routes.documented import accepts
from service.schemas.backward import BackwardProgram
from service.schemas.derived import text_of
from service.schemas.examples import REGRESSION, REGRESSION_ID, WHILE, WHILE_ID
from service.schemas.gradients import CheckpointBytes, LoopBytes, LoopMemory, ProgramDocument, Question, Trips, budgeted
from service.schemas.programs import Registration, Strict
from service.store.program_text import ProgramText
from service.store.programs import StoredProgram, TooManyPrograms

__all__ = ["router"]

router = APIRouter(prefix="/v1/programs", tags=["programs"])

BODY_PROBLEMS = (
    "invalid-json",
    "limit-exceeded",
    "body-too-large",
    "body-timeout",
    "unsupported-media-type",
    "invalid-request",
)
STORAGE_PROBLEMS = ("storage-full", "storage-unavailable")
WORKER_PROBLEMS = ("no-capacity", "worker-lost", "queue-full", "deadline-exceeded", "storage-unavailable")
CLIPPED = {"loss": "loss", "hooks": [{"match": {"role": "parameter"}, "do": "clip_value", "min": -1.0, "max": 1.0}]}


class Signature(Strict):
    """Inputs of a program with their types, and its size."""

    feeds: list[dict[str, Any]] = Field(description="Feeds: name, dtype, shape, trainable.")
    parameters: list[dict[str, Any]] = Field(description="Parameters, in the same form.")
    states: list[dict[str, Any]] = Field(description="States, in the same form.")
    ops: int = Field(0, description="Number of ops in all blocks.")
    blocks: int = Field(0, description="Number of blocks, block 0 included.")
    op_types: dict[str, int] = Field(description="Op type -> number of ops of this type.")


class ProgramSummary(Strict):
    """A registered program."""

    id: str = Field(examples=[REGRESSION_ID])
    created: float = Field(description="Seconds since 1970.")
    signature: Signature


class ProgramDetail(ProgramSummary):
    """A registered program with its document."""

    program: ProgramDocument = Field(description="The document as it was sent.")


class CloneRequest(Strict):
    """Options of a clone."""

    for_test: bool = Field(
        True, description="Set every op to its behaviour in evaluation, such as dropout and batch normalisation."
    )


class ProgramPage(Strict):
    """One page of programs."""

    programs: list[ProgramSummary]
    next_page_token: str | None = Field(None, description="`page_token` of the next page; null on the last one.")


class ValidProgram(Strict):
    """The answer to `validate_only`."""

    id: str = Field(description="Id that the program would get.")
    signature: Signature
    valid: Literal[True] = True


def _summary(stored: StoredProgram) -> dict[str, Any]:
    """The members of a summary; its signature is JSON text."""
    return {"id": stored.id, "created": stored.created, "signature": memoryview(stored.signature)}


async def asked_of(request: Request, op: str, program: ProgramText, args: dict[str, Any]) -> np.ndarray:
    """The result of `op` on a program in any worker, as JSON text."""
    deadline = settings(request).step_deadline
    args = {**args, "as_json": True}
    reply = await calls(request).with_program(op, program.id, program.text, args, deadline=deadline)
    return reply.tensors["json"]


async def _signature_of(request: Request, program: ProgramText) -> bytes:
    args = {"document": program.text, "as_json": True}
    reply = await calls(request).call("inspect", args, deadline=settings(request).step_deadline)
    return reply.tensors["json"].tobytes()


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`content` as JSON; a memoryview in it is JSON text already."""
    return pieced(joined(content), status, headers)


def pieced(parts: Sequence[Part], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return PiecedResponse(parts, status, headers, JSON)


@router.post(
    "",
    summary="Register a program",
    status_code=201,
    response_model=ProgramSummary,
    responses={
        200: {
            "model": ProgramSummary | ValidProgram,
            "description": "The program was registered before, or `validate_only` was set.",
        },
        **responses("invalid-program", "quota-exceeded", *STORAGE_PROBLEMS, *BODY_PROBLEMS, *WORKER_PROBLEMS),
    },
    openapi_extra=accepts(
        Registration,
        binary=False,
        regression=("Linear regression", {"program": REGRESSION}),
        loop=("A loop whose trip count is a feed", {"program": WHILE}),
    ),
)
async def create_program(
    request: Request,
    validate_only: Annotated[bool, Query(description="Check the program without registering it.")] = False,
) -> Response:
    """Check a program and store it under an id derived from its content.

    All problems of the program are reported at once, each with a stable code and a JSON pointer. Registering the same
    program again answers 200 with the same id.
    """
    body = await read_body(request, settings(request), binary=False)
    program = as_text(only_program(body.document))
    signature = await _signature_of(request, program)
    if validate_only:
        return _json({"id": program.id, "signature": memoryview(signature), "valid": True})
    return await _registered(request, program, signature)


async def _registered(request: Request, program: ProgramText, signature: bytes) -> Response:
    """Store a program that was checked. Raises HttpProblem 429."""
    try:
        stored, created = await programs(request).put(tenant(), program, signature)
    except TooManyPrograms:
        raise HttpProblem("quota-exceeded", "the limit of registered programs is reached; delete some") from None
    headers = {"Location": f"/v1/programs/{stored.id}", "ETag": f'"{stored.id}"'}
    return _json(_summary(stored), 201 if created else 200, headers)


def only_program(document: dict[str, Any]) -> dict[str, Any]:
    """The member `program`, the only one allowed. Raises HttpProblem 422."""
    from service.problems import FieldError

    errors = [FieldError(f"/{n[:64]}", "unknown-member", "unknown member") for n in document if n != "program"]
    if not isinstance(document.get("program"), dict):
        errors.append(FieldError("/program", "missing", "program must be an object"))
    if errors:
        raise HttpProblem("invalid-request", errors[0].detail, errors=errors)
    return document["program"]


@router.get(
    "",
    summary="List programs",
    response_model=ProgramPage,
    responses=responses("invalid-request", "storage-unavailable"),
)
async def list_programs(
    request: Request,
    page_size: Annotated[int, Query(ge=1, le=200, description="Largest number of programs in the answer.")] = 50,
    page_token: Annotated[
        str,
        Query(max_length=40, pattern=r"^(prg_[a-z2-7]{26})?$", description="`next_page_token` of the previous page."),
    ] = "",
) -> Response:
    """One page of the registered programs, ordered by id."""
    page, more = await programs(request).page(tenant(), page_token, page_size)
    return _json({"programs": [_summary(p) for p in page], "next_page_token": page[-1].id if more else None})


@router.get(
    "/{program_id}",
    summary="Read a program",
    response_model=ProgramDetail,
    responses={
        304: {"description": "The program is that of If-None-Match."},
        **responses("not-found", "invalid-request", "storage-unavailable"),
    },
)
async def get_program(request: Request, program_id: ProgramId) -> Response:
    """The program as it was sent, and its signature. A program never changes, so If-None-Match always matches."""
    stored = await program(request, program_id)
    headers = {"ETag": f'"{stored.id}"', "Cache-Control": "private, max-age=31536000, immutable"}
    if f'"{stored.id}"' in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return _json(_summary(stored) | {"program": memoryview(stored.text)}, headers=headers)


@router.post(
    "/{program_id}/clone",
    summary="Clone the forward program",
    status_code=201,
    response_model=ProgramSummary,
    responses={
        200: {"model": ProgramSummary, "description": "The clone was registered before."},
        **responses(
            "not-found", "invalid-program", "quota-exceeded", *STORAGE_PROBLEMS, *BODY_PROBLEMS, *WORKER_PROBLEMS
        ),
    },
    openapi_extra=accepts(CloneRequest, binary=False, evaluation=("For evaluation", {"for_test": True})),
)
async def clone_program(request: Request, program_id: ProgramId) -> Response:
    """Register the program without its backward pass and, with `for_test`, with every op set to evaluation."""
    stored = await program(request, program_id)
    body = await read_body(request, settings(request), binary=False)
    args = {"for_test": body.read_as(CloneRequest).for_test}
    answer = await decoded(await asked_of(request, "clone", stored.program, args), settings(request))
    clone = as_text(answer["program"])
    return await _registered(request, clone, await _signature_of(request, clone))


@router.delete(
    "/{program_id}",
    summary="Delete a program",
    status_code=204,
    responses={
        204: {"description": "The program is deleted."},
        **responses("not-found", "in-use", "invalid-request", *STORAGE_PROBLEMS),
    },
)
async def delete_program(request: Request, program_id: UnusedProgramId) -> Response:
    """Delete a program. Refused while sessions use it."""
    await program(request, program_id)
    if used := await sessions(request).uses_program(tenant(), program_id):
        raise HttpProblem("in-use", f"{len(used)} sessions use this program; close them first", sessions=used[:20])
    await programs(request).delete(tenant(), program_id)
    return Response(status_code=204)


Names = Annotated[list[str] | None, Query(max_length=1000)]


async def backward_of(request: Request, stored: StoredProgram, question: Question) -> np.ndarray:
    """The program with its backward pass, as JSON text."""
    return await asked_of(request, "backward", stored.program, question.query())


def unchanged(request: Request, tag: str) -> Response | None:
    """The answer 304 if the client has the answer with this ETag."""
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"ETag": tag, **CACHED})
    return None


def tag_of(request: Request, form: str = "") -> str:
    """An ETag for what a program and a query string determine. A program never changes, the service may."""
    asked = f"{__version__} {request.url.path} {request.url.query} {form}"
    return f'"{hashlib.sha256(asked.encode()).hexdigest()[:32]}"'


CACHED = {"Cache-Control": "private, no-cache", "Vary": "Accept"}


@router.get(
    "/{program_id}/backward",
    summary="Compute the backward pass",
    responses={
        200: {"model": BackwardProgram, "description": "The program with its backward pass, and tables about it."},
        304: {"description": "The answer is that of If-None-Match."},
        **responses("not-found", "invalid-program", "no-gradient", "invalid-request", *WORKER_PROBLEMS),
    },
)
async def get_backward(
    request: Request,
    program_id: ProgramId,
    loss: Annotated[str | None, Query(description=text_of(GradientQuery, "loss"), openapi_examples=LOSS)] = None,
    parameter_list: Annotated[Names, Query(description=text_of(GradientQuery, "parameter_list"))] = None,
    targets: Annotated[Names, Query(description=text_of(GradientQuery, "targets"))] = None,
    inputs: Annotated[Names, Query(description=text_of(GradientQuery, "inputs"))] = None,
    no_grad_set: Annotated[Names, Query(description=text_of(GradientQuery, "no_grad_set"))] = None,
    unconnected: Annotated[Unconnected, Query(description=text_of(GradientQuery, "unconnected"))] = "null",
    checkpoints: Annotated[Names, Query(description=text_of(GradientQuery, "checkpoints"))] = None,
    loop_memory: Annotated[LoopMemory, Query(description=text_of(GradientQuery, "loop_memory"))] = "store",
    loop_bytes: Annotated[LoopBytes, Query()] = None,
    checkpoint_bytes: Annotated[CheckpointBytes, Query()] = None,
    trips: Annotated[Trips, Query()] = 100,
) -> Response:
    """The program in closed form: forward ops, then backward ops, with one gradient block per inner block.

    The answer also holds `params_grads`, `grad_to_var`, `grad_info_map`, the forward op of every backward op, the op
    that completes each gradient (`ready_at`; `op_role_vars` op by op), and the reasons of missing gradients. The
    program can be sent in again. Gradients of tables with sparse lookups are given twice: as dense arrays, and under
    `sparse` as rows and values.
    """
    stored = await program(request, program_id)
    tag = tag_of(request)
    if (known := unchanged(request, tag)) is not None:
        return known
    asked = {
        "loss": loss,
        "parameter_list": parameter_list,
        "targets": targets or [],
        "inputs": inputs or [],
        "no_grad_set": no_grad_set or [],
        "unconnected": unconnected,
        **budgeted(loop_memory, loop_bytes, checkpoints, checkpoint_bytes, trips),
    }
    answer = await backward_of(request, stored, Question.model_validate(asked))
    return pieced([answer.data], headers={"ETag": tag, **CACHED})


@router.post(
    "/{program_id}/backward",
    summary="Compute the backward pass, with hooks",
    responses={
        200: {"model": BackwardProgram, "description": "The program with its backward pass, and tables about it."},
        **responses("invalid-program", "no-gradient", "not-found", *BODY_PROBLEMS, *WORKER_PROBLEMS),
    },
    openapi_extra=accepts(Question, binary=False, regression=("Clip the gradients of all parameters", CLIPPED)),
)
async def compute_backward(request: Request, program_id: ProgramId) -> Response:
    """As the GET, for questions that do not fit into a query string."""
    stored = await program(request, program_id)
    body = await read_body(request, settings(request), binary=False)
    return pieced([(await backward_of(request, stored, body.read_as(Question))).data])


EXAMPLE_IDS = {"regression": {"value": REGRESSION_ID}, "while": {"value": WHILE_ID}}
