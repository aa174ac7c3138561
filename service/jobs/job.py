"""A job as data: its settings, its position, its states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from service.jobs.early_stop import EarlyStop, Judged
from service.sampling import Sampling

__all__ = [
    "ACTIVE",
    "ALLOWED",
    "ENDED",
    "JOB_ID",
    "REASONS",
    "Action",
    "Job",
    "Progress",
    "Spec",
    "State",
    "Validation",
]

JOB_ID = r"^job_[a-z2-7]{26}$"

State = Literal["queued", "running", "pausing", "paused", "succeeded", "failed", "canceled", "aborted"]
Action = Literal["cancel", "pause", "resume"]

ACTIVE = ("running", "pausing")
ENDED = ("succeeded", "failed", "canceled", "aborted")

ALLOWED: dict[Action, tuple[State, ...]] = {
    "cancel": ("queued", "running", "pausing", "paused", "canceled", "aborted"),
    "pause": ("queued", "running", "pausing", "paused"),
    "resume": ("paused", "pausing", "queued", "running"),
}
"""The states in which a job takes an action. In some of them it has taken it already, and nothing changes."""

REASONS = {
    "completed": "all steps are done",
    "early-stop": "the metric stopped improving",
    "requested": "a client canceled the job",
    "deadline": "the deadline of the job passed",
    "numeric-error": "the loss, a gradient or a metric was not finite",
    "execution-failed": "a step failed",
    "dataset-unavailable": "the file of the dataset is missing or damaged",
    "session-changed": "another client changed the session",
    "session-lost": "the session was closed or lost",
    "out-of-memory": "no worker had the memory for a step",
    "worker-lost": "the workers of several tries ended during a step",
    "internal": "the service failed",
}
"""The reasons of ended jobs."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Metrics on rows that are not trained on, every so many steps.

    data: of the calls `session.evaluate_on`. rows: their number. dataset_id: None if they are kept from the job's own.
    """

    data: dict[str, Any]
    rows: int
    every: int
    dataset_id: str | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """The settings of a job, complete.

    data:      of the calls `session.fit`; see `service.worker.fit`.
    steps:     to train.
    every:     steps between two moments at which training metrics are averaged: one epoch, or those of the validation.
    base_step: the session's step before the job.
    opened:    whether the job opened its session itself.
    checkpoint_steps, checkpoint_s: steps and seconds between two checkpoints; None for none.
    checkpoint_best: whether each judgement of the early stop that is the best so far has a checkpoint.
    checkpoint_keep: number of checkpoints by steps or seconds that stay; None for all.
    deadline_s: seconds after the submission.
    """

    program_id: str
    dataset_id: str
    loss: str
    data: dict[str, Any]
    steps: int
    every: int
    metrics: list[str] = field(default_factory=list)
    require_finite: bool = True
    validation: Validation | None = None
    early_stop: EarlyStop | None = None
    checkpoint_steps: int | None = None
    checkpoint_s: float | None = None
    checkpoint_best: bool = False
    checkpoint_keep: int | None = None
    deadline_s: float | None = None
    base_step: int = 0
    opened: bool = True
    name: str = ""
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def sampling(self) -> Sampling:
        d = self.data
        return Sampling(d["rows"], d["batch_size"], d["drop_last"], d["shuffle"], d["seed"], d["holdout"])

    @property
    def measured(self) -> list[str]:
        """The variables of a validation."""
        return [self.loss, *(name for name in self.metrics if name != self.loss)]


@dataclass(slots=True)
class Progress:
    """The position of a job after its last call.

    seq:        of the session's last call by this job.
    samples:    rows trained on. compute_s: seconds of workers. running_s: seconds in the state running.
    last:       metric -> its value in the last step. validated: metric -> its last value on the validation rows.
    validated_at, summed_at, saved_at: steps of the last validation, mean of training metrics and checkpoint.
    saved_s:    `running_s` at the last checkpoint.
    best_saved_at: step of the last checkpoint of a best judgement. best_alone: whether it stays for that alone.
    kept:       steps of the checkpoints by steps or seconds that stay, if their number is limited.
    judged:     the state of the early stop. stops: whether it has ended the job.
    rate:       steps per second, recently.
    """

    seq: int = 0
    step: int = 0
    samples: int = 0
    compute_s: float = 0.0
    running_s: float = 0.0
    last: dict[str, float | None] = field(default_factory=dict)
    validated: dict[str, float | None] = field(default_factory=dict)
    validated_at: int = 0
    summed_at: int = 0
    saved_at: int = 0
    saved_s: float = 0.0
    best_saved_at: int = 0
    best_alone: bool = False
    kept: list[int] = field(default_factory=list)
    judged: Judged = field(default_factory=Judged)
    stops: bool = False
    rate: float = 0.0

    @property
    def place(self) -> tuple[int, ...]:
        """The counters that only a turn of the loop moves forward."""
        return self.seq, self.step, self.summed_at, self.validated_at, self.saved_at


@dataclass(slots=True)
class Job:
    """One job. Times are seconds since 1970.

    waiting:     why it waits although it runs: the values of a `Waiting`.
    owner_until: when the lease of the process that runs it ends; None without such a process.
    """

    id: str
    tenant: str
    session: str
    spec: Spec
    priority: int
    created: float
    queued: float
    state: State = "queued"
    reason: str | None = None
    asked: str | None = None
    error: dict[str, Any] | None = None
    progress: Progress = field(default_factory=Progress)
    events: int = 0
    epoch: int = 0
    started: float | None = None
    ended: float | None = None
    waiting: tuple[str, str, float] | None = None
    owner_until: float | None = None

    def row(self) -> dict[str, Any]:
        """The values of its row in the table `jobs`."""
        validation = self.spec.validation
        return {
            "id": self.id,
            "tenant": self.tenant,
            "session": self.session,
            "dataset": self.spec.dataset_id,
            "validation_dataset": None if validation is None else validation.dataset_id,
            "state": self.state,
            "reason": self.reason,
            "asked": self.asked,
            "spec": text_of(self.spec),
            "progress": text_of(self.progress),
            "error": None if self.error is None else text_of(self.error),
            "waiting": None,
            "priority": self.priority,
            "events": self.events,
            "deadline": None if self.spec.deadline_s is None else self.created + self.spec.deadline_s,
            "owner": None,
            "owner_until": None,
            "epoch": self.epoch,
            "created": self.created,
            "queued": self.queued,
            "started": self.started,
            "ended": self.ended,
        }

    @staticmethod
    def of_row(row: Any) -> Job:
        """The job in a row of the table `jobs`."""
        return Job(
            row.id,
            row.tenant,
            row.session,
            _spec.decode(row.spec),
            row.priority,
            row.created,
            row.queued,
            row.state,
            row.reason,
            row.asked,
            None if row.error is None else msgspec.json.decode(row.error),
            _progress.decode(row.progress),
            row.events,
            row.epoch,
            row.started,
            row.ended,
            None if row.waiting is None else _waiting.decode(row.waiting),
            row.owner_until,
        )


# Made once, at import: msgspec crashes if several threads first use a type at the same time.
_spec = msgspec.json.Decoder(Spec)
_progress = msgspec.json.Decoder(Progress)
_waiting = msgspec.json.Decoder(tuple[str, str, float])


def progress_of(text: str) -> Progress:
    """The progress in the column of a row."""
    return _progress.decode(text)


def text_of(value: Any) -> str:
    """`value` as JSON text."""
    return msgspec.json.encode(value).decode()
