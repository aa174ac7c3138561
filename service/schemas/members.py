"""Members that several schemas have: their type and description, written once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from service.ids import ONE_LINE
from service.schemas.tensors import Gradients, Tensor, Tensors

__all__ = [
    "LABELS",
    "LINE",
    "NAME",
    "PROGRAM",
    "Created",
    "Dtype",
    "Durability",
    "FeedValues",
    "Fetched",
    "GradientValues",
    "Label",
    "LabelName",
    "LossName",
    "NextPage",
    "OpType",
    "ParameterValues",
    "Recorded",
    "Shape",
    "StateValues",
    "Step",
    "Targets",
    "Timing",
    "ValueOfLoss",
]

PROGRAM: Any = Field(description="A program: its blocks of ops, and the functions that it calls.")
LABELS: Any = Field(description="Labels, for people and tools: name -> text.")
NAME: Any = Field(description="Name for people; it need not be unique.")
"""Descriptions of members whose types or bounds differ between resources."""
LINE = ONE_LINE.pattern
"""Pattern of a name or a label."""
Label = Annotated[str, Field(max_length=256, pattern=LINE)]
LabelName = Annotated[str, Field(min_length=1, max_length=64, pattern=LINE)]

NextPage = Annotated[str | None, Field(description="`page_token` of the next page; null on the last one.")]
Created = Annotated[float, Field(description="Time of creation, in seconds since 1970.")]
Timing = Annotated[
    dict[str, float],
    Field(description="Milliseconds per phase: queue, transfer_in, compute (compiling included), transfer_out, total."),
]
Dtype = Annotated[str, Field(description="Type of the elements, such as `float32`.")]
Shape = Annotated[list[int], Field(description="Sizes of the axes; empty for a single number.")]
OpType = Annotated[str, Field(description="Type of the op, as in `GET /v1/ops`.", examples=["matmul"])]
Step = Annotated[int, Field(description="Number of updates of the session so far.")]
LossName = Annotated[str | None, Field(description="The variable of the loss; null if targets take its place.")]
Targets = Annotated[list[str], Field(description="The targets of a session without a loss.")]
Durability = Annotated[
    Literal["journal", "checkpoint", "none"],
    Field(
        description="Calls that a loss of the session's worker or of the service undoes. `journal`: no answered call. "
        "`checkpoint`: the calls after the last checkpoint, which the service makes every `checkpoint_every` steps; "
        "the next call reports it. `none`: all, and the session ends.",
    ),
]

FeedValues = Annotated[Tensors, Field(description="Values of feeds by name.")]
ParameterValues = Annotated[Tensors, Field(description="Values of parameters by name.")]
StateValues = Annotated[Tensors, Field(description="Values of states by name.")]

# Of answers with gradients

ValueOfLoss = Annotated[Tensor | None, Field(description="Value of the loss; null where targets take its place.")]
Fetched = Annotated[Tensors, Field(description="Values of the variables in `fetch`, by name.")]
GradientValues = Annotated[Gradients, Field(description="The gradients that `return_gradients` asks for, by variable.")]
Recorded = Annotated[Tensors, Field(description="Gradients recorded by hooks; inside loops one row per trip.")]
