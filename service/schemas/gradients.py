"""One-shot gradients: what is asked and what is answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, model_validator

from core.autodiff import hooks
from core.cost.budget import Budget
from core.gradients import query
from core.ops.control.inner_blocks import LoopMemory
from service.schemas.derived import as_core, derived, text_of
from service.schemas.profile import Profile
from service.schemas.programs import Strict
from service.schemas.tensors import Gradients, Tensor, Tensors

__all__ = [
    "OP",
    "PROGRAM",
    "CheckpointBytes",
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
Fetch = Annotated[list[Name], Field(max_length=10_000, description="Further variables of block 0 to return.")]
Returned = Annotated[
    Literal["none", "norms", "all"] | list[Name],
    Field(description="Which gradients go back: none, only their norms, all, or those of the named variables."),
]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1, description="What random ops draw depends on it, and on the step.")]
Deadline = Annotated[
    float | None, Field(gt=0, description="Seconds, waiting included; the service has a default and a maximum.")
]
LoopBytes = Annotated[
    int | None,
    Field(ge=1, description=f"In place of `loop_memory`, a budget: {text_of(Budget, 'bytes')}"),
]
CheckpointBytes = Annotated[
    int | None, Field(ge=1, description=f"In place of `checkpoints`, a budget: {text_of(Budget, 'bytes')}")
]
Trips = Annotated[int, Field(ge=0, le=10**6, description=text_of(Budget, "trips"))]
PROGRAM = {"type": "object", "title": "Program"}
"""Stands for the schema of programs until the OpenAPI document is put together."""
OP = {"type": "object", "title": "Op"}
"""The same for one op."""
ProgramDocument = Annotated[dict[str, Any], WithJsonSchema(PROGRAM)]
"""Read by the core, which tells all problems of a program at once."""


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
    """What one loop keeps, named by the op of the client that it stands for."""

    block: int
    op: int
    memory: LoopMemory


class MemoryChoice(Strict):
    """What was chosen for a budget."""

    bytes: int = Field(description="The budget.")
    trips: int
    predicted_peak: int = Field(description="Bytes alive at once, beside what the step is given.")
    extra_flops: int = Field(description="Floating-point operations beyond those of keeping everything.")
    loops: list[LoopChoice]
    checkpoints: list[str] = Field(description="Variables of block 0 that are kept where it is cut.")


@derived(query.Options)
class GradientOptions(Strict):
    def options(self) -> dict[str, Any]:
        """These members as a worker reads them."""
        return as_core(self, query.Options)


@derived(query.GradientQuery)
class Question(Strict):
    def query(self) -> dict[str, Any]:
        """The members that say which gradients, as a worker reads them."""
        return as_core(self, query.GradientQuery)


class GradientsRequest(Question):
    """Values for everything that the program reads, and which gradients are wanted.

    In a safetensors body the tensors stand in the file under the names of the variables (cotangents as
    `target_gradients/0`, ...), and these members, without the tensors, in `__metadata__.request`.
    """

    feeds: Tensors = Field({})
    parameters: Tensors = Field({})
    states: Tensors = Field({})
    target_gradients: list[Tensor] = Field(
        [], max_length=10_000, description="For each target its cotangent, or null for ones."
    )
    fetch: Fetch = Field([])
    return_gradients: Returned = "all"
    seed: Seed = 0
    step: Seed = 0
    deadline_s: Deadline = None


class InlineGradientsRequest(GradientsRequest):
    """The same, with the program itself or the id of a registered one."""

    program: ProgramDocument | None = None
    program_id: str | None = Field(None, max_length=64)

    @model_validator(mode="after")
    def _one_program(self) -> InlineGradientsRequest:
        if (self.program is None) == (self.program_id is None):
            raise ValueError("exactly one of program and program_id is needed")
        return self


class Densified(Strict):
    """A table whose gradient could have been rows, had something not needed it whole."""

    variable: str = Field(description="The table, with the index of its block: `0:E`.")
    reason: str = Field(
        description="`dense_contribution:<op>` (another use than a lookup), `computed_by:<op>` (no leaf), "
        "`changed_by_loop`, `other_branch`, `hook:<do>`, `clip:value`, `open_size`, `optimizer:<type>`, "
        "`weight_decay`, or an attribute of the optimizer that would make NaN of untouched rows.",
    )
    at: dict[str, Any] | None = Field(
        None, description="The op that needs it: block, op, type; function if it is in one."
    )


class Message(Strict):
    """What a `print` of the program said."""

    message: str
    at: dict[str, int | str] | None = Field(None, description="Its place: block, op; function if it is in one.")
    dtype: str
    shape: list[int]
    data: list[bool | int | float | str] = Field(
        description="The first elements in row-major order; `nan`, `inf` and `-inf` as words."
    )


class Timed(Strict):
    """What every answer from a worker says besides."""

    finite: bool = Field(description="Whether loss, fetched values and gradients are free of NaN and infinity.")
    missing: dict[str, str] = Field({}, description="Variable -> why it has no gradient.")
    gradient_norms: dict[str, float | None] = Field(
        {}, description="2-norm of each gradient and of all together (`global`); null where it is not finite."
    )
    sparse: dict[str, list[int]] = Field(
        {},
        description="Gradients that are rows of tables, with the shapes of these; in a file `rows/<name>` beside them.",
    )
    densified: list[Densified] = Field([], description="Tables with sparse lookups whose gradient could not stay rows.")
    messages: list[Message] = Field([], description="What `print` said, in order.")
    messages_left_out: int = Field(0, description="Further messages, beyond what an answer may hold.")
    compiled: bool = Field(
        description="Whether the program had to be compiled for this call; to machine code only in sessions, and where "
        "there is much to compute."
    )
    memory: MemoryChoice | None = Field(None, description="What was chosen; only there if a budget was given.")
    profile: Profile | None = Field(None, description="Where the time went; only there if it was asked for.")
    timing_ms: dict[str, float]


class GradientsAnswer(Timed):
    """Loss, gradients and more. As a file: `loss`, `grad/<name>`, `fetch/<name>`, `recorded/<name>`, `state/<name>`."""

    loss: Tensor = None
    gradients: Gradients = Field({})
    fetched: Tensors = Field({})
    recorded: Tensors = Field({}, description="What hooks recorded; inside loops one row a trip.")
    states: Tensors = Field({}, description="What the program wrote to its states.")


def budgeted(
    loop_memory: str, loop_bytes: int | None, checkpoints: list[str] | None, checkpoint_bytes: int | None, trips: int
) -> dict[str, Any]:
    """The members of a question for what a query string asks about memory."""
    cut = "auto" if checkpoints == ["auto"] else checkpoints or []
    return {
        "loop_memory": loop_memory if loop_bytes is None else {"bytes": loop_bytes, "trips": trips},
        "checkpoints": cut if checkpoint_bytes is None else {"bytes": checkpoint_bytes, "trips": trips},
    }
