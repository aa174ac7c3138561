"""Programs are registered: as JSON or as an ONNX model, with or without initial values."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from service.caller import tenant
from service.formats.packed import as_text
from service.http.given_values import Values, read_values
from service.http.pieces import PiecedResponse
from service.http.request_body import JSON, ONNX, SAFETENSORS, media_type, read_body
from service.http.spooled_body import spooled
from service.http.tensor_payloads import joined
from service.models import write_values
from service.models.losses import KINDS, BadLoss, loss_of
from service.problems import FieldError, HttpProblem, responses
from service.routes.documented import FILE
from service.routes.named_programs import stored_values
from service.routes.state import calls, importer, programs, quotas, settings
from service.schemas.components import model as reference
from service.schemas.examples import REGRESSION, REGRESSION_PARAMETERS, WHILE
from service.schemas.members import Created
from service.schemas.onnx_example import ONNX_EXAMPLE
from service.schemas.programs import Registration, Strict
from service.store.directory import refusal
from service.store.program_text import ProgramText
from service.store.program_values import NewValues
from service.store.programs import MissingValues, StoredProgram, TooManyPrograms

__all__ = [
    "BODY_PROBLEMS",
    "STORAGE_PROBLEMS",
    "WORKER_PROBLEMS",
    "ProgramSummary",
    "json_of",
    "registered",
    "router",
    "signature_of",
    "summary",
]

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
VALUE_PROBLEMS = ("invalid-tensor-file", "shape-mismatch", "dtype-mismatch")


class Signature(Strict):
    """Inputs of a program with their types, and its size."""

    feeds: list[dict[str, Any]] = Field(description="Feeds: name, dtype, shape, trainable.")
    parameters: list[dict[str, Any]] = Field(description="Parameters, in the same form.")
    states: list[dict[str, Any]] = Field(description="States, in the same form.")
    ops: int = Field(0, description="Number of ops in all blocks.")
    blocks: int = Field(0, description="Number of blocks, block 0 included.")
    op_types: dict[str, int] = Field(description="Op type -> number of ops of this type.")
    inputs: list[str] | None = Field(None, description="Of an ONNX model: its feeds in the order of the model.")
    outputs: list[str] | None = Field(None, description="Of an ONNX model: the variables of its outputs, in order.")
    loss: str | None = Field(None, description="Of an ONNX model: the variable of the loss that was asked for.")


class InitialValues(Strict):
    """The initial values of a program."""

    sha256: str = Field(description="SHA-256 of the file, in hexadecimal; the member `values` of the program.")
    size: int = Field(description="Size of the file in bytes.")
    content: str = Field(description="Path of the file, safetensors.")


class ProgramSummary(Strict):
    """A registered program."""

    id: str = Field(
        description="Id of the program: a digest of its document.", examples=["prg_mfrggzdfmztwq2lknnwg23tpob"]
    )
    created: Created
    signature: Signature = Field(description="Its inputs with their types, and its size.")
    values: InitialValues | None = Field(None, description="Initial values of parameters and states; null without any.")


class ValidProgram(Strict):
    """The answer to `validate_only`."""

    id: str = Field(description="Id that the program would get: a digest of its document.")
    signature: Signature = Field(description="Its inputs with their types, and its size.")
    valid: Literal[True] = Field(True, description="Always true: a program that is not valid is a problem.")


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
        **responses(
            "invalid-program", "quota-exceeded", *STORAGE_PROBLEMS, *BODY_PROBLEMS, *VALUE_PROBLEMS, *WORKER_PROBLEMS
        ),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                JSON: {
                    "schema": reference(Registration),
                    "examples": {
                        "regression": {"summary": "Linear regression", "value": {"program": REGRESSION}},
                        "while": {"summary": "A loop whose trip count is a feed", "value": {"program": WHILE}},
                        "values": {
                            "summary": "With initial values",
                            "value": {"program": REGRESSION, "values": REGRESSION_PARAMETERS},
                        },
                    },
                },
                SAFETENSORS: FILE,
                ONNX: ONNX_EXAMPLE,
            },
        }
    },
)
async def create_program(
    request: Request,
    validate_only: Annotated[bool, Query(description="Check the program without registering it.")] = False,
    loss: Annotated[
        str | None,
        Query(
            max_length=256,
            description="Only with an ONNX model: an output of one element to be the loss, or a loss to append: "
            f"{', '.join(KINDS)}.",
        ),
    ] = None,
    of: Annotated[
        str | None,
        Query(max_length=256, description="Only with an appended loss: the output to judge; by default the first one."),
    ] = None,
    label: Annotated[
        str | None, Query(max_length=128, description="Only with an appended loss: the new feed of labels.")
    ] = None,
    axis: Annotated[
        int | None,
        Query(ge=-64, le=64, description="Only with cross_entropy and nll: the axis of the classes, by default 1."),
    ] = None,
    trainable: Annotated[
        list[str] | None,
        Query(
            max_length=10_000,
            description="Only with an ONNX model: the initializers to train; by default all of floating point with an "
            "axis, without running statistics. An empty name trains none.",
        ),
    ] = None,
) -> Response:
    """Check a program and store it under an id derived from its content.

    All problems of the program are reported at once, each with a stable code and a JSON pointer. Registering the same
    program again answers 200 with the same id.

    `values` are initial values of parameters and states; in a safetensors body the tensors are. They stay with the
    program: sessions start with them, and calls that give no values use them.

    The body may be an ONNX model. Its inputs become feeds, its float initializers parameters, its outputs variables,
    all under their own names, and the initializers are the initial values. All nodes that cannot be read are reported
    at once. Large models take seconds: send `Prefer: respond-async` to get the answer later.
    """
    kind = media_type(request, True, ONNX)
    options = {"loss": loss, "of": of, "label": label, "axis": axis, "trainable": trainable}
    given = {name: value for name, value in options.items() if value is not None}
    async with importer(request).folder() as folder:
        if kind == ONNX:
            program, values, signature = await _of_onnx(request, given, folder)
        else:
            if given:
                detail = f"the parameter {min(given)} goes with the media type {ONNX}"
                raise HttpProblem("invalid-request", detail, errors=[_in_query(min(given), detail)])
            program, values, signature = await _of_document(request, folder)
        if validate_only:
            return json_of({"id": program.id, "signature": memoryview(signature), "valid": True})
        return await registered(request, program, signature, values)


Checked = tuple[ProgramText, NewValues | None, bytes]
"""A program, its values, and its signature as JSON text."""


async def _of_document(request: Request, folder: Path) -> Checked:
    """The program in a JSON or safetensors body. Raises HttpProblem with all mistakes."""
    body = await read_body(request, settings(request))
    document, tensors = _members(body.document)
    program = as_text(document)
    given = await read_values(body, settings(request), {"/values": tensors})
    if given.flaws:  # they have no digest, and the request is refused in any case
        kinds = [(name, array.dtype.name, list(array.shape)) for name, array in given.tensors.items()]
        await signature_of(request, program, kinds, given)
    if given.tensors:
        new = await asyncio.to_thread(write_values, given.tensors, folder / "values.safetensors")
        program = program.with_values(new.sha256)
        return program, new, await signature_of(request, program, _kinds(new.tensors), given)
    if program.values is None:
        return program, None, await signature_of(request, program)
    stored = await stored_values(request, program.values)
    return program, None, await signature_of(request, program, _kinds(stored.tensors))


async def _of_onnx(request: Request, given: Mapping[str, Any], folder: Path) -> Checked:
    """The program of an ONNX model, with the arguments that the query gives. Raises HttpProblem."""
    loss = _loss(given)
    file = folder / "model.onnx"
    importer(request).prepare()
    await spooled(request, file, settings(request).binary_body_bytes, settings(request))
    read = await importer(request).onnx(file, loss, given.get("trainable"), folder)
    kinds = () if read.values is None else _kinds(read.values.tensors)
    return read.program, read.values, await signature_of(request, read.program, kinds, about=read.about)


def _loss(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The members of a `core.onnx.Loss`. Raises HttpProblem 422."""
    try:
        return loss_of(given)
    except BadLoss as error:
        detail = f"the parameter {error}"
        raise HttpProblem("invalid-request", detail, errors=[_in_query(error.option, detail)]) from None


