"""Sessions: answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from service.schemas.gradients import Densified, Timed
from service.schemas.programs import Strict
from service.schemas.sessions import RATE
from service.schemas.tensors import Gradients, Tensor, Tensors

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
    str, Field(description="Version of the parameters, states and settings, as in the ETag.", examples=["e1.v1"])
]
DurableStep = Annotated[
    int | None,
    Field(description="Step that a loss of the worker or of the service cannot undo; null with the durability `none`."),
]


class SessionView(Strict):
    """A session."""

    id: str
    state: Literal["ready", "busy", "parked", "lost"] = Field(
        description="parked: in no worker; the next call moves it into one. lost: its values are gone."
    )
    reason: str | None = Field(None, description="Reason of the loss.")
    program_id: str
    loss: str | None
    targets: list[str] = Field([], description="The targets of a session without a loss.")
    optimizer: dict[str, Any]
    worker: str | None = Field(description="Id of the worker that holds the session; null if it is parked.")
    durability: Literal["journal", "checkpoint", "none"]
    step: int = Field(description="Number of updates so far.")
    durable_step: DurableStep
    next_seq: int = Field(description="`seq` of the next call that changes the session.")
    accumulated: Accumulated
    weights_version: Version
    bytes: int = Field(description="Size of parameters and states.")
    created: float = Field(description="Seconds since 1970.")
    lease_s: float = Field(description="Idle seconds after which the session is closed.")
    lease_left_s: float = Field(description="Seconds left until then.")


class SessionPage(Strict):
    """One page of sessions."""

    sessions: list[SessionView]
    next_page_token: str | None = Field(None, description="`page_token` of the next page; null on the last one.")


class Position(Strict):
    """The position of the session after the call."""

    step: int
    weights_version: Version
    accumulated: Accumulated = 0
    durable_step: DurableStep = None


class Warned(Strict):
    """A model that may learn nothing."""

    code: Literal["zero-gradients"]
    detail: str
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
    detail: str
    location: dict[str, Any] | None = Field(
        None, description="Position in the program: block, op, type, slot, variable."
    )
    batch: int = Field(description="Number of the batch that failed, from 0.")


class VersionAnswer(Position):
    """The version of the parameters after the call."""

    timing_ms: dict[str, float]


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
    seq: int
    next_seq: int
    loss: Tensor | None = None
    fetched: Tensors = Field({})
    gradients: Gradients = Field({})
    recorded: Tensors = Field({})


class SessionGradientsAnswer(Checked, Position):
    """Loss, gradients and fetched values at `weights_version`."""

    seq: int | None = Field(None, description="Number of the call; only with `accumulate`.")
    next_seq: int | None = None
    loss: Tensor | None = None
    fetched: Tensors = Field({})
    gradients: Gradients = Field({})
    recorded: Tensors = Field({})


class UpdateAnswer(Position):
    """The position of the session after the update."""

    seq: int
    next_seq: int
    learning_rate: UsedRate = None
    loss_scale: float | None = Field(None, description="Factor of the loss; only for accumulated gradients.")
    skipped: bool = Field(False, description="Whether the update was skipped because gradients overflowed.")
    densified: list[Densified] = Field([], description="Tables whose gradient the optimizer needed as a dense array.")
    compiled: bool = Field(description="Whether this call compiled the update.")
    timing_ms: dict[str, float]


class EvaluationAnswer(Timed, Position):
    """The fetched values at `weights_version`."""

    fetched: Tensors = Field({})


class ParametersAnswer(VersionAnswer):
    """Parameters and states.

    In a file the tensors have the names of the variables, and `states` in the metadata lists those that are states.
    """

    parameters: Tensors = Field({})
    states: Tensors = Field({})
