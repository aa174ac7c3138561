"""Lines of a streamed answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.schemas.programs import Strict
from service.schemas.tensors import Gradient

__all__ = ["DoneEvent", "ErrorEvent", "GradientEvent"]


EVENT: Any = Field(description="Kind of the line.")


class GradientEvent(Strict):
    """The final value of a gradient."""

    event: Annotated[Literal["gradient"], EVENT]
    name: str = Field(description="The variable whose gradient this is.")
    ready_at: int | None = Field(
        description="Position of the op that completes the gradient, in the program with its backward pass."
    )
    gradient: Gradient = Field(description="Value of the gradient.")


class DoneEvent(BaseModel):
    """The last line of a call that succeeded: the members of the JSON answer, without `gradients`."""

    model_config = ConfigDict(extra="allow")
    event: Annotated[Literal["done"], EVENT]
    finite: bool = Field(description="Whether the loss, fetched values and gradients contain no NaN or infinity.")
    missing: dict[str, str] = Field({}, description="Variable -> reason why it has no gradient.")


class ErrorEvent(Strict):
    """The last line of a call that failed after the first gradient was sent."""

    event: Annotated[Literal["error"], EVENT]
    problem: dict[str, Any] = Field(description="The problem document that the call would have been answered with.")
