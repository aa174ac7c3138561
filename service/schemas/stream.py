"""The lines of a streamed answer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.schemas.programs import Strict
from service.schemas.tensors import Gradient

__all__ = ["DoneEvent", "ErrorEvent", "GradientEvent"]


class GradientEvent(Strict):
    """A gradient that is final."""

    event: Literal["gradient"]
    name: str
    ready_at: int | None = Field(description="Position, in the program with its backward pass, of the op that ends it.")
    gradient: Gradient


class DoneEvent(BaseModel):
    """The last line of a call that went well: the members of the answer as JSON, without `gradients`."""

    model_config = ConfigDict(extra="allow")
    event: Literal["done"]
    finite: bool
    missing: dict[str, str] = Field({}, description="Variable -> why it has no gradient.")


class ErrorEvent(Strict):
    """The last line of a call that failed after the stream had begun."""

    event: Literal["error"]
    problem: dict[str, Any] = Field(description="A problem document.")
