"""Programs, backward passes and trained models as ONNX files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request, Response

from service.caller import tenant
from service.engine import Reply
from service.http.given_values import told_in_query
from service.http.request_body import ONNX, accepts_onnx
from service.http.tensor_payloads import Answer
from service.problems import responses
from service.routes.documented import FILE
from service.routes.in_session import IN_SESSION, SessionId, etag
from service.routes.named_programs import reading_values, values_of
from service.routes.preconditions import IF_MATCH, if_match
from service.routes.state import calls, programs, sessions, settings
from service.schemas.gradients import Question
from service.store.programs import StoredProgram

__all__ = ["CONTENT", "NEWEST", "OLDEST", "ForTest", "Opset", "Outputs", "backward_file", "program_file", "router"]

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

OLDEST, NEWEST = 21, 28
"""Those of `core.onnx.writing`, which this process does not import: the package onnx takes much memory."""

CONTENT: dict[str, Any] = {ONNX: FILE}
"""The entry of an OpenAPI answer."""

Outputs = Annotated[
    list[str] | None,
    Query(
        max_length=1000,
        description="Of an ONNX file: the variables that it returns. By default the outputs of the ONNX model that the "
        "program comes from, or the variables that no op reads.",
    ),
]
Opset = Annotated[
    int | None,
    Query(
        ge=OLDEST,
        le=NEWEST,
        description="Of an ONNX file: the version of the operator set. By default the newest that can be written.",
    ),
]
ForTest = Annotated[
    bool, Query(description="Of an ONNX file: write every op with its behaviour in evaluation, as a clone `for_test`.")
]


async def program_file(
    request: Request,
    stored: StoredProgram,
    outputs: list[str] | None,
    opset: int | None,
    for_test: bool,
    headers: Mapping[str, str],
) -> Response:
    """The program as an ONNX file, with its initial values."""
    args = {
        "outputs": outputs or _outputs_of(stored),
        "opset": opset,
        "for_test": for_test,
        **values_of(stored.values),
    }
    return await _of_program(request, "onnx.program", stored, args, headers)


async def backward_file(
    request: Request, stored: StoredProgram, question: Question, opset: int | None, headers: Mapping[str, str]
) -> Response:
    """The backward pass as an ONNX file."""
    args = {"query": question.query(), "opset": opset}
    return await _of_program(request, "onnx.backward", stored, args, headers)


async def _of_program(
    request: Request, op: str, stored: StoredProgram, args: dict[str, Any], headers: Mapping[str, str]
) -> Response:
    deadline = settings(request).step_deadline
    async with reading_values(request, stored.id):
        with told_in_query():
            reply = await calls(request).with_program(op, stored.id, stored.text, args, deadline=deadline)
    return _file(reply, stored.id, headers)


def _outputs_of(stored: StoredProgram) -> list[str] | None:
    """The variables of the outputs of the ONNX model that the program comes from; None for other programs."""
    return orjson.loads(stored.signature).get("outputs") or None


def _file(reply: Reply, name: str, headers: Mapping[str, str]) -> Response:
    sent = {"Content-Disposition": f'attachment; filename="{name}.onnx"', **headers}
    return Answer((reply.tensors["onnx"].data,), ONNX, sent).response()


@router.get(
    "/{session_id}/model",
    summary="Download the trained model as ONNX",
    response_class=Response,
    responses={
        200: {"description": "The protobuf of the model.", "content": CONTENT},
        **responses("invalid-program", "not-acceptable", *IN_SESSION),
    },
    openapi_extra=IF_MATCH,
)
async def download_session_model(
    request: Request,
    session_id: SessionId,
    outputs: Outputs = None,
    opset: Opset = None,
    for_test: ForTest = True,
) -> Response:
    """The program of the session as an ONNX model, with its parameters and states as initializers.

    The feeds that the outputs depend on are its inputs. Names of inputs, outputs and initializers are those of the
    program, so a model that came from ONNX leaves with the names that it came with. Ops are written as in evaluation,
    without dropout and with running statistics, unless `for_test` is false. Every op that ONNX cannot express is
    reported.
    """
    accepts_onnx(request)
    session = await sessions(request).find(tenant(), session_id, reads=True)
    stored = await programs(request).get(tenant(), session.program_id) if session.program_id else None
    args = {
        "outputs": outputs or (None if stored is None else _outputs_of(stored)),
        "opset": opset,
        "for_test": for_test,
    }
    with told_in_query():
        reply = await sessions(request).read(
            session, "session.model", args, {}, settings(request).step_deadline, accepts=if_match(request)
        )
    return _file(reply, session_id, {"ETag": etag(reply)})
