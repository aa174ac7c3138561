"""Sessions: requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from core.backward.query import GradientQuery
from core.optim import clipping, loss_scaling
from service.schemas.derived import as_core, derived, text_of
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
    """The default of an optional member. `Field({})` means the same, but pydantic copies that default with
    `copy.deepcopy` for each request, which takes longer than the rest of the validation.
    """
    return Field(default_factory=kind, json_schema_extra={"default": kind()})


Seq = Annotated[
    int | None,
    Field(
        ge=1,
        le=2**53,
        description="Number of the call: 1, 2, 3, ... A call sent again with the same number "
        "and body is not repeated: it gets the "
        "stored answer.",
    ),
]
Version = Annotated[str, Field(description="Version of the parameters and states, as in the ETag.", examples=["e1.v1"])]


class Init(Strict):
    """Initial parameters and states: given as tensors, or drawn by an initializer."""

    seed: Seed = 0
    parameters: Tensors = Field({}, description="Values of parameters and states by name.")
    initializers: dict[str, dict[str, str | int | float]] = Field(
        {},
        description="Name -> type of the initializer and its attributes. By default `glorot_uniform` for "
        "parameters of two or more "
        "axes, else `zeros`.",
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
    """A program to train. In a safetensors body the tensors are the initial parameters and states."""

    program_id: str | None = Field(None, max_length=64, description="Id of a registered program.")
    program: ProgramDocument | None = None
    loss: Name = Field(description=text_of(GradientQuery, "loss"), examples=["loss"])
    parameter_list: list[Name] | None = Field(None, description="Parameters to train; by default all trainable ones.")
    optimizer: dict[str, str | Number | dict[str, Any]] = Field(
        {"type": "sgd"},
        description="The type of the optimizer (sgd, momentum, adam, adamw, ...; see `GET /v1/ops`) and its "
        "attributes. "
        '`learning_rate` is a number or a schedule: `{"schedule": "cosine_decay", "learning_rate": 0.1, ...}`.',
        examples=[{"type": "adam", "learning_rate": 0.001}],
    )
    clip: Clip | None = Field(None, description="A bound on gradients between the backward pass and the optimizer.")
    clip_norm: float | None = Field(
        None, gt=0, description='Short for the clip `{"by": "global_norm", "max_norm": <clip_norm>}`.'
    )
    loss_scale: Annotated[float, Field(gt=0)] | Literal["dynamic"] | LossScale | None = Field(
        None,
        description="Factor of the loss that keeps small float16 gradients from rounding to zero: a constant, "
        "`dynamic`, "
        "or an object. A step whose gradients overflow is skipped.",
    )
    init: Init = Field(default_factory=Init.empty)
    lease_s: float | None = Field(
        None,
        gt=0,
        description="Idle seconds after which the session is closed. `GET /v1` lists the default and the maximum.",
    )
    deadline_s: Deadline = None

    @model_validator(mode="after")
    def _one_program(self) -> CreateSession:
        if (self.program is None) == (self.program_id is None):
            raise ValueError("give exactly one of program and program_id")
        if self.clip is not None and self.clip_norm is not None:
            raise ValueError("clip_norm is short for a clip: give only one of them")
        return self

    def clipping(self) -> dict[str, Any] | None:
        """The clip as a worker reads it."""
        if self.clip_norm is not None:
            return {"by": "global_norm", "max_norm": self.clip_norm}
        return as_core(self.clip, clipping.Clip) if self.clip else None

    def scaling(self) -> Any:
        """The loss scale as a worker reads it."""
        return self.loss_scale.model_dump() if isinstance(self.loss_scale, LossScale) else self.loss_scale

    def query(self) -> dict[str, Any]:
        """The members of the query, as a worker reads them."""
        return {"loss": self.loss, "parameter_list": self.parameter_list} | self.options()


class StepRequest(Strict):
    """Feeds of one training step. In a safetensors body they are the tensors of the file."""

    seq: Seq = None
    feeds: Tensors = none_given(dict)
    fetch: Fetch = none_given(list)
    return_gradients: Returned = "none"
    require_finite: bool = Field(
        False,
        description="Refuse a step whose loss, gradients or fetched values contain NaN or infinity; the session "
        "does not "
        "change. With a dynamic loss scale, gradients that overflow skip the step instead.",
    )
    deadline_s: Deadline = None


class SessionGradientsRequest(Strict):
    """Feeds of a gradient computation at the current parameters; the session does not change."""

    feeds: Tensors = none_given(dict)
    fetch: Fetch = none_given(list)
    return_gradients: Returned = "all"
    deadline_s: Deadline = None


class UpdateRequest(Strict):
    """Gradients to apply. In a safetensors body they are named `grad/<parameter>`, as in answers, or `<parameter>`.

    Gradients of tables may be rows; a safetensors body holds the row numbers as `rows/<parameter>`.
    """

    seq: Seq = None
    gradients: Gradients = none_given(dict)
    require_finite: bool = Field(False, description="Refuse gradients that contain NaN or infinity.")
    deadline_s: Deadline = None


class EvaluationRequest(Strict):
    """Feeds of a forward pass, and the variables to fetch; the loss if none is named."""

    feeds: Tensors = none_given(dict)
    fetch: Fetch = none_given(list)
    deadline_s: Deadline = None


class PutParameters(Strict):
    """New values of parameters and states. The others keep their values."""

    parameters: Tensors = Field({}, description="Values of parameters by name.")
    states: Tensors = Field({}, description="Values of states by name.")


class SessionView(Strict):
    """A session."""

    id: str
    state: Literal["ready", "busy", "lost"] = Field(description="lost: the worker that held the session ended.")
    reason: str | None = Field(None, description="Reason of the loss.")
    program_id: str
    loss: str
    optimizer: dict[str, Any]
    worker: str = Field(description="Id of the worker that holds the session.")
    step: int = Field(description="Number of updates so far.")
    next_seq: int = Field(description="`seq` of the next step or update.")
    weights_version: Version
    bytes: int = Field(description="Size of parameters and states.")
    created: float = Field(description="Seconds since 1970.")
    lease_s: float = Field(description="Idle seconds after which the session is closed.")
    lease_left_s: float = Field(description="Seconds left until then.")


class SessionPage(Strict):
    """One page of sessions."""

    sessions: list[SessionView]
    next_page_token: str | None = Field(None, description="`page_token` of the next page; null on the last one.")


class VersionAnswer(Strict):
    """The version of the parameters after the call."""

    step: int
    weights_version: Version
    timing_ms: dict[str, float]


class StepAnswer(Timed):
    """Loss, fetched values and gradients of the step, from before its update."""

    loss_scale: float | None = Field(None, description="Factor of the loss in this step; null without a loss scale.")
    skipped: bool = Field(False, description="Whether the update was skipped because gradients overflowed.")
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
    """The position of the session after the update."""

    seq: int
    next_seq: int
    step: int
    weights_version: Version
    densified: list[Densified] = Field([], description="Tables whose gradient the optimizer needed as a dense array.")
    compiled: bool
    timing_ms: dict[str, float]


class EvaluationAnswer(Timed):
    """The fetched values at `weights_version`."""

    step: int
    weights_version: Version
    fetched: Tensors = Field({})


class ParametersAnswer(VersionAnswer):
    """Parameters and states.

    In a file the tensors have the names of the variables, and `states` in the metadata lists those that are states.
    """

    parameters: Tensors = Field({})
    states: Tensors = Field({})