def _in_query(name: str, detail: str) -> FieldError:
    return FieldError("", "extra_forbidden", detail, parameter=f"query: {name}")


def _kinds(tensors: bytes) -> list[tuple[str, str, list[int]]]:
    return [(each["name"], each["dtype"], each["shape"]) for each in orjson.loads(tensors)]


async def signature_of(
    request: Request,
    program: ProgramText,
    kinds: Any = (),
    given: Values | None = None,
    about: Mapping[str, Any] | None = None,
) -> bytes:
    """The inputs and the size of a program as JSON text, after all checks.

    kinds: name, dtype and shape of each initial value. given: the values of the request. about: further members.
    Raises HttpProblem with all mistakes.
    """
    given = Values() if given is None else given
    args = {"document": program.text, "as_json": True, "tensors": list(kinds), "about": dict(about or {}), **given.args}
    with given.told():
        reply = await calls(request).call("inspect", args, deadline=settings(request).step_deadline)
    return reply.tensors["json"].tobytes()


async def registered(
    request: Request, program: ProgramText, signature: bytes, values: NewValues | None = None
) -> Response:
    """Store a program that was checked. values: as of `ProgramStore.put`. Raises HttpProblem 429, StorageError."""
    try:
        async with quotas(request).room_for(tenant(), "program_bytes", 0 if values is None else values.size) as check:
            stored, created = await programs(request).put(tenant(), program, signature, values, check)
    except TooManyPrograms:
        raise HttpProblem("quota-exceeded", "the limit of registered programs is reached; delete some") from None
    except MissingValues:
        raise HttpProblem("in-use", "the initial values of the program were deleted meanwhile; send them") from None
    except OSError as error:
        raise refusal(error, settings(request).data_dir) from error
    headers = {"Location": f"/v1/programs/{stored.id}", "ETag": f'"{stored.id}"'}
    return json_of({**summary(stored), "signature": memoryview(signature)}, 201 if created else 200, headers)


