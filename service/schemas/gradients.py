"""One-shot gradients: what is asked and what is answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, model_validator

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
LoopMemory = Literal["store", "recompute", "sqrt", "binomial"]
LoopBytes = Annotated[
    int | None,
    Field(ge=1, description="In place of `loop_memory`: most bytes alive at once; each loop gets its own."),
]
CheckpointBytes = Annotated[
    int | None, Field(ge=1, description="In place of `checkpoints`: most bytes alive at once, by which block 0 is cut.")
]
Trips = Annotated[int, Field(ge=0, le=10**6, description="How often every loop is taken to run.")]
PROGRAM = {"type": "object", "title": "Program"}
"""Stands for the schema of programs until the OpenAPI document is put together."""
OP = {"type": "object", "title": "Op"}
"""The same for one op."""
ProgramDocument = Annotated[dict[str, Any], WithJsonSchema(PROGRAM)]
"""Read by the core, which tells all problems of a program at once."""


class Match(Strict):
    """Which gradients a hook is about: exactly one of the three."""

    variable: Name | None = Field(None, description="A name of block 0, or `1:h` for one of block 1.")
    op: Name | None = Field(None, description="What ops of this type write, in every block.")
    role: Literal["parameter", "feed", "state"] | None = None


class Hook(Strict):
    """What is done to gradients while they are computed."""

    match: Match
    do: Literal["clip_value", "clip_norm", "scale", "check_finite", "record"]
    when: Literal["after_accumulation", "each_contribution"] = "after_accumulation"
    min: float | None = Field(None, description="With clip_value.")
    max: float | None = Field(None, description="With clip_value.")
    max_norm: float | None = Field(None, gt=0, description="With clip_norm.")
    factor: float | None = Field(None, description="With scale.")


class ByteBudget(Strict):
    """Most bytes that a step may have alive at once, beside what it is given, by prediction.

    Every loop is taken to run `trips` times; loops that run longer take more. Of what can be kept or run again, the
    choice with the least extra work that fits is made, and told. A budget that nothing fits is refused, with the
    smallest peak there is.
    """

    bytes: int = Field(ge=1, le=2**63 - 1)
    trips: Trips = 100


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


class GradientOptions(Strict):
    """How gradients are computed, whichever are asked for."""

    no_grad_set: list[Name] = Field([], description="Variables through which nothing flows.")
    unconnected: Literal["null", "zeros", "error"] = Field(
        "null", description="What stands for a gradient that does not exist; null: it is told under `missing`."
    )
    hooks: list[Hook] = Field([], max_length=1000, description="What is done to gradients on the way.")
    checkpoints: list[Name] | Literal["auto"] | ByteBudget = Field(
        [],
        description="Variables between which the forward pass runs again instead of being kept; `1:h` in a block. "
        "With a budget, as much of the front of block 0 as needed is cut into segments that run again.",
        examples=[["h"], "auto", {"bytes": 100_000_000}],
    )
    loop_memory: LoopMemory | ByteBudget = Field(
        "store",
        description="What loops keep for the backward pass that do not say so themselves; with a budget, each its own.",
        examples=["sqrt", {"bytes": 100_000_000, "trips": 500}],
    )

    def options(self) -> dict[str, Any]:
        """These members as a worker reads them."""
        members = {name: getattr(self, name) for name in GradientOptions.model_fields}
        budgets = {name: v.model_dump() for name, v in members.items() if isinstance(v, ByteBudget)}
        return members | budgets | {"hooks": [hook.model_dump(exclude_none=True) for hook in self.hooks]}


class Question(GradientOptions):
    """Which gradients: of a scalar `loss` by parameters, or of `targets` by `inputs`."""

    loss: Name | None = Field(None, description="A variable of one element in block 0.", examples=["loss"])
    parameter_list: list[Name] | None = Field(None, description="Parameters; all trainable ones by default.")
    targets: list[Name] = Field([], description="In place of a loss: variables of any shape.")
    inputs: list[Name] = Field([], description="With targets: what to differentiate by.")

    def query(self) -> dict[str, Any]:
        """The members that a worker needs to know what is asked."""
        return {name: getattr(self, name) for name in ("loss", "parameter_list", "targets", "inputs")} | self.options()


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
