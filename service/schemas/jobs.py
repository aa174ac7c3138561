"""Jobs: requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from service.jobs.job import REASONS
from service.schemas.gradients import Name
from service.schemas.programs import Strict
from service.schemas.sessions import CreateSession, given

__all__ = ["CreateJob", "JobEvents", "JobMetrics", "JobPage", "JobView"]

Reason = Annotated[str, WithJsonSchema({"type": "string", "enum": list(REASONS)})]
State = Annotated[
    Literal["queued", "running", "pausing", "paused", "succeeded", "failed", "canceled", "aborted"],
    Field(description="aborted: canceled, or past its deadline, before it ever ran."),
]
Metrics = dict[str, float | None]
SESSION_FIELDS = frozenset(CreateSession.model_fields)
DAYS_90 = 90 * 86_400.0


class Validation(Strict):
    """Rows that are not trained on: a part of the dataset, or another dataset with the same columns."""

    fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Part of the rows that is kept for validation: drawn by the seed, or the last rows without "
        "`shuffle`.",
    )
    dataset_id: str | None = Field(None, max_length=64)
    every: int | None = Field(None, ge=1, description="Steps between two validations; by default one epoch.")

    @model_validator(mode="after")
    def _one_source(self) -> Validation:
        if (self.fraction is None) == (self.dataset_id is None):
            raise ValueError("give exactly one of fraction and dataset_id")
        return self


class EarlyStop(Strict):
    """End the job when a metric has not improved for some judgements: one after each validation, or without validation
    one after each epoch."""

    metric: str | None = Field(
        None,
        max_length=300,
        description="`validation/loss`, `validation/<metric>`, or a training metric: `loss` or one of `metrics`, whose "
        "mean since the last judgement counts. By default the loss, of the validation if there is one.",
    )
    patience: int = Field(3, ge=1, le=1_000_000, description="Judgements without an improvement that end the job.")
    min_delta: float = Field(0.0, ge=0, description="Least change that is an improvement.")
    mode: Literal["min", "max"] = Field(
        "min", description="Whether a better metric is smaller, as a loss, or larger, as an accuracy."
    )


class SaveEvery(Strict):
    """When the job makes checkpoints. With `steps` or `seconds` it makes a last one at its end."""

    steps: int | None = Field(None, ge=1, description="Steps between two checkpoints.")
    seconds: float | None = Field(None, ge=1, le=86_400, description="Seconds of running between two checkpoints.")
    best: bool = Field(
        False,
        description="A checkpoint after each judgement of `early_stop` that is the best so far. It replaces the one of "
        "the judgement that was the best before.",
    )

    keep: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Number of checkpoints by steps or seconds that stay: the last ones. Each new one deletes the "
        "oldest. By default all stay, until the quota has no room for the next.",
    )

    @model_validator(mode="after")
    def _any(self) -> SaveEvery:
        if self.steps is None and self.seconds is None and not self.best:
            raise ValueError("give steps, seconds or best")
        if self.keep is not None and self.steps is None and self.seconds is None:
            raise ValueError("keep goes with steps or seconds")
        return self


class CreateJob(CreateSession):
    """A session to open, or an open one, and the data to train it on.

    In a safetensors body the tensors are the initial parameters and states of the session.
    """

    session_id: str | None = Field(
        None,
        max_length=64,
        validate_default=True,
        description="An open session to train, in place of the members that open one. Other clients must not change it "
        "until the job ends.",
    )
    loss: Name | None = Field(None, description="As of a session.", examples=["loss"])
    dataset_id: str = Field(max_length=64, description="The dataset to train on.")
    feeds: dict[str, Name | Annotated[list[Name], Field(min_length=1, max_length=4096)]] = Field(
        {},
        description="Feed -> its column, or the columns that stand side by side along its last axis. By default a feed "
        "gets the column of the same name.",
    )
    epochs: int | None = Field(None, ge=1, le=1_000_000, description="Passes over the training rows; by default 1.")
    steps: int | None = Field(None, ge=1, le=2**40, description="Steps to train, in place of epochs.")
    batch_size: int | None = Field(
        None, ge=1, le=2**31, description="Rows of a batch; by default 32, or the size that the feeds declare."
    )
    drop_last: bool | None = Field(
        None,
        description="Leave out the last training rows of an epoch that do not fill a batch. By default only where the "
        "feeds declare the size of a batch.",
    )
    shuffle: bool = Field(True, description="Another order of the rows in each epoch, else the order of the dataset.")
    seed: int | None = Field(
        None, ge=0, le=2**63 - 1, description="Seed of the order and of the validation rows; by default `init.seed`."
    )
    metrics: list[Name] = Field(
        [], max_length=100, description="Variables with one element to record in each step and validation."
    )
    validation: Validation | None = None
    early_stop: EarlyStop | None = None
    save_every: SaveEvery | None = None
    require_finite: bool = Field(
        True, description="Fail before a step whose loss, gradients or metrics contain NaN or infinity."
    )
    deadline_s: float | None = Field(
        None, gt=0, le=DAYS_90, description="Seconds after the submission at which the job ends in any case."
    )
    priority: int = Field(5, ge=0, le=9, description="Queued jobs of a higher priority start first.")
    name: str = Field("", max_length=128)
    labels: dict[Annotated[str, Field(min_length=1, max_length=64)], Annotated[str, Field(max_length=256)]] = Field(
        {}, max_length=32
    )

    # The inherited checks come before `session_id` is known.

    @field_validator("loss")
    @classmethod
    def _instead_of_targets(cls, loss: str | None, info: ValidationInfo) -> str | None:
        return loss  # the route looks at it together with session_id

    @field_validator("program")
    @classmethod
    def _one_program(cls, program: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        if program is not None and given(info, "program_id"):
            raise ValueError("give either a program or program_id")
        return program

    @field_validator("session_id")
    @classmethod
    def _one_session(cls, id: str | None, info: ValidationInfo) -> str | None:
        named = given(info, "program", "program_id", "from_checkpoint")
        if id is None and named is False:
            places = "a program, program_id or from_checkpoint"
            raise PydanticCustomError("missing", f"is missing; give it, or {places} in its place")
        if id is not None and named:
            raise ValueError("names an open session: give no program and no checkpoint")
        return id

    @field_validator("steps")
    @classmethod
    def _instead_of_epochs(cls, steps: int | None, info: ValidationInfo) -> int | None:
        if steps is not None and given(info, "epochs"):
            raise ValueError("give epochs or steps, not both")
        return steps

    @property
    def of_session(self) -> list[str]:
        """The given members that describe a session to open."""
        return sorted((self.model_fields_set & SESSION_FIELDS) - {"deadline_s"})

    def session(self) -> CreateSession:
        """The session to open."""
        given = {name: getattr(self, name) for name in SESSION_FIELDS - {"deadline_s"}}
        return CreateSession.model_construct(_fields_set=self.model_fields_set & SESSION_FIELDS, **given)


class JobError(Strict):
    """The problem that ended the job."""

    type: str
    title: str
    code: str
    detail: str


class Best(Strict):
    """The best judgement of the early stop."""

    value: float
    step: int
    since: int = Field(description="Judgements after it.")
    checkpoint_id: str | None = Field(
        None, description="Its checkpoint, with `save_every.best`; null if the quota had no room for it."
    )


class JobView(Strict):
    """A job."""

    id: str
    name: str
    labels: dict[str, str]
    state: State
    reason: Reason | None = Field(None, description="Reason of the end.")
    asked: Literal["cancel", "pause"] | None = Field(None, description="The action that the job takes after its call.")
    error: JobError | None = None
    priority: int
    queue_position: int | None = Field(None, description="Queued jobs before it; null unless it is queued.")
    program_id: str
    session_id: str = Field(description="Its session: clients can use it when the job has ended.")
    dataset_id: str
    columns: dict[str, list[str]] = Field(description="Feed -> its columns.")
    batch_size: int
    step: int = Field(description="Steps done.")
    steps: int = Field(description="Steps of the whole job.")
    epoch: float = Field(description="Passes over the training rows done.")
    steps_per_epoch: int
    samples: int = Field(description="Rows trained on.")
    rate: float = Field(description="Steps per second, recently.")
    eta_s: float | None = Field(None, description="Expected seconds until the end; null unless it runs.")
    compute_s: float = Field(description="Seconds that workers computed.")
    running_s: float = Field(description="Seconds in the state running.")
    metrics: Metrics = Field(description="Values of the last step.")
    validation: Metrics = Field({}, description="Values of the last validation.")
    validated_at: int | None = Field(None, description="Step of the last validation.")
    best: Best | None = None
    created: float = Field(description="Seconds since 1970.")
    started: float | None = None
    ended: float | None = None
    deadline: float | None = None


class JobPage(Strict):
    """One page of jobs."""

    jobs: list[JobView]
    next_page_token: str | None = Field(None, description="`page_token` of the next page; null on the last one.")


class JobEvent(Strict):
    """An event. Its kinds: state, asked, continued, progress, mean, validation, checkpoint, warning, message."""

    id: int
    kind: str
    data: dict[str, Any]


class JobEvents(Strict):
    """Events in order."""

    events: list[JobEvent]
    oldest: int = Field(description="Number of the oldest event that is kept: the last 10 000 are.")
    newest: int = Field(description="Number of the last event.")
    ended: bool = Field(description="Whether no more events will come after the newest one.")


class JobMetrics(Strict):
    """Columns of equal length. Above `points`, each point is the mean of a range of steps, at its last step."""

    step: list[int]
    columns: dict[str, list[float | None]] = Field(
        description="loss, gradient_norm, learning_rate (for each group of the optimizer, if there are several), "
        "metric/<variable>; null for values that are not finite."
    )
    validation: dict[str, list[float | None]] = Field(
        description="step, and a column for each metric; all validations of the range of steps."
    )
