"""Programs as the API documents them.

The core validates programs itself and reports all problems at once; these models only provide the OpenAPI schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from core.ir import DTYPES
from service.schemas.members import PROGRAM, OpType
from service.schemas.tensors import Tensors

__all__ = ["Block", "Op", "Program", "Registration", "Strict", "Variable"]


class Strict(BaseModel):
    """No conversions, no unknown members, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Variable(Strict):
    """The declaration of a variable. Temporaries need none: their types are inferred."""

    name: str = Field(
        description="Up to 128 letters, digits and _ . : / -; the first is a letter, a digit, _ or /.", examples=["w"]
    )
    dtype: Annotated[str, WithJsonSchema({"type": "string", "enum": list(DTYPES)})] | None = Field(
        None, description="Type of the elements. Required unless the variable is a temporary."
    )
    shape: list[int] | None = Field(None, description="Sizes; each step sets a size of -1, which only feeds may have.")
    role: Literal["feed", "parameter", "state", "temporary", "key"] = Field(
        "temporary",
        description="feed: given with each step. parameter: trained. state: kept between steps, not trained. "
        "temporary: written by an op. key: only in answers, the key that random ops draw from.",
    )
    trainable: bool = Field(True, description="Whether a parameter is trained; false freezes it.")
    stop_gradient: bool = Field(False, description="True stops gradients at the first op that writes the variable.")
    stack_depth: int = Field(0, description="Only in answers: above 0 for a stack recorded by that many nested loops.")


class Origin(Strict):
    """An op of the program that an answer was made from."""

    block: int = Field(description="Position of its block in the list of blocks.")
    op: int = Field(description="Position of the op in its block.")
    type: OpType
    function: str | None = Field(None, description="The function that has the op; absent for the program itself.")


class Op(Strict):
    """One application of an op. `GET /v1/ops` lists the types with their slots and attributes."""

    type: OpType
    inputs: dict[str, str | list[str]] = Field({}, description="Slot -> name of a variable, or a list of names.")
    outputs: dict[str, str | list[str]] = Field({}, description="Slot -> name of a variable, or a list of names.")
    attrs: dict[str, Any] = Field({}, description="Attributes. Control flow refers to its inner blocks by index.")
    made_from: Origin | None = Field(None, description="Only in answers: the op of the request that this one is.")
    backward_of: Origin | None = Field(
        None, description="Only in answers: the op of the request that this one helps to differentiate."
    )


class Block(Strict):
    """A list of ops. Inner blocks may read and overwrite the variables around them."""

    idx: int = Field(0, description="Position of the block in the list of blocks.")
    parent_idx: int = Field(-1, description="Index of the block with the op that runs this one; -1 for block 0.")
    forward_block_idx: int = Field(-1, description="Only in answers: index of the block whose backward pass this is.")
    vars: list[Variable] = Field([], description="Declarations of variables, in any order.")
    ops: list[Op] = Field(description="The ops, in the order in which they run.")
    params: list[str] | None = Field(None, description="Closed form: inputs of the block, by position.")
    results: list[str] | None = Field(None, description="Closed form: outputs of the block, by position.")


class FunctionBody(Strict):
    """Blocks of ops; block 0 is the root."""

    version: Literal[1] = Field(1, description="Version of the format of programs.")
    form: Literal["open", "closed"] = Field(
        "open",
        description="open: blocks read and overwrite outer variables. closed: the form of this service's answers.",
    )
    blocks: list[Block] = Field(
        min_length=1, description="The blocks; block 0 is the root, and ops run the others by their index."
    )
    names: dict[str, str] = Field({}, description="Closed form: name -> variable with its last version.")


class Function(Strict):
    """A function of a program. Feeds are its arguments; ops of the type `call` run it."""

    program: FunctionBody = Field(description="The blocks of the function.")
    results: list[str | None] = Field(
        [], description="Variables of block 0 that it returns. In a function that is a gradient, null for no gradient."
    )
    gradient: str | None = Field(
        None, description="The function of the program that computes its gradient; by default the ops decide."
    )


class Program(FunctionBody):
    """Blocks of ops, and the functions that they call; block 0 is the root."""

    functions: dict[str, Function] = Field({}, description="Functions by name. Ops of the type `call` run them.")
    values: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of the file of its initial values. The service sets it when it stores values.",
    )
    aliases: dict[str, str] = Field(
        {}, description="Variable -> its name in ONNX models, for names that a program does not allow."
    )
    sizes: dict[str, list[str | None]] = Field(
        {},
        description="Feed -> a name or null for each of its sizes; only open sizes have names. ONNX models show them.",
    )


class Registration(Strict):
    """The body of POST /v1/programs."""

    program: Annotated[Program, PROGRAM]
    values: Tensors = Field({}, description="Initial values of parameters and states by name.")
