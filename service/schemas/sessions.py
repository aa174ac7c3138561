"""Sessions: what is asked and what is answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from core.optim import clipping, loss_scaling
from service.schemas.derived import as_core, derived
from service.schemas.gradients import (
    Deadline,
    Densified,
    Fetch,
    GradientOptions,
    Name,
    ProgramDocument,
    Returned,
    Seed,
    Timed,
)
from service.schemas.programs import Strict
from service.schemas.tensors import Gradients, Tensor, Tensors

__all__ = [
    "CreateSession",
    "EvaluationAnswer",
    "EvaluationRequest",
    "ParametersAnswer",
    "PutParameters",
    "SessionGradientsAnswer",
    "SessionGradientsRequest",
    "SessionPage",
    "SessionView",
    "StepAnswer",
    "StepRequest",
    "UpdateAnswer",
    "UpdateRequest",
    "VersionAnswer",
]

Number = bool | int | float


def none_given(kind: type[dict] | type[list]) -> Any:
    """The default of a member that may be left out. `Field({})` says the same, but is copied with `copy.deepcopy` for
    each request, which takes longer than all the rest of the validation.
    """
    return Field(default_factory=kind, json_schema_extra={"default": kind()})


Seq = Annotated[
    int | None,
    Field(ge=1, le=2**53, description="1, 2, 3, ...; sent again with the same body, it is answered again, not done."),
]
Version = Annotated[str, Field(description="Changes with the parameters; the same as the ETag.", examples=["e1.v1"])]


class Init(Strict):
    """The first parameters and states: given, or drawn. Those that are not named get a default."""

    seed: Seed = 0
    parameters: Tensors = Field({}, description="Parameters and states by name.")
    initializers: dict[str, dict[str, str | int | float]] = Field(
        {},
        description="Name -> type and attributes. By default glorot_uniform for two axes or more, else zeros.",
        examples=[{"w": {"type": "normal", "std": 0.02}}],
    )

    @classmethod
    def empty(cls) -> Init:
        return cls.model_validate({})


@derived(clipping.Clip)
class Clip(Strict):
    pass


@derived(loss_scaling.LossScale)
class LossScale(Strict):
    pass


class CreateSession(GradientOptions):
    """A program to train. In a safetensors body the tensors of the file are the first parameters."""

    program_id: str | None = Field(None, max_length=64)
    program: ProgramDocument | None = None
    loss: Name = Field(examples=["loss"])
    parameter_list: list[Name] | None = Field(None, description="What is trained; all trainable ones by default.")
    optimizer: dict[str, str | Number | dict[str, Any]] = Field(
        {"type": "sgd"},
        description="type (see `GET /v1/ops`: sgd, momentum, adam, adamw, ...), and its attributes. In place of a "
        'number, `learning_rate` may be a schedule: `{"schedule": "cosine_decay", "learning_rate": 0.1, ...}`.',
        examples=[{"type": "adam", "learning_rate": 0.001}],
    )
    clip: Clip | None = Field(None, description="A bound on gradients, between backward pass and optimizer.")
    clip_norm: float | None = Field(
        None, gt=0, description='Most joint 2-norm of all gradients in an update: short for a clip by "global_norm".'
    )
    loss_scale: Annotated[float, Field(gt=0)] | Literal["dynamic"] | LossScale | None = Field(
        None,
        description="For gradients that float16 would round to zero: a number that stays, or one that is found on the "
        "way. A step whose gradients overflow is skipped.",
    )
    init: Init = Field(default_factory=Init.empty)
    lease_s: float | None = Field(None, gt=0, description="Seconds without a call after which it is closed.")
    deadline_s: Deadline = None

    @model_validator(mode="after")
    def _one_program(self) -> CreateSession:
        if (self.program is None) == (self.program_id is None):
            raise ValueError("exactly one of program and program_id is needed")
        if self.clip is not None and self.clip_norm is not None:
            raise ValueError("clip_norm is short for a clip: give only one of the two")
        return self

    def clipping(self) -> dict[str, Any] | None:
        """The bound on gradients as a worker reads it."""
        if self.clip_norm is not None:
            return {"by": "global_norm", "max_norm": self.clip_norm}
        return as_core(self.clip, clipping.Clip) if self.clip else None

    def scaling(self) -> Any:
        """The loss scale as a worker reads it."""
        return self.loss_scale.model_dump() if isinstance(self.loss_scale, LossScale) else self.loss_scale

    def query(self) -> dict[str, Any]:
        """The members that a worker needs to know what is asked."""
        return {"loss": self.loss, "parameter_list": self.parameter_list} | self.options()


class StepRequest(Strict):
    """Feeds for one step. In a safetensors body they are the tensors of the file."""

    seq: Seq = None
    feeds: Tensors = none_given(dict)
    fetch: Fetch = none_given(list)
    return_gradients: Returned = "none"
    require_finite: bool = Field(
        False,
        description="Refuse a step with NaN or infinity, and leave the session be. With a loss scale, gradients that "
        "overflow skip the step instead.",
    )
    deadline_s: Deadline = None


class SessionGradientsRequest(Strict):
    """Feeds; gradients at the present parameters come back, and nothing changes."""

    feeds: Tensors = none_given(dict)
    fetch: Fetch = none_given(list)
    return_gradients: Returned = "all"
    deadline_s: Deadline = None


class UpdateRequest(Strict):
    """Gradients by parameter; in a safetensors body `grad/<parameter>`, just as they are answered, or the bare name.

    Those of tables may be rows; in a safetensors body `rows/<parameter>` says which.
    """

    seq: Seq = None
    gradients: Gradients = none_given(dict)
    require_finite: bool = Field(False, description="Refuse gradients with NaN or infinity.")
    deadline_s: Deadline = None


class EvaluationRequest(Strict):
    """Feeds that the fetched values need; the loss is fetched when nothing is named."""

    feeds: Tensors = none_given(dict)
    fetch: Fetch = none_given(list)
    deadline_s: Deadline = None


class PutParameters(Strict):
    """New values of parameters and states; those that are not named stay."""

    parameters: Tensors = Field({})
    states: Tensors = Field({})


class SessionView(Strict):
    """A session."""

    id: str
    state: Literal["ready", "busy", "lost"]
    reason: str | None = Field(None, description="Why it was lost.")
    program_id: str
    loss: str
    optimizer: dict[str, Any]
    worker: str
    step: int = Field(description="Updates done.")
    next_seq: int
    weights_version: Version
    bytes: int = Field(description="Of parameters and states.")
    created: float = Field(description="Seconds since 1970.")
    lease_s: float
    lease_left_s: float


class SessionPage(Strict):
    """One page of sessions."""

    sessions: list[SessionView]
    next_page_token: str | None = None


class VersionAnswer(Strict):
    """Which version is there now."""

    step: int
    weights_version: Version
    timing_ms: dict[str, float]


class StepAnswer(Timed):
    """What the step gave, before its update."""

    loss_scale: float | None = Field(None, description="What the loss was multiplied by, if anything.")
    skipped: bool = Field(False, description="Whether gradients overflowed, so that nothing but the scale changed.")

    seq: int
    next_seq: int
    step: int
    weights_version: Version
    loss: Tensor = None
    fetched: Tensors = Field({})
    gradients: Gradients = Field({})
    recorded: Tensors = Field({})


class SessionGradientsAnswer(Timed):
    """Loss, gradients and fetched values at `weights_version`."""

    step: int
    weights_version: Version
    loss: Tensor = None
    fetched: Tensors = Field({})
    gradients: Gradients = Field({})
    recorded: Tensors = Field({})


class UpdateAnswer(Strict):
    """Where the session is after the update."""

    seq: int
    next_seq: int
    step: int
    weights_version: Version
    densified: list[Densified] = Field([], description="Tables whose rows the optimizer needed as a whole table.")
    compiled: bool
    timing_ms: dict[str, float]


class EvaluationAnswer(Timed):
    """The fetched values at `weights_version`."""

    step: int
    weights_version: Version
    fetched: Tensors = Field({})


class ParametersAnswer(VersionAnswer):
    """Parameters and states. As a file they stand under their names; `states` in its metadata tells which is which."""

    parameters: Tensors = Field({})
    states: Tensors = Field({})
