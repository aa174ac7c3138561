"""Tapes: requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from service.schemas.components import model
from service.schemas.gradients import Deadline, Name, ProgramDocument, Seed
from service.schemas.members import PROGRAM, Created, Dtype, NextPage, OpType, Timing
from service.schemas.programs import Op, Strict
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

Ops = Annotated[list[Any], WithJsonSchema({"type": "array", "items": model(Op)})]
"""Validated by the core, which reports all problems at once."""
Ran = Annotated[list[int], Field(description="Positions of the ops that ran for this call.")]
NextSeq = Annotated[int, Field(description="`seq` of the next call that changes the tape.")]
Mode = Annotated[
    Literal["immediate", "lazy"],
    Field(description="immediate: appending ops computes their values. lazy: reading a value computes it."),
]


class CreateTape(Strict):
    """Settings of a new tape."""

    mode: Mode = "immediate"
    seed: Seed = 0
    lease_s: float | None = Field(
        None,
        gt=0,
        description="Idle seconds after which the tape is closed. `GET /v1` lists the default and the maximum.",
    )
    deadline_s: Deadline = None


class PlayBack(Strict):
    """A backward pass in the same request. In a safetensors body the cotangent is the tensor `target_gradient`."""

    target: Name = Field(
        description="The variable to differentiate: of one element, or of any shape with a `target_gradient`."
    )
    wrt: list[Name] | None = Field(
        None, description="Variables to differentiate with respect to; by default all parameters."
    )
    target_gradient: Annotated[
        Any,
        WithJsonSchema({"anyOf": [TENSOR, {"type": "null"}]}),
        Field(description="Cotangent of the target; by default ones."),
    ] = None


class AppendOps(Strict):
    """Leaves and ops to append. In a safetensors body the leaves are named `parameter/<name>` and `constant/<name>`."""

    seq: Seq = None
    parameters: Tensors = Field({}, description="Leaves that gradients are computed for by default, by name.")
    constants: Tensors = Field(
        {}, description="Leaves without a gradient by default, by name: labels, batches, numbers."
    )
    stacked: dict[str, list[Name]] = Field(
        {},
        description="Constants that are several leaves of equal type in one tensor, by name: the names of the leaves "
        "along its first axis. One large tensor takes less time than hundreds of small ones.",
    )
    ops: Ops = Field([], max_length=100_000, description="Ops as in a program. An output without a name gets one.")
    structure: str | None = Field(
        None,
        pattern="^[0-9a-f]{32}$",
        description="Instead of `ops`: the `structure` of an earlier answer. Appends the ops of that request again. "
        "A loop that renews the tape and appends the same ops sends them once.",
    )
    renew: bool = Field(False, description="Clear the tape first, as DELETE does: only parameters stay.")
    release: list[Name] = Field(
        [],
        max_length=100_000,
        description="Names that the client will not use again. Values that nothing else needs are freed before "
        "the ops are "
        "appended, even if these are refused.",
    )
    return_values: Literal["all", "none"] | list[Name] | None = Field(
        None,
        description="Values to return: of all these ops, none, or of the named variables. By default `all` "
        "on an immediate tape, "
        "`none` on a lazy one.",
    )
    backward: PlayBack | None = Field(None, description="Play the tape back after appending, as `POST .../backward`.")
    deadline_s: Deadline = None


class BackwardRequest(PlayBack):
    """A backward pass from one variable. In a safetensors body the cotangent is the tensor `target_gradient`."""

    seq: Seq = Field(None, description="Number of the call, as in `POST .../ops`; only with `record`.")
    target_gradient: Annotated[
        Any,
        WithJsonSchema({"anyOf": [TENSOR, {"type": "string"}, {"type": "null"}]}),
        Field(
            description="Cotangent of the target: a tensor, or with `record` the name of a variable; by default ones."
        ),
    ] = None
    record: bool = Field(
        False, description="Append the ops that compute the gradients, so that gradients can be differentiated too."
    )
    deadline_s: Deadline = None


class Output(Strict):
    """A variable written by an op."""

    name: str = Field(description="Name of the variable, given by the client or made by the service.")
    dtype: Dtype
    shape: list[int] = Field(description="Sizes; -1 for one that is known only when the value is computed.")
    stack_depth: int = Field(0, description="Above 0 for a list of arrays, whose value cannot be read.")


class Appended(Strict):
    """An op on the tape."""

    op: int = Field(description="Position of the op on the tape; it does not change.")
    type: OpType
    outputs: list[Output] = Field(description="The variables that the op writes, with their types.")


class Final(Strict):
    """The moment when a gradient becomes final."""

    variable: str = Field(description="The variable whose gradient became final.")
    after: int | None = Field(description="Position of the op whose playback completed the gradient.")


class OnTape(Strict):
    """The state of the tape after a call."""

    next_seq: NextSeq
    ops: int = Field(description="Number of ops on the tape.")
    bytes: int = Field(description="Size of all values on the tape, in bytes.")
    compiled: bool = Field(description="Whether this call compiled ops of a structure that was not seen before.")
    timing_ms: Timing


class Played(OnTape):
    """A playback."""

    missing: dict[str, str] = Field({}, description="Variable -> reason why it has no gradient.")
    value: Tensor | None = Field(None, description="Value of the target; not with `record`.")
    gradients: Tensors = Field({}, description="Gradients by variable; not with `record`.")
    played_back: list[int] = Field([], description="Positions of the ops played back, in order.")
    final: list[Final] = Field([], description="Gradients in the order in which they became final.")
    ran: Ran = Field([])


class AppendAnswer(Played):
    """The appended ops, their values, and with `backward` the gradients.

    In a file: `value/<name>`, `grad/<name>`, and `value` for the target.
    """

    appended: list[Appended] | None = Field(
        None, description="Left out after `structure` if places and types are those of the earlier answer."
    )
    first: int | None = Field(None, description="Position of the first appended op.")
    structure: str | None = Field(
        None, description="Name of the appended ops for later requests to this tape; null for a few ops."
    )
    values: Tensors = Field({}, description="The values that `return_values` asks for, by name.")


class ValueAnswer(OnTape):
    """One value. In a file: `value`."""

    value: Tensor = Field(description="The value of the variable.")
    ran: Ran


class BackwardAnswer(Played):
    """Gradients and the ops played back for them.

    In a file: `grad/<name>`, `value/<name>`, and `value` for the target.
    """

    recorded: dict[str, str] = Field({}, description="With `record`: variable -> the variable that holds its gradient.")
    appended: list[Appended] = Field([], description="With `record`: the appended ops.")
    values: Tensors = Field(
        {}, description="With `record` on an immediate tape: values of the variables in `recorded`."
    )


class TapeProgram(Strict):
    """A program that `POST /v1/programs` accepts as its body."""

    program: Annotated[ProgramDocument, PROGRAM]


class TapeView(Strict):
    """A tape."""

    id: str = Field(description="Id of the tape.")
    state: Literal["ready", "busy", "lost"] = Field(
        description="ready: waits for a call. busy: a call runs. lost: the worker that held the tape ended."
    )
    reason: str | None = Field(None, description="Reason of the loss; null unless the tape is lost.")
    mode: Mode
    seed: Seed
    worker: str = Field(description="Id of the worker that holds the tape.")
    ops: int = Field(description="Number of ops on the tape.")
    bytes: int = Field(description="Size of all its values, in bytes.")
    renewals: int = Field(description="How often the tape was cleared.")
    next_seq: NextSeq
    created: Created
    lease_s: float = Field(description="Idle seconds after which the tape is closed.")
    lease_left_s: float = Field(description="Idle seconds left until the tape is closed.")


class TapePage(Strict):
    """One page of tapes."""

    tapes: list[TapeView] = Field(description="Tapes, the newest first.")
    next_page_token: NextPage = None
