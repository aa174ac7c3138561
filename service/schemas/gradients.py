"""One-shot gradients: requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from core.autodiff import hooks
from core.backward import query
from core.cost.budget import Budget
from core.ops.control.inner_blocks import LoopMemory
from service.schemas.components import model
from service.schemas.derived import as_core, derived, text_of
from service.schemas.members import (
    PROGRAM,
    Dtype,
    FeedValues,
    Fetched,
    GradientValues,
    ParameterValues,
    Recorded,
    Shape,
    StateValues,
    Timing,
    ValueOfLoss,
)
from service.schemas.profile import Profile
from service.schemas.programs import Program, Strict
from service.schemas.tensors import Tensor, Tensors

__all__ = [
    "CheckpointBytes",
    "Compile",
    "Deadline",
    "Fetch",
    "GradientOptions",
    "GradientsAnswer",
    "GradientsRequest",
    "InlineGradientsRequest",
    "LoopBytes",
    "LoopMemory",
    "Name",
    "ProgramDocument",
    "Question",
    "Returned",
    "Seed",
    "Trips",
    "budgeted",
]

Name = Annotated[str, Field(min_length=1, max_length=256)]
Fetch = Annotated[
    list[Name],
    Field(
        max_length=10_000,
        description="Variables of block 0 to return in addition. A state has its value after the pass.",
    ),
]
Returned = Annotated[
    Literal["none", "norms", "all"] | list[Name],
    Field(description="Gradients to return: none, only their norms, all, or those of the named variables."),
]
Seed = Annotated[
    int,
    Field(
        ge=0,
        le=2**63 - 1,
        description="Random ops draw from the seed and the step number: equal values repeat the draws.",
    ),
]
Deadline = Annotated[
    float | None,
    Field(
        gt=0,
        description="Longest duration of the call in seconds, queueing included. `GET /v1` lists the default and "
        "the maximum.",
    ),
]
Compile = Annotated[
    Literal["auto", "always", "dynamic"],
    Field(
        description="Whether the call runs machine code. `always` is for calls that are repeated: the first one with "
        "these shapes compiles the code, later ones find it in the cache of their worker. `dynamic` is for repeated "
        "calls whose feeds change their sizes: one code serves all shapes up to the next power of two of each open "
        "size, on a CPU; it takes more time for a run than the code of `always`, which runs instead where there is no "
        "such code. `auto` compiles only a call that is predicted to take longer than its compilation; others are "
        "interpreted. The results are equal up to rounding. The member has no effect on a stream of gradients, which "
        "is interpreted, or if the service has the setting `BACKPASS_COMPILE=never`.",
    ),
]
LoopBytes = Annotated[
    int | None,
    Field(ge=1, le=2**63 - 1, description=f"In place of `loop_memory`, a budget: {text_of(Budget, 'bytes')}"),
]
CheckpointBytes = Annotated[
    int | None,
    Field(ge=1, le=2**63 - 1, description=f"In place of `checkpoints`, a budget: {text_of(Budget, 'bytes')}"),
]
Trips = Annotated[int, Field(ge=0, le=10**6, description=text_of(Budget, "trips"))]
ProgramDocument = Annotated[dict[str, Any], WithJsonSchema(model(Program))]
"""Validated by the core, which reports all problems of a program at once."""


@derived(hooks.Match)
class Match(Strict):
    pass


@derived(hooks.Hook)
class Hook(Strict):
    pass


@derived(Budget)
class ByteBudget(Strict):
    pass


class LoopChoice(Strict):
    """The memory policy chosen for one loop."""

    block: int = Field(description="Block of the loop in the client's program.")
    op: int = Field(description="Position of the loop in that block.")
    function: str | None = Field(None, description="The function that has the loop; absent for the program itself.")
    memory: LoopMemory = Field(description="Treatment of the loop's residuals, as `loop_memory` of a request.")


class MemoryChoice(Strict):
    """The choice made for a memory budget."""

    bytes: int = Field(description="The budget.")
    trips: int = Field(description="Number of trips assumed for every loop.")
    predicted_peak: int = Field(description="Predicted peak bytes of the step, not counting its inputs.")
    extra_flops: int = Field(description="Floating-point operations in addition to those of storing everything.")
    loops: list[LoopChoice] = Field(description="The policy of each loop that the request gives none.")
    checkpoints: list[str] = Field(description="Variables of block 0 that are stored at the cuts.")


@derived(query.Options)
class GradientOptions(Strict):
    def options(self) -> dict[str, Any]:
        """These members as a worker reads them."""
        return as_core(self, query.Options)


@derived(query.GradientQuery)
class Question(Strict):
    def query(self) -> dict[str, Any]:
        """The members of the query, as a worker reads them."""
        return as_core(self, query.GradientQuery)


class GradientsRequest(Question):
    """Values of all variables that the program reads, and the gradients to compute.

    In a safetensors body the tensors are named after the variables (cotangents `target_gradients/0`, ...), and
    `__metadata__.request` holds these members without the tensors.
    """

    feeds: FeedValues = Field({})
    parameters: ParameterValues = Field({})
    states: StateValues = Field({})
    target_gradients: list[Tensor | None] = Field(
        [], max_length=10_000, description="The cotangent of each target; null means ones."
    )
    fetch: Fetch = Field([])
    return_gradients: Returned = "all"
    seed: Seed = 0
    step: Seed = 0
    compile: Compile = "auto"
    deadline_s: Deadline = None


class InlineGradientsRequest(GradientsRequest):
    """A program, or the id of a registered one, with the members of a request for its gradients."""

    program_id: str | None = Field(None, max_length=64, description="Id of a registered program.")
    program: Annotated[ProgramDocument | None, PROGRAM] = Field(None, validate_default=True)

    @field_validator("program")
    @classmethod
    def _one_program(cls, program: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        has_id = info.data.get("program_id") is not None
        if program is None and "program_id" in info.data and not has_id:
            raise PydanticCustomError("missing", "is missing; give it, or program_id in its place")
        if program is not None and has_id:
            raise ValueError("give either a program or program_id")
        return program


class Densified(Strict):
    """A table with sparse lookups whose gradient had to become a dense array."""

    variable: str = Field(description="The table, prefixed with the index of its block: `0:E`.")
    reason: str = Field(
        description="Reason: `dense_contribution:<op>` (an op other than a lookup reads the table), `computed_by:<op>` "
        "(the table is an output of an op), `changed_by_loop`, `other_branch`, `hook:<do>`, `clip:value`, `open_size`, "
        "`optimizer:<type>`, `weight_decay`, or an optimizer attribute whose value turns untouched rows into NaN.",
    )
    at: dict[str, Any] | None = Field(
        None, description="The op that needs the dense array: block, op, type, and function if it is inside one."
    )


class Message(Strict):
    """Output of a `print` op."""

    message: str = Field(description="The op's attribute `message`.")
    at: dict[str, int | str] | None = Field(
        None, description="The `print` op: block, op, and function if it is inside one."
    )
    dtype: Dtype
    shape: Shape
    data: list[bool | int | float | str] = Field(
        description="The first elements in row-major order; NaN and infinities as `nan`, `inf` and `-inf`."
    )


class Timed(Strict):
    """Members of every answer from a worker."""

    finite: bool = Field(description="Whether the loss, fetched values and gradients contain no NaN or infinity.")
    missing: dict[str, str] = Field({}, description="Variable -> reason why it has no gradient.")
    gradient_norms: dict[str, float | None] = Field(
        {}, description="2-norm of each gradient, and of all of them as `global`; null if it is not finite."
    )
    sparse: dict[str, list[int]] = Field(
        {},
        description="Table -> its shape, for gradients returned as rows. A file holds the row numbers as "
        "`rows/<name>`.",
    )
    densified: list[Densified] = Field(
        [], description="Tables with sparse lookups whose gradient had to become a dense array."
    )
    messages: list[Message] = Field([], description="Output of `print` ops, in order.")
    messages_left_out: int = Field(0, description="Number of messages left out because the answer was full.")
    compiled: bool = Field(
        description="Whether this call had to prepare the program for these shapes: differentiate it and, if it runs "
        "machine code, compile that. False if its worker had it ready. Sessions, long calls and calls with `compile: "
        "always` or `compile: dynamic` run machine code; other calls are interpreted."
    )
    memory: MemoryChoice | None = Field(None, description="The choice made for a budget; only if one was given.")
    profile: Profile | None = Field(None, description="Time per kernel; only with `profile=true`.")
    timing_ms: Timing


class GradientsAnswer(Timed):
    """Loss, gradients and fetched values.

    In a file: `loss`, `grad/<name>`, `fetch/<name>`, `recorded/<name>`, `state/<name>`.
    """

    loss: ValueOfLoss = None
    gradients: GradientValues = Field({})
    fetched: Fetched = Field({})
    recorded: Recorded = Field({})
    states: Tensors = Field({}, description="New values of the states that the program writes.")


def budgeted(
    loop_memory: str, loop_bytes: int | None, checkpoints: list[str] | None, checkpoint_bytes: int | None, trips: int
) -> dict[str, Any]:
    """`loop_memory` and `checkpoints` of a question, from the parameters of a query string."""
    cut = "auto" if checkpoints == ["auto"] else checkpoints or []
    return {
        "loop_memory": loop_memory if loop_bytes is None else {"bytes": loop_bytes, "trips": trips},
        "checkpoints": cut if checkpoint_bytes is None else {"bytes": checkpoint_bytes, "trips": trips},
    }
