"""Programs: register, list, read and delete them, and compute their backward pass."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from core.backward.query import GradientQuery, Unconnected
from service import __version__
from service.caller import tenant
from service.formats.packed import as_text
from service.http.entity_tags import VARIES, check_if_match, known_before, unchanged
from service.http.given_values import told_in_query
from service.http.pieces import Part, PiecedResponse
from service.http.request_body import JSON, ONNX, decoded, prefers_onnx, read_body
from service.problems import HttpProblem, responses
from service.routes import onnx_models
from service.routes.common import LOSS, page_token_of
from service.routes.documented import accepts, empty_answer
from service.routes.named_programs import ProgramId, UnusedProgramId, program
from service.routes.preconditions import IF_MATCH, if_match
from service.routes.registration import (
    BODY_PROBLEMS,
    STORAGE_PROBLEMS,
    WORKER_PROBLEMS,
    InitialValues,
    ProgramSummary,
    json_of,
    registered,
    signature_of,
    summary,
)
from service.routes.state import calls, programs, sessions, settings
from service.schemas.backward import BackwardProgram
from service.schemas.derived import text_of
from service.schemas.gradients import (
    CheckpointBytes,
    LoopBytes,
    LoopMemory,
    Name,
    ProgramDocument,
    Question,
    Trips,
    budgeted,
)
from service.schemas.members import Dtype, NextPage, Shape
from service.schemas.programs import Strict
from service.store.newest import Place
from service.store.program_text import ProgramText
from service.store.programs import StoredProgram

__all__ = ["router"]

router = APIRouter(prefix="/v1/programs", tags=["programs"])

CLIPPED = {"loss": "loss", "hooks": [{"match": {"role": "parameter"}, "do": "clip_value", "min": -1.0, "max": 1.0}]}


class InitialValue(Strict):
    """One initial value."""

    name: str = Field(description="Name of the parameter or state.")
    dtype: Dtype
    shape: Shape
    bytes: int = Field(description="Size in bytes.")


class DetailedValues(InitialValues):
    """The initial values of a program, with their types."""

    tensors: list[InitialValue] = Field(description="The values, with their types and sizes.")


class ProgramDetail(ProgramSummary):
    """A registered program with its document."""

    program: ProgramDocument = Field(description="The document as it was sent, with the member `values`.")
    values: DetailedValues | None = Field(None, description="Its initial values; null without any.")  # type: ignore[assignment]


class CloneRequest(Strict):
    """Options of a clone."""

    for_test: bool = Field(
        True, description="Set every op to its behaviour in evaluation, such as dropout and batch normalization."
    )


class ProgramPage(Strict):
    """One page of programs."""

    programs: list[ProgramSummary] = Field(description="Programs, the newest first.")
    next_page_token: NextPage = None


async def asked_of(request: Request, op: str, program: ProgramText, args: dict[str, Any]) -> np.ndarray:
    """The result of `op` on a program in any worker, as JSON text."""
    deadline = settings(request).step_deadline
    args = {**args, "as_json": True}
    reply = await calls(request).with_program(op, program.id, program.text, args, deadline=deadline)
    return reply.tensors["json"]


def pieced(parts: Sequence[Part], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return PiecedResponse(parts, status, headers, JSON)


@router.get(
    "",
    summary="List programs",
    response_model=ProgramPage,
    responses=responses("invalid-request", "storage-unavailable"),
)
async def list_programs(
    request: Request,
    page_size: Annotated[int, Query(ge=1, le=200, description="Largest number of programs in the answer.")] = 50,
    page_token: Annotated[str, page_token_of(r"prg_[a-z2-7]{26}")] = "",
) -> Response:
    """One page of the registered programs, the newest first."""
    page, more = await programs(request).page(tenant(), page_token, page_size)
    token = Place.of(page_token).token(page[-1]) if more else None
    return json_of({"programs": [summary(p) for p in page], "next_page_token": token})


@router.get(
    "/{program_id}",
    summary="Read a program",
    response_model=ProgramDetail,
    responses={
        200: {"description": "The program, as JSON or as an ONNX model.", "content": onnx_models.CONTENT},
        304: {"description": "The program is that of If-None-Match."},
        **responses("not-found", "invalid-program", "invalid-request", *WORKER_PROBLEMS),
    },
)
async def get_program(
    request: Request,
    program_id: ProgramId,
    outputs: onnx_models.Outputs = None,
    opset: onnx_models.Opset = None,
    for_test: onnx_models.ForTest = False,
) -> Response:
    """The program as it was sent, and its signature. A program never changes, so If-None-Match always matches.

    With `Accept: application/x-onnx` the answer is an ONNX model that computes the same. Its inputs are the feeds, and
    the parameters and states without initial values; those with values are initializers. All ops that ONNX cannot
    express are reported in one problem document.
    """
    as_onnx = prefers_onnx(request)
    stored = await program(request, program_id)
    if as_onnx:
        tag = tag_of(request, ONNX)
        if (known := known_before(request, tag, CACHED)) is not None:
            return known
        file = await onnx_models.program_file(request, stored, outputs, opset, for_test, {"ETag": tag, **CACHED})
        return unchanged(request, tag, "program", CACHED) or file
    tag, headers = f'"{stored.id}"', {"Cache-Control": "private, max-age=31536000, immutable", **VARIES}
    if (known := unchanged(request, tag, "program", headers)) is not None:
        return known
    found = summary(stored) | {"program": memoryview(stored.text)}
    if stored.values is not None:
        found["values"] |= {"tensors": memoryview(stored.values.tensors)}
    return json_of(found, headers={"ETag": tag, **headers})


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
    """Register the program without its backward pass and, with `for_test`, with every op set to evaluation.

    The clone has the initial values of the program.
    """
    stored = await program(request, program_id)
    body = await read_body(request, settings(request), binary=False)
    args = {"for_test": body.read_as(CloneRequest).for_test, "named": stored.program.values}
    answer = await decoded(await asked_of(request, "clone", stored.program, args), settings(request))
    clone = as_text(answer["program"])
    return await registered(request, clone, await signature_of(request, clone))


@router.delete(
    "/{program_id}",
    summary="Delete a program",
    status_code=204,
    responses=empty_answer(
        "The program is deleted.", "not-found", "in-use", "precondition-failed", "invalid-request", *STORAGE_PROBLEMS
    ),
    openapi_extra=IF_MATCH,
)
async def delete_program(request: Request, program_id: UnusedProgramId) -> Response:
    """Delete a program. Refused while sessions use it."""
    await program(request, program_id)
    check_if_match(if_match(request), f'"{program_id}"', "program")
    if used := await sessions(request).uses_program(tenant(), program_id):
        raise HttpProblem("in-use", f"{len(used)} sessions use this program; close them first", sessions=used[:20])
    await programs(request).delete(tenant(), program_id)
    return Response(status_code=204)


Names = Annotated[list[Name] | None, Query(max_length=1000)]


async def backward_of(request: Request, stored: StoredProgram, question: Question) -> np.ndarray:
    """The program with its backward pass, as JSON text."""
    return await asked_of(request, "backward", stored.program, question.query())


def tag_of(request: Request, form: str = "") -> str:
    """An ETag for what a program and a query string determine. A program never changes, the service may."""
    asked = f"{__version__} {request.url.path} {request.url.query} {form}"
    return f'"{hashlib.sha256(asked.encode()).hexdigest()[:32]}"'


BACKWARD = "The program with its backward pass, and tables about it; or the backward pass as an ONNX model."
CACHED = {"Cache-Control": "private, no-cache", **VARIES}


@router.get(
    "/{program_id}/backward",
    summary="Compute the backward pass",
    responses={
        200: {"model": BackwardProgram, "description": BACKWARD, "content": onnx_models.CONTENT},
        304: {"description": "The answer is that of If-None-Match."},
        **responses("not-found", "invalid-program", "no-gradient", "invalid-request", *WORKER_PROBLEMS),
    },
)
async def get_backward(
    request: Request,
    program_id: ProgramId,
    loss: Annotated[Name | None, Query(description=text_of(GradientQuery, "loss"), openapi_examples=LOSS)] = None,
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
    opset: onnx_models.Opset = None,
) -> Response:
    """The program in closed form: forward ops, then backward ops, with one gradient block per inner block.

    The answer also holds `params_grads`, `grad_to_var`, `grad_info_map`, the forward op of every backward op, the op
    that completes each gradient (`ready_at`; `op_role_vars` op by op), and the reasons of missing gradients. The
    program can be sent in again. Gradients of tables with sparse lookups are given twice: as dense arrays, and under
    `sparse` as rows and values.

    With `Accept: application/x-onnx` the answer is an ONNX model. Its inputs are the feeds, parameters and states that
    the gradients depend on; its outputs are the loss or the targets, and the gradients under the names that they have
    in `params_grads`.
    """
    as_onnx = prefers_onnx(request)
    stored = await program(request, program_id)
    tag = tag_of(request, ONNX if as_onnx else "")
    if (known := known_before(request, tag, CACHED)) is not None:
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
    question = Question.model_validate(asked)
    headers = {"ETag": tag, **CACHED}
    with told_in_query():
        if as_onnx:
            answer = await onnx_models.backward_file(request, stored, question, opset, headers)
        else:
            answer = pieced([(await backward_of(request, stored, question)).data], headers=headers)
    return unchanged(request, tag, "program", CACHED) or answer


@router.post(
    "/{program_id}/backward",
    summary="Compute the backward pass, with hooks",
    responses={
        200: {"model": BackwardProgram, "description": BACKWARD, "content": onnx_models.CONTENT},
        **responses("invalid-program", "no-gradient", "not-found", *BODY_PROBLEMS, *WORKER_PROBLEMS),
    },
    openapi_extra=accepts(Question, binary=False, regression=("Clip the gradients of all parameters", CLIPPED)),
)
async def compute_backward(request: Request, program_id: ProgramId, opset: onnx_models.Opset = None) -> Response:
    """As the GET, for questions that do not fit into a query string."""
    as_onnx = prefers_onnx(request)
    stored = await program(request, program_id)
    body = await read_body(request, settings(request), binary=False)
    if as_onnx:
        return await onnx_models.backward_file(request, stored, body.read_as(Question), opset, VARIES)
    return pieced([(await backward_of(request, stored, body.read_as(Question))).data])
