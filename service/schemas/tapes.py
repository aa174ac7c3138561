"""Tapes: what is asked and what is answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from service.schemas.gradients import OP, Deadline, Name, Seed
from service.schemas.programs import Strict
from service.schemas.sessions import Seq
from service.schemas.tensors import TENSOR, Tensor, Tensors

__all__ = [
    "AppendAnswer",
    "AppendOps",
    "BackwardAnswer",
    "BackwardRequest",
    "CreateTape",
    "TapePage",
    "TapeProgram",
    "TapeView",
    "ValueAnswer",
]

Ops = Annotated[list[Any], WithJsonSchema({"type": "array", "items": OP})]
"""Read by the core, which tells all that is wrong at once."""
Ran = Annotated[list[int], Field(description="Places of the ops that had to run for this.")]
Mode = Annotated[
    Literal["immediate", "lazy"],
    Field(description="immediate: values are computed when ops are appended; lazy: when one is asked for."),
]


class CreateTape(Strict):
    """An empty tape."""

    mode: Mode = "immediate"
    seed: Seed = 0
    lease_s: float | None = Field(None, gt=0, description="Seconds without a call after which it is closed.")
    deadline_s: Deadline = None


class AppendOps(Strict):
    """Leaves and ops. In a safetensors body the leaves are the tensors `parameter/<name>` and `constant/<name>`."""

    seq: Seq = None
    parameters: Tensors = Field({}, description="By name: what gradients are taken of when nothing else is said.")
    constants: Tensors = Field({}, description="By name: labels, batches, numbers.")
    ops: Ops = Field(
        [], max_length=100_000, description="As in a program; an output that is not named is given a name."
    )
    renew: bool = Field(False, description="Begin anew first, as DELETE does: only parameters stay.")
    release: list[Name] = Field(
        [],
        max_length=100_000,
        description="Names that will not be used again. What nothing else needs is freed first, even if the ops are "
        "refused then.",
    )
    return_values: Literal["all", "none"] | list[Name] | None = Field(
        None, description="Values to return: of these ops, or of the named variables. By default all if immediate."
    )
    deadline_s: Deadline = None


class BackwardRequest(Strict):
    """What to play back. In a safetensors body the cotangent is the tensor `target_gradient`."""

    seq: Seq = Field(None, description="Only with record.")
    target: Name = Field(description="A variable of one element; of any shape with a target_gradient.")
    wrt: list[Name] | None = Field(None, description="Any variables; all parameters by default.")
    target_gradient: Annotated[
        Any,
        WithJsonSchema({"anyOf": [TENSOR, {"type": "string"}, {"type": "null"}]}),
        Field(description="The cotangent of the target: a tensor, or the name of a variable; ones by default."),
    ] = None
    record: bool = Field(
        False, description="Append the ops that compute the gradients, so that they can be differentiated again."
    )
    deadline_s: Deadline = None


class Output(Strict):
    """A variable that an op writes."""

    name: str
    dtype: str
    shape: list[int] = Field(description="-1 for a size that is not known before it is computed.")
    stack_depth: int = Field(0, description="Above 0 for lists of arrays, which have no value that can be read.")


class Appended(Strict):
    """An op on the tape."""

    op: int = Field(description="Its place: it keeps that number.")
    type: str
    outputs: list[Output]


class Final(Strict):
    """When a gradient is final."""

    variable: str
    after: int | None = Field(description="Place of the op that was played back last of those that use it.")


class OnTape(Strict):
    """Where the tape is after a call."""

    next_seq: int
    ops: int = Field(description="Ops on the tape.")
    bytes: int = Field(description="Of all values on the tape.")
    compiled: bool = Field(description="Whether something had to be compiled: a structure that was not seen before.")
    timing_ms: dict[str, float]


class AppendAnswer(OnTape):
    """The ops in their places. As a file: `value/<name>`."""

    appended: list[Appended]
    values: Tensors = Field({})


class ValueAnswer(OnTape):
    """One value. As a file: `value`."""

    value: Tensor
    ran: Ran


class BackwardAnswer(OnTape):
    """Gradients, and how they came about. As a file: `grad/<name>`, `value/<name>`, and `value`, that of the target."""

    missing: dict[str, str] = Field({}, description="Variable -> why it has no gradient.")
    value: Tensor = Field(None, description="Of the target; not with record.")
    gradients: Tensors = Field({}, description="Not with record.")
    played_back: list[int] = Field([], description="Places of the ops played back, in that order.")
    final: list[Final] = Field([], description="In the order in which the gradients became final.")
    ran: Ran = Field([])
    recorded: dict[str, str] = Field({}, description="With record: variable -> the variable that is its gradient.")
    appended: list[Appended] = Field([], description="With record.")
    values: Tensors = Field({}, description="With record: the gradients by their own names, if immediate.")


class TapeProgram(Strict):
    """A body for `POST /v1/programs`."""

    program: dict[str, Any]


class TapeView(Strict):
    """A tape."""

    id: str
    state: Literal["ready", "busy", "lost"]
    reason: str | None = Field(None, description="Why it was lost.")
    mode: Mode
    seed: int
    worker: str
    ops: int = Field(description="Ops on it.")
    bytes: int = Field(description="Of all its values.")
    renewals: int = Field(description="How often it was begun anew.")
    next_seq: int
    created: float = Field(description="Seconds since 1970.")
    lease_s: float
    lease_left_s: float


class TapePage(Strict):
    """One page of tapes."""

    tapes: list[TapeView]
    next_page_token: str | None = None
