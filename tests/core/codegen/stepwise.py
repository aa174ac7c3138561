"""Blocks of one op for tests of machine code, and what of them is not machine code."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.registry import as_tuple
from core.plan import plan_block
from core.runtime.native import native_interpreter
from core.runtime.run import Run

__all__ = ["all_compiled", "block_of", "compiled"]


def block_of(name: str, *values: Any, **attrs: Any) -> Block:
    """A block of one op, whose parameters have the types of `values`; None is an absent input."""
    b = BlockBuilder()
    types = [None if v is None else TensorType(np.shape(v), str(np.asarray(v).dtype)) for v in values]
    given = [None if t is None else b.param(t) for t in types]
    return optimize(b.build(as_tuple(b.emit(name, *given, **attrs))))


def all_compiled(block: Block) -> bool:
    """Whether no op of a block is left to the reference executor."""
    return not plan_block(block, CPU.target).interpreted


def compiled(name: str, *values: Any, **attrs: Any) -> Any:
    """The results of one op, which must be machine code; a single one without its tuple."""
    block = block_of(name, *values, **attrs)
    assert all_compiled(block)
    found = native_interpreter(block, CPU)(Run(), *[v for v in values if v is not None])
    return found[0] if len(found) == 1 else tuple(found)
