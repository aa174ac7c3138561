"""Analysis of a program before it runs, and a numeric check of its gradients."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from core.backward.query import GradientQuery
from service.formats import json_tensors as tensors
from service.http.entity_tags import known_before, unchanged
from service.http.given_values import told_in_query
from service.http.request_body import JSON, read_body
from service.problems import FieldError, HttpProblem, responses
from service.routes.at_values import call_at_values, registered
from service.routes.common import LOSS
from service.routes.documented import HOT_PROBLEMS, accepts
from service.routes.named_programs import ProgramId, program
from service.routes.programs import CACHED, Names, asked_of, pieced, tag_of
from service.routes.registration import WORKER_PROBLEMS
from service.routes.state import settings
from service.schemas.derived import text_of
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
from service.schemas.members import FeedValues, OpType, ParameterValues, StateValues, Timing
from service.schemas.programs import Strict

__all__ = ["router"]

router = APIRouter(prefix="/v1/programs", tags=["programs"])


Place = Annotated[
    dict[str, Any] | None,
    Field(description="An op of the program: block, op, type, and whether it belongs to the backward pass."),
]


class Region(Strict):
    """A part of the step that is compiled as one function."""

    ops: int = Field(description="Number of ops in it, inside loops and branches too.")
    arena_bytes: int = Field(description="Bytes of intermediate arrays, not counting arguments, results and stacks.")
    stacks: int = Field(description="Number of values that loops record. Their memory grows with the trips.")
    record_bytes: int = Field(description="Bytes of recorded values if each loop makes `trips` trips.")
    first: Place
    last: Place


class Interpreted(Strict):
    """Ops of one type that are interpreted, that is, run one by one."""

    type: OpType
    reason: str = Field(description="Reason why they are not compiled. For a loop or branch it names the op inside.")
    of: Place
    count: int = Field(description="Number of these ops.")
    ops: int = Field(description="Number of these ops and of all ops inside them.")


class MachineCode(Strict):
    """The compiled and interpreted parts of the step."""

    ops: dict[str, int] = Field(description="Number of `compiled` and of `interpreted` ops, in all blocks.")
    peak_bytes: int = Field(
        description="Peak bytes of a step: memory of its regions, their results, and arrays of the interpreted ops."
    )
    regions: list[Region] = Field(description="Compiled parts, in the order they run.")
    interpreted: list[Interpreted] = Field(description="Ops that are not compiled, by type and reason.")


class Analysis(Strict):
    """Work and memory of a step, computed without running it. Memory is in bytes. An unknown size counts as 1."""

    types: list[dict[str, Any]] = Field(description="Every variable with its type, block by block.")
    ops: dict[str, dict[str, int]] = Field(description="Number of ops in block 0 by type, forward and backward.")
    flops: dict[str, Any] = Field(description="Floating-point operations of a step, in total and by op.")
    memory: dict[str, Any] = Field(
        description="Predicted peak, the arrays alive at the peak, the peak for each `loop_memory`, and the "
        "choice made "
        "for a budget."
    )
    open_sizes: list[str] = Field(description="Feeds with unknown sizes; give these with the parameter `shape`.")
    kept: list[dict[str, Any]] = Field(description="Residuals: forward values with the backward ops that read them.")
    contributions: dict[str, list[dict[str, Any]]] = Field(description="The contributions added up to each gradient.")
    ready_at: dict[str, int] = Field(description="Gradient -> position of the op in block 0 that completes it.")
    missing: dict[str, dict[str, Any]] = Field(
        description="Variable without a gradient -> the reason, and the op where its path to the loss ends."
    )
    densified: list[Densified] = Field(
        description="Tables with sparse lookups whose gradient has to become a dense array. Steps report "
        "the tables that an optimizer makes dense."
    )
    machine_code: MachineCode | None = Field(
        description="Compiled and interpreted parts. Null if the service never compiles, or if an unknown size cannot "
        "be 1."
    )


@router.get(
    "/{program_id}/analysis",
    summary="Analyse a program",
    response_model=Analysis,
    responses={
        304: {"description": "The analysis is that of If-None-Match."},
        **responses(
            "not-found", "invalid-program", "no-gradient", "shape-mismatch", "invalid-request", *WORKER_PROBLEMS
        ),
    },
)
async def get_program_analysis(
    request: Request,
    program_id: ProgramId,
    loss: Annotated[Name, Query(description=text_of(GradientQuery, "loss"), openapi_examples=LOSS)],
    parameter_list: Annotated[Names, Query(description=text_of(GradientQuery, "parameter_list"))] = None,
    no_grad_set: Annotated[Names, Query(description=text_of(GradientQuery, "no_grad_set"))] = None,
    checkpoints: Annotated[Names, Query(description=text_of(GradientQuery, "checkpoints"))] = None,
    loop_memory: Annotated[LoopMemory, Query(description=text_of(GradientQuery, "loop_memory"))] = "store",
    loop_bytes: Annotated[LoopBytes, Query()] = None,
    checkpoint_bytes: Annotated[CheckpointBytes, Query()] = None,
    trips: Annotated[Trips, Query()] = 100,
    shape: Annotated[
        list[str] | None,
        Query(max_length=1000, description="Shape of a feed with unknown sizes, as `x:32,64`.", examples=[["x:3,2"]]),
    ] = None,
) -> Response:
    """Types, work, peak memory, residuals, reasons of missing gradients, and the parts that are compiled."""
    stored = await program(request, program_id)
    asked = {
        "loss": loss,
        "parameter_list": parameter_list,
        "no_grad_set": no_grad_set or [],
        **budgeted(loop_memory, loop_bytes, checkpoints, checkpoint_bytes, trips),
    }
    query = Question.model_validate(asked).query()
    tag = tag_of(request)
    if (known := known_before(request, tag, CACHED)) is not None:
        return known
    shapes = _shapes(shape or [])
    with told_in_query("shape", shapes):
        answer = await asked_of(request, "analysis", stored.program, {"query": query, "shapes": shapes, "trips": trips})
    return unchanged(request, tag, "program", CACHED) or pieced([answer.data], headers={"ETag": tag, **CACHED})


DIGITS = 12  # of a size that is too large for every array


def _shapes(given: list[str]) -> dict[str, list[int]]:
    """Feed -> sizes, from ``name:2,3``. Raises HttpProblem 422."""
    found: dict[str, list[int]] = {}
    for i, each in enumerate(given):
        name, colon, sizes = each.rpartition(":")
        parts = sizes.split(",") if sizes else []
        if not colon or not name or not all(p.isascii() and p.isdigit() and len(p) < DIGITS for p in parts):
            wanted = "must be a name, a colon and sizes, as in x:32,64"
            if any(p.isascii() and p.isdigit() and len(p) >= DIGITS for p in parts):
                wanted = "a size is too large"
            place = FieldError("", "bad_shape", wanted, parameter=f"query: shape/{i}")
            raise HttpProblem("invalid-request", "the query parameter shape is not valid", errors=[place])
        found[name] = [int(p) for p in parts]
    return found


class CheckRequest(Strict):
    """Values of variables. Missing values are drawn at random; missing integers are 0."""

    loss: Name = Field("loss", description=text_of(GradientQuery, "loss"), examples=["loss"])
    parameter_list: list[Name] | None = Field(None, description="Parameters to check; by default all trainable ones.")
    feeds: FeedValues = Field({})
    parameters: ParameterValues = Field({})
    states: StateValues = Field({})
    samples: int = Field(50, ge=1, le=10_000, description="Number of elements to check in each parameter.")
    tolerance: float | None = Field(
        None, gt=0, description="Largest relative error that passes; by default 1e-5 for float64, else 0.02."
    )
    seed: Seed = 0
    deadline_s: Deadline = None


class Checked(Strict):
    """The check of one parameter."""

    worst: list[int] = Field(description="Index of the element with the largest error.")
    analytic: float | None = Field(description="Gradient of that element from the backward pass; null if not finite.")
    numeric: float | None = Field(description="Gradient of that element from central differences; null if not finite.")
    error: float | None = Field(description="Relative error of that element; null if not finite.")
    kinks: int = Field(description="Number of elements left out because the differences to the two sides disagree.")
    checked: int = Field(description="Number of elements checked.")
    passed: bool = Field(description="Whether its error is within the tolerance.")


class CheckAnswer(Strict):
    """The comparison of gradients with central differences."""

    passed: bool = Field(description="Whether the check of every parameter passed.")
    parameters: dict[str, Checked] = Field(description="The check of each parameter, by name.")
    timing_ms: Timing


VALUES = {"loss": "loss", "feeds": REGRESSION_FEEDS, "parameters": REGRESSION_PARAMETERS}


@router.post(
    "/{program_id}/check",
    summary="Check gradients numerically",
    response_model=CheckAnswer,
    responses=responses("not-found", "invalid-program", "no-gradient", *HOT_PROBLEMS),
    openapi_extra=accepts(
        CheckRequest,
        regression=("At given values", VALUES),
        random=("At random parameters", {"loss": "loss", "feeds": REGRESSION_FEEDS, "samples": 10}),
    ),
)
async def check_program(request: Request, program_id: ProgramId) -> Response:
    """Compare every gradient with central differences of the loss, and report the worst element of each.

    Use it to test functions with a gradient of your own.
    """
    stored = await program(request, program_id)
    body = await read_body(request, settings(request))
    asked = body.read_as(CheckRequest)
    args = {
        "query": {"loss": asked.loss, "parameter_list": asked.parameter_list},
        "samples": asked.samples,
        "tolerance": asked.tolerance,
        "seed": asked.seed,
    }
    call = await call_at_values(request, registered(stored), "check", body, asked, lambda names: args)
    reply = await call.reply()
    timing = {phase: round(ms, 3) for phase, ms in reply.timing_ms.items()}
    return Response(tensors.dumps(reply.result | {"timing_ms": timing}), media_type=JSON)
