"""Operations on a tape: append ops, read values, play back, fetch it as a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from core.ir.errors import escaped
from service.caller import tenant
from service.engine import RemoteError, Reply
from service.engine.protocol import NO_TENSORS
from service.http.given_values import Values, read_values
from service.http.pieces import PiecedResponse
from service.http.request_body import JSON, Body, wants_tensorfile
from service.http.tensor_payloads import Answer, joined, render, sent
from service.problems import HttpProblem, from_remote, responses, wrong_member
from service.routes.common import LOSS, deadline_of
from service.routes.documented import HOT_PROBLEMS, accepts, answers, empty_answer
from service.routes.in_session import TIMING, etag, known, known_now, received, tags_of
from service.routes.preconditions import IF_MATCH, TAGGED, if_match
from service.routes.state import settings, tapes
from service.schemas import tapes as schemas
from service.schemas.examples import SAMPLE_LINE, SAMPLE_TAPE
from service.sessions.registry import Write
from service.sessions.session import Session

__all__ = ["DIRECT", "TAPE_ID", "TapeId", "append", "router"]

router = APIRouter(prefix="/v1/tapes", tags=["tapes"])

TAPE_ID = r"^tap_[a-z2-7]{26}$"
TapeId = Annotated[
    str,
    Path(
        pattern=TAPE_ID,
        description="Id of a tape.",
        openapi_examples={"sample": {"summary": "The sample tape", "value": SAMPLE_TAPE}},
    ),
]
ON_TAPE = ("not-found", "gone", "invalid-program", "precondition-failed", *HOT_PROBLEMS)
NUMBERED = ("sequence-conflict", "sequence-gap", *ON_TAPE)

W = {"dtype": "float32", "shape": [2], "data": [0.5, -1]}
X = {"dtype": "float32", "shape": [2], "data": [3, 4]}
SUM = {"dtype": "float32", "shape": [], "data": [-2.5]}
APPENDED = [
    {"op": 0, "type": "mul", "outputs": [{"name": "wx", "dtype": "float32", "shape": [2]}]},
    {"op": 1, "type": "reduce_sum", "outputs": [{"name": "loss", "dtype": "float32", "shape": []}]},
]
NOW = {"next_seq": 2, "ops": 2, "bytes": 28, "compiled": True, "timing_ms": TIMING}
PLAYED = {
    "missing": {},
    "value": SUM,
    "gradients": {"w": X},
    "played_back": [1, 0],
    "final": [{"variable": "w", "after": 0}],
    "ran": [],
}
Stacked = Mapping[str, Sequence[str]]
"""Constant -> the names of its parts."""

NOT_STACKED: Stacked = {}
HIDDEN = ("version", "step")  # members of a worker's result that clients of a tape do not see


@router.post(
    "/{tape_id}/ops",
    summary="Append ops",
    responses=answers(
        schemas.AppendAnswer,
        {
            "appended": APPENDED,
            "first": 0,
            "values": {"wx": {**W, "data": [1.5, -4]}, "loss": SUM},
            **NOW,
        },
        *NUMBERED,
    ),
    openapi_extra=accepts(schemas.AppendOps, line=("A parameter, a constant and two ops", SAMPLE_LINE)) | IF_MATCH,
)
async def append_ops(request: Request, tape_id: TapeId) -> Response:
    """Append leaves and ops, all of them or, on an error, none. An immediate tape computes their values.

    `backward` plays the tape back in the same request. A training loop that appends the same ops again can send the
    `structure` of the first answer instead: it saves the time to send and to read them. After some repetitions the
    worker compiles them to machine code. With a `seq` the request can be repeated safely: the ops are appended once.
    """
    as_file, body, tape = await received(request, tapes(request), tape_id)
    return await append(request, tape, body, body.read_as(schemas.AppendOps), as_file)


async def append(request: Request, tape: Session, body: Body, asked: schemas.AppendOps, as_file: bool) -> Response:
    """Append what `body` contains, which `asked` describes."""
    if asked.structure is not None and asked.ops:
        raise wrong_member("/structure", "a request has either ops or a structure")
    given = await _leaves(request, body, asked)
    args: dict[str, Any] = {
        "ops": asked.ops,
        "structure": asked.structure,
        "stacked": asked.stacked,
        "renew": asked.renew,
        "release": asked.release,
        "returned": asked.return_values,
        "backward": asked.backward and {"target": asked.backward.target, "wrt": asked.backward.wrt},
        **given.args,
    }
    write = Write("tape.append", args, given.tensors, asked.seq, "ops", body)
    members: dict[str, Any] = {"values": {}} if asked.backward is None else {"values": {}, "gradients": {}}
    return await _written(request, tape, write, asked.deadline_s, as_file, members, given, asked.stacked)


@router.delete(
    "/{tape_id}/ops",
    summary="Clear the tape",
    status_code=204,
    responses=empty_answer("Only the parameters are left.", *ON_TAPE),
    openapi_extra=IF_MATCH,
)
async def clear_tape(request: Request, tape_id: TapeId) -> Response:
    """Delete all ops, constants and values. Parameters and compiled code stay."""
    tape = await tapes(request).find(tenant(), tape_id)
    write = Write("tape.renew", {}, NO_TENSORS, None, "renew")
    await _written(request, tape, write, None, False, {})
    return Response(status_code=204)


@router.get(
    "/{tape_id}/values/{name:path}",
    summary="Read a value",
    responses=answers(schemas.ValueAnswer, {"value": SUM, "ran": [0, 1], **NOW}, *ON_TAPE) | TAGGED,
)
async def get_tape_value(
    request: Request,
    tape_id: TapeId,
    name: Annotated[str, Path(max_length=256, description="Name of a variable on the tape.", openapi_examples=LOSS)],
) -> Response:
    """The value of a variable. A lazy tape runs the ops that it needs and that have not run yet."""
    as_file = wants_tensorfile(request)
    tape = await tapes(request).find(tenant(), tape_id)
    deadline = settings(request).step_deadline
    try:
        reply = await tapes(request).read(tape, "tape.values", {"name": name}, {}, deadline, accepts=if_match(request))
    except RemoteError as error:
        if error.code == "unknown_variable":
            raise HttpProblem("not-found", error.message) from error
        raise _on_tape(error) from error
    headers = tags_of(reply, as_file)
    if (answer := known_now(request, headers)) is not None:  # only the worker knows which variables there are
        return answer
    return (await render(reply, _shown(reply.result), as_file=as_file, headers=headers)).response()


@router.post(
    "/{tape_id}/backward",
    summary="Play the tape back",
    responses=answers(schemas.BackwardAnswer, {**PLAYED, **NOW}, "no-gradient", *NUMBERED),
    openapi_extra=accepts(
        schemas.BackwardRequest,
        gradients=("Gradients of all parameters", {"target": "loss"}),
        record=("Gradients as new ops on the tape", {"target": "loss", "wrt": ["w"], "record": True}),
    )
    | IF_MATCH,
)
async def play_back(request: Request, tape_id: TapeId) -> Response:
    """Gradients of the target. Plays back the ops that it depends on, in reverse order."""
    as_file, body, tape = await received(request, tapes(request), tape_id)
    asked = body.read_as(schemas.BackwardRequest)
    named = asked.target_gradient if isinstance(asked.target_gradient, str) else None
    given = {} if named is not None or asked.target_gradient is None else {"target_gradient": asked.target_gradient}
    seed = await read_values(body, settings(request), {"": given})
    _only(seed.names, "target_gradient")
    args = {"target": asked.target, "wrt": asked.wrt, "seed": named}
    if asked.record:
        if seed.names:
            raise wrong_member("/target_gradient", "with record, target_gradient must be the name of a variable")
        write = Write("tape.record", args, NO_TENSORS, asked.seq, "backward", body)
        return await _written(request, tape, write, asked.deadline_s, as_file, {"values": {}})
    if asked.seq is not None:
        raise wrong_member("/seq", "seq is allowed only with record, which changes the tape")
    deadline = deadline_of(asked.deadline_s, settings(request))
    with seed.told(_on_tape):
        reply = await tapes(request).read(
            tape, "tape.gradients", args | seed.args, seed.tensors, deadline, accepts=if_match(request)
        )
    tag = {"ETag": etag(reply)}
    answer = await render(reply, _shown(reply.result), as_file=as_file, headers=tag, members={"gradients": {}})
    return answer.response()


@router.get(
    "/{tape_id}/program",
    summary="Fetch the tape as a program",
    response_model=schemas.TapeProgram,
    responses={
        200: {"description": "A body for POST /v1/programs.", "content": {JSON: {}}},
        **TAGGED,
        **responses(*ON_TAPE),
    },
)
async def get_tape_program(request: Request, tape_id: TapeId) -> Response:
    """The tape as a program: its parameters become parameters, its constants feeds."""
    tape = await tapes(request).find(tenant(), tape_id)
    if (answer := await known(request, tapes(request), tape, as_file=None)) is not None:
        return answer
    deadline = settings(request).step_deadline
    reply = await tapes(request).read(tape, "tape.program", {}, {}, deadline, accepts=if_match(request))
    text = reply.tensors["program"].data
    return PiecedResponse(joined({"program": text}), 200, {"ETag": etag(reply)}, JSON)


DIRECT = [route for route in router.routes if getattr(route, "name", None) in ("append_ops", "play_back")]
"""The routes of a training loop."""


async def _leaves(request: Request, body: Body, asked: schemas.AppendOps) -> Values:
    """The values of the request as ``parameter/<name>`` and ``constant/<name>``, and ``target_gradient``."""
    members: dict[str, Any] = {"/parameters": asked.parameters, "/constants": asked.constants}
    if asked.backward is not None and asked.backward.target_gradient is not None:
        members["/backward"] = {"target_gradient": asked.backward.target_gradient}
    prefixes = {"/parameters": "parameter/", "/constants": "constant/"}
    leaves = await read_values(body, settings(request), members, prefixes)
    for name in leaves.names:
        if name == "target_gradient" and asked.backward is not None:
            continue
        if not name.startswith(("parameter/", "constant/")):
            raise wrong_member("", "a tensor of the file is named neither parameter/<name> nor constant/<name>")
        leaf = name.removeprefix("constant/")
        if leaf != name and f"parameter/{leaf}" in leaves.names:
            raise wrong_member(f"/constants/{escaped(leaf)}", f"{leaf!r} is both a parameter and a constant")
    for name, parts in asked.stacked.items():
        place = f"/stacked/{escaped(name)}"
        if f"constant/{name}" not in leaves.names:
            raise wrong_member(place, "the request has no constant of this name")
        stack = leaves.tensors.get(f"constant/{name}")
        if stack is not None and stack.shape[:1] != (len(parts),):
            raise wrong_member(place, f"{len(parts)} names for a constant of the shape {list(stack.shape)}")
    return leaves


async def _written(
    request: Request,
    tape: Session,
    write: Write,
    deadline_s: float | None,
    as_file: bool,
    members: dict[str, Any],
    values: Values | None = None,
    stacked: Stacked = NOT_STACKED,
) -> Response:
    async def answer(reply: Reply) -> Answer:
        tag = {"ETag": etag(reply)}
        return await render(reply, _shown(reply.result), as_file=as_file, headers=tag, members=members)

    deadline = deadline_of(deadline_s, settings(request))
    write = replace(write, accepts=if_match(request))
    with (values or Values()).told(partial(_on_tape, stacked=stacked)):
        found, replayed = await tapes(request).write(tape, write, deadline, answer)
    return sent(request, found, replayed)


def _shown(result: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in result.items() if name not in (*HIDDEN, "seq")}
    return {**plain, "next_seq": result["seq"] + 1}


def _on_tape(error: RemoteError, stacked: Stacked = NOT_STACKED) -> HttpProblem:
    """The problem for an error of the core, with pointers into the request body."""
    places = {
        f"/constants/{escaped(part)}": f"/stacked/{escaped(name)}/{i}"
        for name, parts in stacked.items()
        for i, part in enumerate(parts)
    }
    for problem in error.problem.get("problems", ()):
        pointer = problem["pointer"]
        if pointer.startswith("/blocks/"):  # a position on the tape, which the body does not contain
            problem["pointer"] = ""
        elif pointer in places:
            problem["pointer"] = places[pointer]
    return from_remote(error, prefix="")


def _only(given: set[str], name: str) -> None:
    if given - {name}:
        raise wrong_member("", f"the only tensor of this request may be {name}")
