"""Jobs: requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from service.jobs.job import REASONS
from service.jobs.waiting import WAITS
from service.schemas.gradients import Name
from service.schemas.members import LABELS, LINE, NAME, Created, Label, LabelName, NextPage
from service.schemas.programs import Strict
from service.schemas.sessions import CreateSession, given

__all__ = ["CreateJob", "JobEvents", "JobMetrics", "JobPage", "JobView"]

Reason = Annotated[str, WithJsonSchema({"type": "string", "enum": list(REASONS)})]
State = Annotated[
    Literal["queued", "running", "pausing", "paused", "succeeded", "failed", "canceled", "aborted"],
    Field(
        description="queued: waits for its turn. running: trains. pausing: pauses after its call. paused: waits for a "
        "client to resume it. succeeded, failed: has ended, for its `reason`. canceled: ended by a client or its "
        "deadline. aborted: the same before it ever ran."
    ),
]
PRIORITY: Any = Field(description="Queued jobs of a higher priority start first.")
Metrics = dict[str, float | None]
OF_SESSION = frozenset(CreateSession.model_fields) - {"deadline_s"}
"""Members that describe a session to open."""
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
    dataset_id: str | None = Field(
        None, max_length=64, description="Id of a dataset whose rows are all for the validation."
    )
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


class OpenSession(Strict):
    """The member that a job has before those of a session to open, because their checks depend on it."""

    session_id: str | None = Field(
        None,
        max_length=64,
        description="Id of an open session to train, in place of the members that open one. Other clients must not "
        "change it until the job ends.",
    )


class CreateJob(CreateSession, OpenSession):
    """A session to open, or an open one, and the data to train it on.

    In a safetensors body the tensors are the initial parameters and states of the session.
    """

    WITHOUT_PROGRAM: ClassVar = ("program_id", "from_checkpoint", "session_id")
    WITHOUT_LOSS: ClassVar = ("from_checkpoint", "session_id")
    dataset_id: str = Field(max_length=64, description="Id of the dataset to train on.")
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
    validation: Validation | None = Field(
        None, description="Rows to compute the loss and the metrics on, without training; by default none."
    )
    early_stop: EarlyStop | None = Field(
        None, description="End the job when a metric stops improving; by default all steps are done."
    )
    save_every: SaveEvery | None = Field(None, description="When the job makes checkpoints; by default never.")
    require_finite: bool = Field(
        True, description="Fail before a step whose loss, gradients or metrics contain NaN or infinity."
    )
    deadline_s: float | None = Field(
        None, gt=0, le=DAYS_90, description="Seconds after the submission at which the job ends in any case."
    )
    priority: Annotated[int, Field(ge=0, le=9), PRIORITY] = 5
    name: Annotated[str, Field(max_length=128, pattern=LINE), NAME] = ""
    labels: Annotated[dict[LabelName, Label], Field(max_length=32), LABELS] = Field({})

    @field_validator(*OF_SESSION, mode="before")
    @classmethod
    def _instead_of_session(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and given(info, "session_id"):
            raise ValueError("describes a session to open, but session_id names an open one")
        return value

    @field_validator("targets")
    @classmethod
    def _no_targets(cls, targets: list[str]) -> list[str]:
        if targets:
            raise ValueError("a job needs a loss; a session with targets cannot train by itself")
        return targets

    @field_validator("steps")
    @classmethod
    def _instead_of_epochs(cls, steps: int | None, info: ValidationInfo) -> int | None:
        if steps is not None and given(info, "epochs"):
            raise ValueError("give epochs or steps, not both")
        return steps

    def session(self) -> CreateSession:
        """The session to open."""
        given = {name: getattr(self, name) for name in OF_SESSION}
        return CreateSession.model_construct(_fields_set=self.model_fields_set & OF_SESSION, **given)


class JobError(Strict):
    """The problem that ended the job."""

    type: str = Field(description="Path of the page that explains this code.")
    title: str = Field(description="Short name of the code.")
    code: str = Field(description="Code of the problem.")
    detail: str = Field(description="The cause of this problem, for humans.")


class Best(Strict):
    """The best judgement of the early stop."""

    value: float = Field(description="Value of the metric of `early_stop`.")
    step: int = Field(description="Step of the job after which it was measured.")
    since: int = Field(description="Number of judgements after it.")
    checkpoint_id: str | None = Field(
        None, description="Its checkpoint, with `save_every.best`; null if the quota had no room for it."
    )


class JobWaiting(Strict):
    """Why a job waits."""

    reason: Annotated[str, WithJsonSchema({"type": "string", "enum": list(WAITS)})] = Field(
        description=" ".join(f"`{name}`: {text}." for name, text in WAITS.items())
    )
    detail: str = Field(description="The reason as a sentence.")
    since: float = Field(description="Time since which it waits for this reason, in seconds since 1970.")


class JobView(Strict):
    """A job."""

    id: str = Field(description="Id of the job.")
    name: Annotated[str, NAME]
    labels: Annotated[dict[str, str], LABELS]
    state: State
    reason: Reason | None = Field(
        None,
        description="Reason of the end; null before it. "
        + " ".join(f"`{name}`: {text}." for name, text in REASONS.items()),
    )
    asked: Literal["cancel", "pause"] | None = Field(
        None, description="The action that the job takes after its running call; null for none."
    )
    error: JobError | None = Field(None, description="The problem that ended the job; null unless it failed.")
    priority: Annotated[int, PRIORITY]
    queue_position: int | None = Field(None, description="Number of queued jobs before it; null unless it is queued.")
    waiting: JobWaiting | None = Field(
        None,
        description="Why the job waits although it is queued or running; null if it does not, and in any other state.",
    )
    program_id: str = Field(description="Id of the program that is trained.")
    session_id: str = Field(description="Id of its session, which clients can use when the job has ended.")
    dataset_id: str = Field(description="Id of the dataset that it trains on.")
    columns: dict[str, list[str]] = Field(
        description="Feed -> the columns that it gets, side by side along its last axis."
    )
    batch_size: int = Field(description="Rows of a batch.")
    step: int = Field(description="Number of steps done.")
    steps: int = Field(description="Number of steps of the whole job.")
    epoch: float = Field(description="Passes over the training rows that are done, with fractions.")
    steps_per_epoch: int = Field(description="Batches of one pass over the training rows.")
    samples: int = Field(description="Number of rows trained on; a row counts once for each pass.")
    rate: float = Field(description="Steps per second, recently.")
    eta_s: float | None = Field(None, description="Expected seconds until the end; null unless it runs.")
    compute_s: float = Field(description="Seconds that workers computed.")
    running_s: float = Field(description="Seconds in the state running.")
    metrics: Metrics = Field(description="Metric -> its value in the last step; null if it is not finite.")
    validation: Metrics = Field({}, description="Metric -> its value in the last validation; null if it is not finite.")
    validated_at: int | None = Field(None, description="Step of the last validation; null before the first one.")
    best: Best | None = Field(
        None, description="The best judgement so far; null without `early_stop` and before the first one."
    )
    created: Created
    started: float | None = Field(None, description="Time of the first start, in seconds since 1970; null before it.")
    ended: float | None = Field(None, description="Time of the end, in seconds since 1970; null before it.")
    deadline: float | None = Field(
        None, description="Time at which the job ends in any case, in seconds since 1970; null without `deadline_s`."
    )


class JobPage(Strict):
    """One page of jobs."""

    jobs: list[JobView] = Field(description="Jobs, the newest first.")
    next_page_token: NextPage = None


class JobEvent(Strict):
    """An event of a job."""

    id: int = Field(description="Number of the event: 1, 2, 3, ... in the job.")
    kind: str = Field(
        description="state, asked, continued, progress, mean, validation, checkpoint, waiting, warning or message."
    )
    data: dict[str, Any] = Field(description="Members of the event. They depend on its kind.")


class JobEvents(Strict):
    """Events in order."""

    events: list[JobEvent] = Field(description="Events, the oldest first.")
    oldest: int = Field(description="Number of the oldest event that is kept: the last 10 000 are.")
    newest: int = Field(description="Number of the last event.")
    ended: bool = Field(description="Whether no more events will come after the newest one.")


class JobMetrics(Strict):
    """Columns of equal length. Above `points`, each point is the mean of a range of steps, at its last step."""

    step: list[int] = Field(description="Step of the job that each point ends at.")
    columns: dict[str, list[float | None]] = Field(
        description="loss, gradient_norm, learning_rate (for each group of the optimizer, if there are several), "
        "metric/<variable>; null for values that are not finite."
    )
    validation: dict[str, list[float | None]] = Field(
        description="step, and a column for each metric; all validations of the range of steps."
    )
