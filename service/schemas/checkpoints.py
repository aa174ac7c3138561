"""Checkpoints: requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, WithJsonSchema, model_validator

from service.schemas.gradients import Deadline
from service.schemas.members import LABELS, LINE, NAME, Created, Label, LabelName, LossName, NextPage, Targets
from service.schemas.programs import Strict
from service.schemas.session_answers import VersionAnswer
from service.schemas.sessions import OPTIMIZER
from service.schemas.tensors import Tensors
from service.schemas.times import End, FormerEnd, Future, former

__all__ = [
    "LONGEST_S",
    "CheckpointPage",
    "CheckpointView",
    "CreateCheckpoint",
    "ForkSession",
    "OptimizerAnswer",
    "PatchCheckpoint",
    "PutOptimizer",
    "UploadCheckpoint",
]

LONGEST_S = 10 * 365 * 86_400.0

Labels = Annotated[dict[LabelName, Label], Field(max_length=64), LABELS]
Name = Annotated[str, Field(max_length=128, pattern=LINE), NAME]
Ttl = Annotated[
    float | None,
    Field(gt=0, le=LONGEST_S, description="Seconds after which the checkpoint is deleted; by default never."),
]


class CreateCheckpoint(Strict):
    """A name for the checkpoint, and how long to keep it."""

    name: Name = ""
    labels: Labels = Field({})
    ttl_s: Ttl = None
    deadline_s: Deadline = None


class UploadCheckpoint(Strict):
    """Parameters and states by name. A safetensors body is the file of a checkpoint, or one of parameters."""

    name: Name = ""
    labels: Labels = Field({})
    ttl_s: Ttl = None
    tensors: Tensors = Field(description="Values of parameters and states by name.")


class PatchCheckpoint(Strict):
    """Members to change, as a merge patch (RFC 7396): null removes a label or the time of deletion."""

    name: Name | None = Field(None, description="Name for people; null removes it.")
    labels: Annotated[dict[LabelName, Label | None], Field(max_length=64)] | None = Field(
        None, description="Labels to set; a label that is null is removed, and null removes all."
    )
    expires_at: Future | None = Field(
        None,
        description="Time in the future at which the checkpoint is deleted, in seconds since 1970; null for never.",
    )
    expires: Annotated[Future | None, former("expires_at")] = None

    @model_validator(mode="after")
    def _one_name(self) -> Self:
        if {"expires", "expires_at"} <= self.model_fields_set:
            raise ValueError("expires is the earlier name of expires_at: give one of them")
        return self


class CheckpointView(Strict):
    """A checkpoint."""

    id: str = Field(description="Id of the checkpoint.")
    name: Annotated[str, NAME]
    labels: Annotated[dict[str, str], LABELS]
    session: str | None = Field(description="Id of the session that was saved; null for an upload.")
    program_id: str | None = Field(description="Id of the program of the session; null for a file of parameters.")
    resumable: bool = Field(description="Whether the file has the state of a session, and not only parameters.")
    step: int = Field(description="Number of updates of the session before it was saved.")
    loss: LossName
    targets: Targets
    optimizer: Annotated[dict[str, Any] | None, WithJsonSchema({"anyOf": [OPTIMIZER, {"type": "null"}]})] = Field(
        description="The optimizer of the session, with the attributes that the client has set; null for a file of "
        "parameters."
    )
    size: int = Field(description="Bytes of the file.")
    sha256: str = Field(description="SHA-256 of the file, in hexadecimal.")
    created: Created
    expires_at: End
    expires: FormerEnd


class CheckpointPage(Strict):
    """One page of checkpoints."""

    checkpoints: list[CheckpointView] = Field(description="Checkpoints, the newest first.")
    next_page_token: NextPage = None


class ForkSession(Strict):
    """Settings of the new session that are not those of the old one."""

    lease_s: float | None = Field(
        None, gt=0, description="Idle seconds after which the new session is deleted; by default those of the old one."
    )
    deadline_s: Deadline = None


class PutOptimizer(Strict):
    """New optimizer state. The rest stays. In a safetensors body the tensors have the names of the slots."""

    slots: Tensors = Field({}, description="Optimizer state by `<parameter>/<slot>`, as in the answer to GET.")
    step: int | None = Field(
        None, ge=0, le=2**53, description="Number of updates, which is also the position of a schedule."
    )


class OptimizerAnswer(VersionAnswer):
    """The optimizer and its state. State that was never written counts as zero and is absent."""

    optimizer: Annotated[dict[str, Any], WithJsonSchema(OPTIMIZER)] = Field(
        description="The optimizer of the session with all its attributes, those of defaults too."
    )
    slots: Tensors = Field({}, description="Optimizer state by `<parameter>/<slot>`.")
