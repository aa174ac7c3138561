"""Explanations: what a step costs and why, where gradients come from, and whether they are right."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from service.formats import json_tensors as tensors
from service.http.request_body import JSON, read_body
from service.http.tensor_payloads import given_tensors
from service.problems import FieldError, HttpProblem, responses
from service.routes.common import LOSS, ProgramId, calls, program, settings
from service.routes.documented import HOT_PROBLEMS, accepts
from service.routes.gradients import deadline_of
from service.routes.programs import WORKER_PROBLEMS, Names
from service.schemas.examples import REGRESSION_FEEDS, REGRESSION_PARAMETERS
from service.schemas.gradients import (
    CheckpointBytes,
    Deadline,
    Densified,
    LoopBytes,
    LoopMemory,
    Name,
    Question,
    Seed,
    Trips,
    budgeted,
)
from service.schemas.programs import Strict
from service.schemas.tensors import Tensors

__all__ = ["router"]

router = APIRouter(prefix="/v1/programs", tags=["programs"])


Place = Annotated[
    dict[str, Any] | None, Field(description="The op of the program: its block, number and type; whether its gradient.")
]


class Region(Strict):
    """A part of the step that is one piece of machine code."""

    ops: int = Field(description="How many ops it does, those in loops and branches among them.")
    arena_bytes: int = Field(description="Its memory beside arguments, results and what loops record.")
    stacks: int = Field(description="Values that loops record; their memory grows with the trips.")
    record_bytes: int = Field(description="What loops record has so much memory when each makes `trips` trips.")
    first: Place
    last: Place


class Interpreted(Strict):
    """Ops of one type that are not machine code, and run one by one."""

    type: str
    reason: str = Field(description="Of a loop or branch, the op inside is named that it is about.")
    of: Place
    count: int
    ops: int = Field(description="The same with those inside of them, where they are loops or branches.")


class MachineCode(Strict):
    """Which parts of the step are machine code, in the order they run, and which ops are not, and why."""

    ops: dict[str, int] = Field(description="How many are `compiled` and how many `interpreted`, in all blocks.")
    peak_bytes: int = Field(
        description="Most memory of a step: what its regions hold, their results, and the arrays of ops between them."
    )
    regions: list[Region]
    interpreted: list[Interpreted]


class Analysis(Strict):
    """What a step costs and why, before anything runs. Sizes are bytes; a size that is open counts as 1."""

    types: list[dict[str, Any]] = Field(description="Every variable with its type, block by block.")
    ops: dict[str, dict[str, int]] = Field(description="Ops by type, forward and backward, in block 0.")
    flops: dict[str, Any] = Field(description="Floating-point operations of a step, in all and by op.")
    memory: dict[str, Any] = Field(
        description="Predicted peak, what takes it, the peak for each `loop_memory`, and the choice for a budget."
    )
    open_sizes: list[str] = Field(description="Feeds with sizes that only a step tells; give them as `shape`.")
    kept: list[dict[str, Any]] = Field(description="Forward values that backward ops read, and which ops these are.")
    contributions: dict[str, list[dict[str, Any]]] = Field(description="The parts that are added up to each gradient.")
    ready_at: dict[str, int] = Field(description="The op of block 0 after which each gradient is final.")
    missing: dict[str, dict[str, Any]] = Field(description="Why a gradient is missing, and where its path ends.")
    densified: list[Densified] = Field(
        description="Tables with sparse lookups whose gradient cannot stay rows. What an optimizer needs, steps tell."
    )
    machine_code: MachineCode | None = Field(
        description="What runs as machine code. Null where programs are never compiled, and where sizes are open "
        "that cannot be 1."
    )


@router.get(
    "/{program_id}/analysis",
    summary="Explain a program",
    response_model=Analysis,
    responses=responses("not-found", "invalid-program", "no-gradient", "invalid-request", *WORKER_PROBLEMS),
)
async def get_analysis(
    request: Request,
    program_id: ProgramId,
    loss: Annotated[str, Query(description="A variable of one element.", openapi_examples=LOSS)],
    parameter_list: Annotated[Names, Query(description="Parameters; all trainable ones by default.")] = None,
    no_grad_set: Annotated[Names, Query(description="Variables through which nothing flows.")] = None,
    checkpoints: Annotated[Names, Query(description="Variables between which the forward pass runs again.")] = None,
    loop_memory: Annotated[LoopMemory, Query(description="What loops keep for the backward pass.")] = "store",
    loop_bytes: Annotated[LoopBytes, Query()] = None,
    checkpoint_bytes: Annotated[CheckpointBytes, Query()] = None,
    trips: Annotated[Trips, Query()] = 100,
    shape: Annotated[
        Names, Query(description="Sizes of a feed that are open, as `x:32,64`.", examples=[["x:3,2"]])
    ] = None,
) -> Response:
    """Types, work, memory, what is kept for the backward pass and which op needs it, and why a gradient is missing."""
    stored = await program(request, program_id)
    asked = {
        "loss": loss,
        "parameter_list": parameter_list,
        "no_grad_set": no_grad_set or [],
        **budgeted(loop_memory, loop_bytes, checkpoints, checkpoint_bytes, trips),
    }
    query = Question.model_validate(asked).query()
    args = {"document": stored.document, "query": query, "shapes": _shapes(shape or []), "trips": trips}
    reply = await calls(request).call("analysis", args, deadline=settings(request).step_deadline)
    return Response(tensors.dumps(reply.result), media_type=JSON)


def _shapes(given: list[str]) -> dict[str, list[int]]:
    """Feed -> sizes, from ``name:2,3``. Raises HttpProblem 422."""
    found: dict[str, list[int]] = {}
    for i, each in enumerate(given):
        name, colon, sizes = each.rpartition(":")
        parts = sizes.split(",") if sizes else []
        if not colon or not name or not all(p.isascii() and p.isdigit() and len(p) < 12 for p in parts):
            wanted = "must be a name, a colon, and sizes, as in x:32,64"
            place = FieldError("", "bad_shape", wanted, parameter=f"query: shape/{i}")
            raise HttpProblem("invalid-request", "a shape cannot be read", errors=[place])
        found[name] = [int(p) for p in parts]
    return found


class CheckRequest(Strict):
    """Values for what the program reads, as with gradients; what is left out is drawn at random (integers are 0)."""

    loss: Name = Field("loss", description="A variable of one element in block 0.", examples=["loss"])
    parameter_list: list[Name] | None = Field(None, description="Parameters; all trainable ones by default.")
    feeds: Tensors = Field({})
    parameters: Tensors = Field({})
    states: Tensors = Field({})
    samples: int = Field(50, ge=1, le=10_000, description="Elements of each parameter that are tried.")
    tolerance: float | None = Field(None, gt=0, description="Relative error that passes: 1e-5 for float64, else 0.02.")
    seed: Seed = 0
    deadline_s: Deadline = None


class Checked(Strict):
    """What became of one parameter."""

    worst: list[int] = Field(description="The element at which the two differ most.")
    analytic: float | None
    numeric: float | None
    error: float | None = Field(description="Relative difference there.")
    kinks: int = Field(description="Elements at which differences to either side disagree; they are not counted.")
    checked: int
    passed: bool


class CheckAnswer(Strict):
    """Whether the gradients agree with central differences."""

    passed: bool
    parameters: dict[str, Checked]
    timing_ms: dict[str, float]


VALUES = {"loss": "loss", "feeds": REGRESSION_FEEDS, "parameters": REGRESSION_PARAMETERS}


@router.post(
    "/{program_id}/check",
    summary="Check gradients against differences",
    response_model=CheckAnswer,
    responses=responses("not-found", "invalid-program", "no-gradient", *HOT_PROBLEMS),
    openapi_extra=accepts(
        CheckRequest,
        regression=("At given values", VALUES),
        random=("At random parameters", {"loss": "loss", "feeds": REGRESSION_FEEDS, "samples": 10}),
    ),
)
async def check(request: Request, program_id: ProgramId) -> Response:
    """Compare every gradient with central differences of the loss, and report the worst element of each.

    Good for gradients of your own: a function whose `gradient` is wrong is found here.
    """
    stored = await program(request, program_id)
    body = await read_body(request, settings(request))
    asked = body.read_as(CheckRequest)
    members = {"/feeds": asked.feeds, "/parameters": asked.parameters, "/states": asked.states}
    values = await given_tensors(body, settings(request), members)
    args = {
        "query": {"loss": asked.loss, "parameter_list": asked.parameter_list},
        "samples": asked.samples,
        "tolerance": asked.tolerance,
        "seed": asked.seed,
    }
    deadline = deadline_of(asked.deadline_s, settings(request))
    reply = await calls(request).with_program("check", stored.id, stored.document, args, values, deadline=deadline)
    timing = {phase: round(ms, 3) for phase, ms in reply.timing_ms.items()}
    return Response(tensors.dumps(reply.result | {"timing_ms": timing}), media_type=JSON)