def _members(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The members `program` and `values`, the only ones allowed. Raises HttpProblem 422."""
    known = ("program", "values")
    errors = [FieldError(f"/{n[:64]}", "unknown-member", "unknown member") for n in document if n not in known]
    if not isinstance(document.get("program"), dict):
        bare = 'send the document as a member: {"program": {"blocks": [...]}}' if "blocks" in document else None
        errors.insert(0, FieldError("/program", "missing", "program must be an object", suggestion=bare))
    if not isinstance(document.get("values", {}), dict):
        errors.append(FieldError("/values", "wrong-type", "values must be an object of tensors"))
    if errors:
        raise HttpProblem("invalid-request", errors[0].detail, errors=errors)
    return document["program"], document.get("values", {})


def summary(stored: StoredProgram) -> dict[str, Any]:
    """The members of a summary; its signature is JSON text."""
    found: dict[str, Any] = {
        "id": stored.id, "created": stored.created, "signature": memoryview(stored.signature), "values": None,
    }  # fmt: skip
    if (values := stored.values) is not None:
        content = f"/v1/programs/{stored.id}/values"
        found["values"] = {"sha256": values.sha256, "size": values.size, "content": content}
    return found


def json_of(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`content` as JSON; a memoryview in it is JSON text already."""
    return PiecedResponse(joined(content), status, headers, JSON)
