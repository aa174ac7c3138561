"""The program with its backward pass, and tables about it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from service.schemas.gradients import Densified, MemoryChoice, ProgramDocument
from service.schemas.members import PROGRAM
from service.schemas.programs import Strict

__all__ = ["BackwardProgram"]


class RowVariables(Strict):
    """The variables of a gradient that is also computed as rows."""

    rows: str = Field(description="Variable with the row numbers.")
    values: str = Field(description="Variable with the values of these rows.")


class BackwardProgram(Strict):
    """A program that computes gradients. Its tables name variables, positions in block 0, and ops of the request."""

    program: Annotated[ProgramDocument, PROGRAM]
    params_grads: list[list[str | None]] = Field(
        description="Pairs of a requested name and its gradient variable, which is null if there is none."
    )
    grad_to_var: dict[str, str] = Field(description="Gradient variable -> forward variable.")
    grad_info_map: dict[str, list[str | int]] = Field(
        description="Forward variable -> its gradient variable and the index of the block of that variable."
    )
    backward_ops: list[dict[str, Any]] = Field(
        description="For each backward op its position `op`, and its forward op: `forward_block`, `forward_op`, "
        "`forward_type`, and `forward_function` if it is inside a function."
    )
    op_roles: list[int] = Field(
        description="For each op of block 0: 0 forward, 256 forward and loss, 257 backward and loss, 1 backward."
    )
    op_role_vars: list[list[str]] = Field(
        description="For each op of block 0 the parameters whose gradients it completes, each before its gradient."
    )
    ready_at: dict[str, int] = Field(description="Requested name -> position of the op that completes its gradient.")
    missing: dict[str, str] = Field(description="Requested name -> reason why it has no gradient.")
    rewrites: list[str] = Field(description="Changes to the forward part, as sentences.")
    recorded: dict[str, str] = Field(description="`block:name` -> variable of the gradient that a hook records.")
    hooked: list[list[int | str]] = Field(
        description="Pairs of the number of a hook and the `block:name` whose gradient it acts on."
    )
    checkpoints: list[str] = Field(description="Forward variables that cross a cut and stay in memory.")
    sparse: dict[str, RowVariables] = Field(description="Tables whose gradient is also computed as rows.")
    densified: list[Densified] = Field(
        description="Tables with sparse lookups whose gradient had to become a dense array."
    )
    memory: MemoryChoice | None = Field(description="The choice made for a budget; null without one.")
