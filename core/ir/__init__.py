"""A program as data: types, ops and blocks, the declarations of ops, and a builder that writes blocks in Python.

A program is one closed block and the roles of its parameters. A block is a list of ops in single-assignment form. A
control-flow op holds inner blocks among its attributes. Blocks are *closed*: a block reads only its own parameters and
the outputs of its own earlier ops. Every pass relies on closed blocks and returns closed blocks.

    program    TensorType, StackType, Op, Block, Variable, Program: frozen dataclasses
    registry   the declaration of an op (`OpSpec`), and the table of all ops
    bounds     bounds of attributes and of other values that clients write
    attr_groups  attributes that several ops share
    attr_values  values of attributes: from JSON to their types, and back
    members    declarations of dataclasses that clients write as JSON
    builder    symbols (`Value`), the block under construction, type inference, expansion of composites
    slot_roles  the roles of parameters that ops declare for their inputs
    patterns   names and patterns of variables
    names      the variables of a program that a client's variable name refers to
    generated  names of generated variables
    precision  conditions for computing 16-bit floats in float32
    suggest    similar names, for "did you mean"
    errors     `CoreError` and its kinds, problems and their places
    exact      cache keys that distinguish 0.0 from -0.0, and 1 from 1.0
    derived    one cache for output types, expansions and pullbacks
    lru        a bounded, thread-safe cache
    recursion  a higher recursion limit for deeply nested programs
    size       the number of ops of a block, and its limit
    stop       the end of a long transformation whose caller gives up
    aligned    arrays that start at a cache line
"""

from core.ir.program import (
    DTYPES,
    FLOATS,
    HOLE,
    INTEGERS,
    OF_FUNCTION,
    Block,
    Op,
    Program,
    Role,
    StackType,
    TensorType,
    Type,
    Variable,
    blocks_inside,
    inner_blocks,
    live,
    reads,
    unknown_dtype,
    with_inner,
)

__all__ = [
    "DTYPES",
    "FLOATS",
    "HOLE",
    "INTEGERS",
    "OF_FUNCTION",
    "Block",
    "Op",
    "Program",
    "Role",
    "StackType",
    "TensorType",
    "Type",
    "Variable",
    "blocks_inside",
    "inner_blocks",
    "live",
    "reads",
    "unknown_dtype",
    "with_inner",
]
