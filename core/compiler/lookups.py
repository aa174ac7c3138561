"""Lookups whose tables are updated by rows although the client did not ask for it: nobody sees the gradient."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from core.ir import Op, Program, TensorType, Variable
from core.optim.clipping import Clip
from core.optim.optimizers import Optimizer, dense_reason

__all__ = ["lookups_by_rows"]

LOOKUPS = frozenset({"embedding", "embedding_bag", "lookup_table"})

GATHERS = frozenset({"gather", "index_select"})
"""Ops that are an `embedding` where they read rows of a matrix: converted models have these."""

LEAST_SHARE = 2
"""A table is updated by rows if it has this many rows for each id of a step: merging costs more than adding to a
table, and the rows must leave most of the table alone."""


def lookups_by_rows(program: Program, trained: Collection[str], optimizer: Optimizer, clip: Clip | None) -> Program:
    """`program` with lookups whose gradients are rows, where the update then has the same bits.

    These are lookups outside of loops and branches, also as `gather`, in a table that no other op reads and whose rows
    without a gradient the optimiser does not change.
    trained: the names of the trained parameters. Their gradients must not be results of the step.
    """
    if clip is not None and (clip.by.dense_reason is not None or clip.decay_first):
        return program
    block, readers = program.block, dict[str, list[Op]]()
    for op in block.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    chosen = {
        v.name
        for v in program.parameters
        if v.name in trained
        and v.name in readers
        and all(_is_lookup(op, v) and op.inputs.count(v.name) == 1 for op in readers[v.name])
        and dense_reason(optimizer.of(v.name), v.type.dtype) is None
        and _is_large(v.type, [block.types[op.inputs[1]] for op in readers[v.name]])
    }
    if not chosen:
        return program
    ops = tuple(_by_rows(op) if op.inputs and op.inputs[0] in chosen else op for op in block.ops)
    return replace(program, block=replace(block, ops=ops))


def _is_lookup(op: Op, table: Variable) -> bool:
    rank = len(table.type.shape)
    return op.type in LOOKUPS or (op.type in GATHERS and rank == 2 and op.attrs["axis"] % rank == 0)


def _by_rows(op: Op) -> Op:
    if op.type in GATHERS:
        return replace(op, type="embedding", attrs={"padding_idx": None, "is_sparse": True})
    return replace(op, attrs={**op.attrs, "is_sparse": True})


def _is_large(table: TensorType, ids: list[object]) -> bool:
    """Whether a table has many rows for each of the ids, whose number must be known."""
    if not table.is_static or not all(isinstance(each, TensorType) and each.is_static for each in ids):
        return False
    return table.shape[0] >= LEAST_SHARE * sum(math.prod(each.shape) for each in ids if isinstance(each, TensorType))
