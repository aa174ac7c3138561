"""One-shot gradients: what is asked and what is answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, model_validator

from service.schemas.programs import Strict
from service.schemas.tensors import Tensor, Tensors

__all__ = [
    "PROGRAM",
    "Deadline",
    "Fetch",
    "GradientsAnswer",
    "GradientsRequest",
    "InlineGradientsRequest",
    "Name",
    "ProgramDocument",
    "Question",
    "Returned",
    "Seed",
]

Name = Annotated[str, Field(min_length=1, max_length=256)]
Fetch = Annotated[list[Name], Field(max_length=10_000, description="Further variables of block 0 to return.")]
Returned = Annotated[
    Literal["none", "norms", "all"] | list[Name],
    Field(description="Which gradients go back: none, only their norms, all, or those of the named variables."),
]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1, description="What random ops draw depends on it, and on the step.")]
Deadline = Annotated[
    float | None, Field(gt=0, description="Seconds, waiting included; the service has a default and a maximum.")
]
PROGRAM = {"type": "object", "title": "Program"}
"""Stands for the schema of programs until the OpenAPI document is put together."""
ProgramDocument = Annotated[dict[str, Any], WithJsonSchema(PROGRAM)]
"""Read by the core, which tells all problems of a program at once."""


class Question(Strict):
    """Which gradients: of a scalar `loss` by parameters, or of `targets` by `inputs`."""

    loss: Name | None = Field(None, description="A variable of one element in block 0.", examples=["loss"])
    parameter_list: list[Name] | None = Field(None, description="Parameters; all trainable ones by default.")
    targets: list[Name] = Field([], description="In place of a loss: variables of any shape.")
    inputs: list[Name] = Field([], description="With targets: what to differentiate by.")
    no_grad_set: list[Name] = Field([], description="Variables through which nothing flows.")
    unconnected: Literal["null", "zeros", "error"] = Field(
        "null", description="What stands for a gradient that does not exist; null: it is told under `missing`."
    )

    def query(self) -> dict[str, Any]:
        """The members that a worker needs to know what is asked."""
        names = ("loss", "parameter_list", "targets", "inputs", "no_grad_set", "unconnected")
        return {name: getattr(self, name) for name in names}


class GradientsRequest(Question):
    """Values for everything that the program reads, and which gradients are wanted.

    In a safetensors body the tensors stand in the file under the names of the variables (cotangents as
    `target_gradients/0`, ...), and these members, without the tensors, in `__metadata__.request`.
    """

    feeds: Tensors = Field({})
    parameters: Tensors = Field({})
    states: Tensors = Field({})
    target_gradients: list[Tensor] = Field(
        [], max_length=10_000, description="For each target its cotangent, or null for ones."
    )
    fetch: Fetch = Field([])
    return_gradients: Returned = "all"
    seed: Seed = 0
    step: Seed = 0
    deadline_s: Deadline = None


class InlineGradientsRequest(GradientsRequest):
    """The same, with the program itself or the id of a registered one."""

    program: ProgramDocument | None = None
    program_id: str | None = Field(None, max_length=64)

    @model_validator(mode="after")
    def _one_program(self) -> InlineGradientsRequest:
        if (self.program is None) == (self.program_id is None):
            raise ValueError("exactly one of program and program_id is needed")
        return self


class Timed(Strict):
    """What every answer from a worker says besides."""

    finite: bool = Field(description="Whether loss, fetched values and gradients are free of NaN and infinity.")
    missing: dict[str, str] = Field({}, description="Variable -> why it has no gradient.")
    gradient_norms: dict[str, float | None] = Field(
        {}, description="2-norm of each gradient and of all together (`global`); null where it is not finite."
    )
    compiled: bool = Field(description="Whether the program had to be compiled for this call.")
    timing_ms: dict[str, float]


class GradientsAnswer(Timed):
    """Loss, gradients and fetched values. As a file: `loss`, `grad/<name>`, `fetch/<name>`, `state/<name>`."""

    loss: Tensor = None
    gradients: Tensors = Field({})
    fetched: Tensors = Field({})
    states: Tensors = Field({}, description="What the program wrote to its states.")
