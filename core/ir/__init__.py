"""A program as data: types, ops and blocks; how ops are declared, and how blocks are written in Python.

A program is one closed block and the roles of its parameters. A block is a list of ops in single-assignment form; a
control-flow op holds further blocks among its attributes. Blocks are *closed*: they read their own parameters and the
outputs of their own earlier ops, and nothing else. Every pass relies on that and keeps it true.

    program    TensorType, StackType, Op, Block, Variable, Program: frozen dataclasses
    registry   the declaration of an op (`OpSpec`), and the table of all ops
    builder    symbols (`Value`) and the block that they write; type inference; expansion of composites
    names      from a client's variable name to a variable of the program
    precision  when 16-bit floats are computed in float32
    errors     `CoreError` and its kinds, problems and their places
    exact      keys that tell 0.0 from -0.0, and 1 from 1.0
    derived    one table for whatever follows from a declaration: output types, expansions, pullbacks
    lru        a bounded cache for several threads
    recursion  room for deep nesting
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
