"""Sessions: requests. The answers are in `session_answers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from core.backward.query import GradientQuery
from core.optim import clipping, loss_scaling
from service.schemas.components import component
from service.schemas.derived import as_core, derived, text_of
from service.schemas.evaluations import ForTest
from service.schemas.gradients import (
    Compile,
    Deadline,
    Fetch,
    GradientOptions,
    Name,
    ProgramDocument,
    Returned,
    Seed,
)
from service.schemas.members import PROGRAM, Durability, FeedValues, ParameterValues, StateValues
from service.schemas.programs import Strict
from service.schemas.tensors import Gradients, Tensor, Tensors

__all__ = [
    "CreateSession",
    "EvaluationRequest",
    "PatchSession",
    "PutParameters",
    "SessionGradientsRequest",
    "StepRequest",
    "UpdateRequest",
    "given",
]


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


def _rates(value: Any) -> Any:
    """Raises ValueError, in one sentence for both forms of the value."""
    for rate in value.values() if isinstance(value, dict) else [value]:
        if isinstance(rate, bool) or not isinstance(rate, int | float):
            raise ValueError("must be a number, or an object with the number of each group")
    return value


RATE: dict[str, Any] = {
    "anyOf": [{"type": "number"}, {"type": "object", "additionalProperties": {"type": "number"}}],
}
Rate = Annotated[
    Any,
    AfterValidator(lambda value: None if value is None else _rates(value)),
    WithJsonSchema({"anyOf": [*RATE["anyOf"], {"type": "null"}]}),
    Field(
        description="Learning rate of this call in place of the optimizer's: of all groups, or group -> rate. The "
        "session keeps its own.",
        examples=[0.01],
    ),
]
Reduction = Annotated[
    Literal["sum", "mean"],
    Field(description="Combination of the accumulated gradients: their sum, or their mean over the batches."),
]
TargetGradients = Annotated[
    list[Tensor | None],
    Field(
        max_length=10_000,
        description="The cotangent of each target of the session; null means ones. In a file: `target_gradients/0`, "
        "...",
    ),
]
RATE_OR_SCHEDULE = {
    "anyOf": [{"type": "number"}, {"type": "object"}],
    "description": 'A number, or a schedule: `{"schedule": "cosine_decay", "learning_rate": 0.1, ...}`.',
}
OPTIMIZER = component(
    "Optimizer",
    {
        "type": "object",
        "description": "An optimizer with its attributes. Their names and defaults are those of its op: "
        "`GET /v1/ops/adam`, for example.",
        "properties": {
            "type": {
                "type": "string",
                "description": "Type of the optimizer, such as `adam`: an op of the family `optimizers`.",
            },
            "learning_rate": RATE_OR_SCHEDULE,
            "groups": {
                "type": "array",
                "description": "Parameters with attributes of their own. A parameter belongs to the first group that "
                "matches it, else to the group `default`. A group without parameters is refused.",
                "items": {
                    "type": "object",
                    "required": ["match"],
                    "properties": {
                        "match": {
                            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
                            "description": "Names of parameters, or patterns with `*`, `?` and `[abc]`.",
                        },
                        "name": {"type": "string", "description": "Name in answers; by default the patterns."},
                        "type": {"type": "string", "description": "Another optimizer for these parameters."},
                        "learning_rate": RATE_OR_SCHEDULE,
                    },
                    "additionalProperties": True,
                },
            },
        },
        "additionalProperties": True,
    },
)


class Init(Strict):
    """Initial parameters and states: given as tensors, or drawn by an initializer."""

    seed: Seed = 0
    parameters: Tensors = Field({}, description="Values of parameters and states by name.")
    initializers: dict[str, dict[str, str | int | float]] = Field(
        {},
        description="Name or pattern -> type of the initializer and its attributes. A name goes before patterns, and "
        "the first pattern that matches decides. By default the role of the parameter decides: the scale of a "
        "normalization and the running variance start at 1, biases and running means at 0, the slope of `prelu` at "
        "0.25, tables of embeddings are `unit_rows`; others of two or more axes are `glorot_uniform`, else `zeros`.",
        examples=[{"head.w": {"type": "normal", "std": 0.02}, "*.weight": {"type": "he_normal"}}],
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


FOR_CHECKPOINTS = ("missing", "extra", "optimizer_state")


def given(info: ValidationInfo, *names: str) -> bool | None:
    """Whether the request gives one of the earlier members `names`; None if that is open because one is refused."""
    if any(info.data.get(name) for name in names):
        return True
    return False if info.data.keys() >= set(names) else None


def missing(others: Sequence[str]) -> PydanticCustomError:
    """The error of a member that is required without `others`, of which there are at least two."""
    *some, last = others
    return PydanticCustomError("missing", f"is missing; give it, or {', '.join(some)} or {last} in its place")  # type: ignore[arg-type]


class CreateSession(GradientOptions):
    """A program or a checkpoint to train. In a safetensors body the tensors are the initial parameters and states."""

    WITHOUT_PROGRAM: ClassVar[tuple[str, ...]] = ("program_id", "from_checkpoint")
    WITHOUT_LOSS: ClassVar[tuple[str, ...]] = ("targets", "from_checkpoint")

    from_checkpoint: str | None = Field(
        None,
        max_length=40,
        description="Id of a checkpoint to start from. All other members then have the values of the checkpoint by "
        "default. Parameters and states are matched by name; those in `init.parameters` go before.",
    )
    program_id: str | None = Field(None, max_length=64, description="Id of a registered program.")
    program: Annotated[ProgramDocument | None, PROGRAM] = Field(None, validate_default=True)
    missing: Literal["refuse", "initialize"] = Field(
        "refuse", description="Parameters and states that the checkpoint lacks: refuse them all, or initialize them."
    )
    extra: Literal["refuse", "ignore"] = Field(
        "refuse", description="Tensors of the checkpoint that the program does not have: refuse them all, or ignore."
    )
    optimizer_state: bool | None = Field(
        None,
        description="Whether optimizer state, `step` and `seq` go on where the checkpoint was made; by default if the "
        "program is that of the checkpoint. Otherwise training starts at step 0.",
    )
    targets: list[Name] = Field(
        [], description=f"{text_of(GradientQuery, 'targets')} Steps may send their cotangents as `target_gradients`."
    )
    loss: Name | None = Field(
        None, description=text_of(GradientQuery, "loss"), examples=["loss"], validate_default=True
    )
    inputs: list[Name] = Field(
        [],
        description="With `targets`: the variables to differentiate with respect to, by default all trainable "
        "parameters. Steps train the parameters among them.",
    )
    parameter_list: list[Name] | None = Field(None, description="Parameters to train; by default all trainable ones.")
    optimizer: Annotated[dict[str, Any], WithJsonSchema(OPTIMIZER)] = Field(
        {"type": "sgd"},
        description="The type of the optimizer (sgd, momentum, adam, adamw, ...; see `GET /v1/ops`) and its "
        "attributes. "
        '`learning_rate` is a number or a schedule: `{"schedule": "cosine_decay", "learning_rate": 0.1, ...}`. '
        "`groups` give some parameters other attributes.",
        examples=[
            {
                "type": "adam",
                "learning_rate": 0.001,
                "weight_decay": 0.01,
                "groups": [{"match": "*.bias", "weight_decay": 0.0}],
            }
        ],
    )
    clip: Clip | None = Field(
        None,
        description="A bound on gradients between the backward pass and the optimizer.",
        examples=[{"by": "global_norm", "max_norm": 1.0}],
    )
    clip_norm: float | None = Field(
        None, gt=0, description='Short for the clip `{"by": "global_norm", "max_norm": <clip_norm>}`.'
    )
    loss_scale: Annotated[float, Field(gt=0)] | Literal["dynamic"] | LossScale | None = Field(
        None,
        description="Factor of the loss that keeps small float16 gradients from rounding to zero: a constant, "
        "`dynamic`, "
        "or an object. A step whose gradients overflow is skipped.",
    )
    init: Init = Field(
        default_factory=Init.empty, description="Initial parameters and states; by default all are drawn with seed 0."
    )
    durability: Durability = "journal"
    checkpoint_every: int = Field(
        100, ge=1, le=1_000_000, description="Steps between two checkpoints; only for the durability `checkpoint`."
    )
    lease_s: float | None = Field(
        None,
        gt=0,
        description="Idle seconds after which the session is deleted. `GET /v1` lists the default and the maximum.",
    )
    deadline_s: Deadline = None

    # Checks of members and not of the whole: all mistakes of a request are reported at once.

    @field_validator("program")
    @classmethod
    def _one_program(cls, program: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        if program is None and given(info, *cls.WITHOUT_PROGRAM) is False:
            raise missing(cls.WITHOUT_PROGRAM)
        if program is not None and given(info, "program_id"):
            raise ValueError("give either a program or program_id")
        return program

    @field_validator(*FOR_CHECKPOINTS)
    @classmethod
    def _of_checkpoint(cls, value: Any, info: ValidationInfo) -> Any:
        if given(info, "from_checkpoint") is False:
            raise ValueError("goes with from_checkpoint")
        return value

    @field_validator("loss")
    @classmethod
    def _instead_of_targets(cls, loss: str | None, info: ValidationInfo) -> str | None:
        if loss is None and given(info, *cls.WITHOUT_LOSS) is False:
            raise missing(cls.WITHOUT_LOSS)
        if loss is not None and given(info, "targets"):
            raise ValueError("give either a loss or targets")
        return loss

    @field_validator("clip_norm")
    @classmethod
    def _short_for_clip(cls, norm: float | None, info: ValidationInfo) -> float | None:
        if norm is not None and given(info, "clip"):
            raise ValueError("is short for a clip: give only one of them")
        return norm

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
        asked = {"loss": self.loss, "parameter_list": self.parameter_list}
        asked |= {"targets": self.targets, "inputs": self.inputs} if self.targets or self.inputs else {}
        return asked | self.options()


class StepRequest(Strict):
    """Feeds of one training step, or of several. In a safetensors body they are the tensors of the file."""

    seq: Seq = None
    feeds: FeedValues = none_given(dict)
    fetch: Fetch = none_given(list)
    return_gradients: Returned = "none"
    require_finite: bool = Field(
        False,
        description="Refuse a step whose loss, gradients or fetched values contain NaN or infinity; the session "
        "does not "
        "change. With a dynamic loss scale, gradients that overflow skip the step instead.",
    )
    target_gradients: TargetGradients = none_given(list)
    learning_rate: Rate = None
    batches: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Train this many steps in one call. A feed with one axis more than the program declares has a "
        "batch for each step along its first axis; others are the same in all steps. Loss, fetched values and "
        "gradients of the answer have such an axis, too.",
    )
    accumulate: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Add up the gradients of this many batches and update once. Feeds have a leading axis of batches "
        "as with `batches`; with both, the axis of `batches` comes first.",
    )
    reduction: Reduction = "sum"
    deadline_s: Deadline = None


class SessionGradientsRequest(Strict):
    """Feeds of a gradient computation at the current parameters, which do not change."""

    seq: Seq = Field(None, description="Number of the call, as of a step; only with `accumulate`.")
    feeds: FeedValues = none_given(dict)
    fetch: Fetch = none_given(list)
    target_gradients: TargetGradients = none_given(list)
    return_gradients: Returned | None = Field(
        None, description="As of a step; by default `all`, with `accumulate` `none`."
    )
    accumulate: bool = Field(
        False,
        description="Add the gradients up in the session, until an update without gradients applies them. The call "
        "writes the states of the program, and random ops draw new numbers in each call.",
    )
    batches: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="With `accumulate`: add up the gradients of this many batches, which are the leading axis of feeds "
        "as in a step. Loss and fetched values of the answer have such an axis, too.",
    )
    compile: Literal["auto", "dynamic"] = Field(
        "auto",
        description="`auto` runs machine code for these shapes of feeds. `dynamic` runs one code for all shapes up to "
        "the next power of two of each open size, as in `POST /v1/gradients`. With `accumulate` the session decides, "
        "as for its steps.",
    )
    deadline_s: Deadline = None


class UpdateRequest(Strict):
    """Gradients to apply. In a safetensors body they are named `grad/<parameter>`, as in answers, or `<parameter>`.

    Gradients of tables may be rows; a safetensors body holds the row numbers as `rows/<parameter>`.
    """

    seq: Seq = None
    gradients: Gradients = Field(
        default_factory=dict,
        description="Gradients by parameter. Without any, the update applies the accumulated gradients.",
        json_schema_extra={"default": {}},
    )
    require_finite: bool = Field(False, description="Refuse gradients that contain NaN or infinity.")
    learning_rate: Rate = None
    reduction: Reduction = "sum"
    deadline_s: Deadline = None


class PatchSession(Strict):
    """Members of the session to change, as a merge patch (RFC 7396): null removes a member of the optimizer."""

    optimizer: Annotated[dict[str, Any], WithJsonSchema(OPTIMIZER)] = Field(
        description="Members of the optimizer to change. Each parameter keeps the type of its optimizer and its "
        "optimizer state. A new number as learning rate compiles nothing.",
        examples=[{"learning_rate": 0.01}],
    )


class EvaluationRequest(Strict):
    """Feeds of a forward pass, and the variables to fetch."""

    feeds: FeedValues = none_given(dict)
    fetch: Fetch = Field(
        default_factory=list,
        description="Variables of block 0 to return; by default the loss or the targets of the session.",
        json_schema_extra={"default": []},
    )
    for_test: ForTest = False
    compile: Compile = "auto"
    deadline_s: Deadline = None


class PutParameters(Strict):
    """New values of parameters and states. The others keep their values."""

    parameters: ParameterValues = Field({})
    states: StateValues = Field({})
