"""Sessions: answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from service.schemas.gradients import Densified, Timed
from service.schemas.members import (
    Created,
    Durability,
    Fetched,
    GradientValues,
    LossName,
    NextPage,
    ParameterValues,
    Recorded,
    StateValues,
    Step,
    Targets,
    Timing,
    ValueOfLoss,
)
from service.schemas.programs import Strict
from service.schemas.sessions import OPTIMIZER, RATE

__all__ = [
    "EvaluationAnswer",
    "ParametersAnswer",
    "Position",
    "SessionGradientsAnswer",
    "SessionPage",
    "SessionView",
    "StepAnswer",
    "UpdateAnswer",
    "VersionAnswer",
]

UsedRate = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                *RATE["anyOf"],
                {"type": "array", "items": {"type": "number"}},
                {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}},
                {"type": "null"},
            ]
        }
    ),
    Field(
        description="Learning rate of the update; group -> rate if the optimizer has groups; with `batches` a list "
        "of the rates of the steps. Null for a group that no gradient belongs to."
    ),
]
Accumulated = Annotated[int, Field(description="Number of gradients that wait for an update with their sum.")]
Version = Annotated[
    str,
    Field(description="Version of the parameters, states and settings. The ETag begins with it.", examples=["e1.v1"]),
]
NextSeq = Annotated[int, Field(description="`seq` of the next call that changes the session.")]
DurableStep = Annotated[
    int | None,
    Field(description="Step that a loss of the worker or of the service cannot undo; null with the durability `none`."),
]


SetOptimizer = Annotated[
    dict[str, Any],
    WithJsonSchema(OPTIMIZER),
    Field(description="The optimizer of the session, with the attributes that the client has set."),
]


class SessionView(Strict):
    """A session."""

    id: str = Field(description="Id of the session.")
    state: Literal["ready", "busy", "parked", "lost"] = Field(
        description="ready: waits for a call. busy: a call runs. parked: in no worker; the next call moves it into "
        "one. lost: its values are gone."
    )
    reason: str | None = Field(None, description="Reason of the loss; null unless the session is lost.")
    program_id: str = Field(description="Id of the program that the session trains.")
    loss: LossName
    targets: Targets = Field([])
    optimizer: SetOptimizer
    worker: str | None = Field(description="Id of the worker that holds the session; null if it is parked.")
    durability: Durability
    step: Step
    durable_step: DurableStep
    next_seq: NextSeq
    accumulated: Accumulated
    weights_version: Version
    bytes: int = Field(description="Size of parameters and states, in bytes.")
    created: Created
    lease_s: float = Field(description="Idle seconds after which the session is closed.")
    lease_left_s: float = Field(description="Idle seconds left until the session is closed.")


class SessionPage(Strict):
    """One page of sessions."""

    sessions: list[SessionView] = Field(description="Sessions, the newest first.")
    next_page_token: NextPage = None


class Position(Strict):
    """The position of the session after the call."""

    step: Step
    weights_version: Version
    accumulated: Accumulated = 0
    durable_step: DurableStep = None


class Warned(Strict):
    """A model that may learn nothing."""

    code: Literal["zero-gradients"] = Field(description="The kind of warning.")
    detail: str = Field(description="The warning as a sentence, for people.")
    parameters: list[str] = Field(description="Parameters whose gradient is exactly zero, at most 100.")


class Checked(Timed):
    """Members of answers with gradients."""

    warnings: list[Warned] = Field(
        [],
        description="Gradients that are exactly zero: any of them in the first step; later, where the answer has "
        "norms, if all are zero.",
    )


class Stopped(Strict):
    """The reason why the last steps of a call were not taken."""

    code: str = Field(description="Code of the problem that the failed step alone would have had.")
    reason: str = Field(description="The cause, as in a problem: `index-out-of-range`, for example.")
    detail: str = Field(description="The cause as a sentence, for people.")
    location: dict[str, Any] | None = Field(
        None, description="Position in the program: block, op, type, slot, variable."
    )
    batch: int = Field(description="Number of the batch that failed, from 0.")


class VersionAnswer(Position):
    """The version of the parameters after the call."""

    timing_ms: Timing


class StepAnswer(Checked, Position):
    """Loss, fetched values and gradients of the step, from before its update.

    With `batches`, tensors have a leading axis of steps, and the learning rate, the norms and the members of a loss
    scale are lists with a value for each step.
    """

    gradient_norms: dict[str, float | list[float | None] | None] = Field(  # type: ignore[assignment]
        {}, description="2-norm of each gradient, and of all of them as `global`; null if it is not finite."
    )
    loss_scale: float | list[float] | None = Field(
        None, description="Factor of the loss in this step; null without a loss scale."
    )
    skipped: bool | list[bool] = Field(
        False, description="Whether the update was skipped because gradients overflowed."
    )
    learning_rate: UsedRate = None
    applied: int = Field(1, description="Number of steps taken. Below `batches` if a step failed after others.")
    stopped: Stopped | None = Field(None, description="The failure of a step after others; these stay applied.")
    seq: int = Field(description="Number of the call, given or counted by the service.")
    next_seq: NextSeq
    loss: ValueOfLoss = None
    fetched: Fetched = Field({})
    gradients: GradientValues = Field({})
    recorded: Recorded = Field({})


class SessionGradientsAnswer(Checked, Position):
    """Loss, gradients and fetched values at `weights_version`."""

    seq: int | None = Field(None, description="Number of the call; only with `accumulate`.")
    next_seq: int | None = Field(None, description="`seq` of the next such call; only with `accumulate`.")
    loss: ValueOfLoss = None
    fetched: Fetched = Field({})
    gradients: GradientValues = Field({})
    recorded: Recorded = Field({})


class UpdateAnswer(Position):
    """The position of the session after the update."""

    seq: int = Field(description="Number of the call, given or counted by the service.")
    next_seq: NextSeq
    learning_rate: UsedRate = None
    loss_scale: float | None = Field(None, description="Factor of the loss; only for accumulated gradients.")
    skipped: bool = Field(False, description="Whether the update was skipped because gradients overflowed.")
    densified: list[Densified] = Field([], description="Tables whose gradient the optimizer needed as a dense array.")
    compiled: bool = Field(description="Whether this call compiled the update.")
    timing_ms: Timing


class EvaluationAnswer(Timed, Position):
    """The fetched values at `weights_version`."""

    fetched: Fetched = Field({})


class ParametersAnswer(VersionAnswer):
    """Parameters and states.

    In a file the tensors have the names of the variables, and `states` in the metadata lists those that are states.
    """

    parameters: ParameterValues = Field({})
    states: StateValues = Field({})
