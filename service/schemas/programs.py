"""Programs as the API documents them.

The core reads programs itself, and tells all problems at once; these models give OpenAPI its schema and catch nothing
that the core does not.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from core.ir import DTYPES

__all__ = ["Block", "Op", "Program", "Registration", "Strict", "Variable"]


class Strict(BaseModel):
    """No conversions, no unknown members, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Variable(Strict):
    """A declaration. Temporaries need none: their types are inferred."""

    name: str = Field(description="Up to 128 letters, digits and _ . / -", examples=["w"])
    dtype: str | None = Field(None, json_schema_extra={"enum": list(DTYPES)})
    shape: list[int] | None = Field(None, description="Sizes; -1 in a feed is bound when a step arrives.")
    role: Literal["feed", "parameter", "state", "temporary"] = Field(
        "temporary",
        description="feed: given with each step. parameter: trained. state: kept between steps, not trained.",
    )
    trainable: bool = Field(True, description="False freezes a parameter.")
    stop_gradient: bool = Field(False, description="No gradient flows back through its first definition.")
    stack_depth: int = Field(0, description="Only in answers: what a loop recorded, this many loops deep.")


class Op(Strict):
    """One application of an op. `GET /v1/ops` lists the types with their slots and attributes."""

    type: str = Field(examples=["matmul"])
    inputs: dict[str, str | list[str]] = Field({}, description="Slot -> variable name or names.")
    outputs: dict[str, str | list[str]] = Field({}, description="Slot -> variable name or names.")
    attrs: dict[str, Any] = Field({}, description="Attributes; control flow names its inner blocks by index here.")


class Block(Strict):
    """A list of ops. Inner blocks may read and overwrite the variables around them."""

    idx: int = Field(0, description="Its position in the list of blocks.")
    parent_idx: int = Field(-1, description="The block that holds the op which runs this one; -1 for block 0.")
    forward_block_idx: int = Field(-1, description="Only in answers: the block whose backward pass this is.")
    vars: list[Variable] = []
    ops: list[Op]
    params: list[str] | None = Field(None, description="Closed form: what the block is given, by position.")
    results: list[str] | None = Field(None, description="Closed form: what the block returns, by position.")


class Program(Strict):
    """Blocks of ops; block 0 is the root."""

    version: Literal[1] = 1
    form: Literal["open", "closed"] = Field("open", description="closed: an answer of this service sent back.")
    blocks: list[Block] = Field(min_length=1)
    names: dict[str, str] = Field({}, description="Closed form: name -> variable that holds its last version.")


class Registration(Strict):
    """The body of POST /v1/programs."""

    program: Program
