"""The construct `if_else_rows`: each row of a batch goes through the branch that its condition selects."""

from __future__ import annotations

from dataclasses import replace

from core.ir import Block, TensorType, Type
from core.ir.attr_values import BlockIndex, LocalName
from core.ir.builder import BlockBuilder
from core.ir.errors import ProgramError
from core.ir.registry import Slot, construct
from core.ops import control
from core.ops.common.types import joined_type
from core.wire.reader import Reader
from core.wire.scope import local_names
from core.wire.site import Site

__all__: list[str] = []

FAMILY = control.FAMILY


@construct(inputs=(Slot("condition"), Slot("x", variadic=True)))
def if_else_rows(
    r: Reader, at: Site, *, true_block: BlockIndex, false_block: BlockIndex, rows: tuple[LocalName, ...] = ()
) -> None:
    """Split the rows of `x` by `condition` (one bool per row), run each inner block on its rows, and merge the
    results.

    - `rows`: names of the rows of each x inside the blocks. Every other variable is visible as a whole.

    Both blocks write the variables in `out`, with one row for each of their rows. The results have the order of the
    rows of `condition`. A block without rows does not run, and its gradient is exactly 0. Random ops are not allowed
    inside.
    """
    condition = r.operand(at, "condition")
    if not isinstance(condition.type, TensorType) or condition.dtype != "bool" or condition.rank not in (1, 2):
        raise ProgramError(f"the condition must have one bool per row, not {condition.type}", "bad_condition")
    mask = at.b.emit("reshape", condition, shape=(condition.shape[0],)) if condition.rank == 2 else condition
    operands = r.operands(at, "x")
    if len(rows) != len(operands):
        raise at.refuse(
            f"rows must have one name per operand, not {len(rows)} for {len(operands)} operands",
            "bad_attr",
            "attrs/rows",
        )
    requested = list(at.raw.outputs.get("out", ()))
    if not requested:
        raise at.refuse("out must list at least one variable that both blocks write", "bad_slot", "outputs")
    local = local_names(at.raw)
    touched = [r.scopes.touched(i) for i in (true_block, false_block)]
    for each in touched:
        if each.draws:
            raise ProgramError("random ops cannot be used in if_else_rows", "bad_block")
        for name in each.writes:
            if name in at.env and name not in local and name not in requested:
                raise ProgramError(f"if_else_rows cannot overwrite {name!r}: list it in out", "bad_slot")
    read = list(dict.fromkeys(n for t in touched for n in t.reads if n in at.env and n not in local))
    captured = at.current(read)
    parts = [at.b.emit("split_by_mask", x, mask) for x in operands]
    sides = [[each[side] for each in parts] for side in (0, 1)]
    zero = at.b.constant(0, "int64")
    nonempty = [
        at.b.emit("greater_than", at.b.emit("reduce_sum", at.b.emit("cast", chosen, dtype="int64")), zero)
        for chosen in (mask, at.b.emit("logical_not", mask))
    ]
    found = []
    for index, given, run in zip((true_block, false_block), sides, nonempty, strict=True):
        types = {n: v.type for n, v in zip((*read, *rows), (*captured, *given), strict=True)}
        block, names = r.open_block(r.raw.blocks[index], types, requested, local=local)
        found.append((run, given, replace(block, results=tuple(names[n] for n in requested))))
    row_types = [
        _row_type(n, joined_type(s, t, "branch_mismatch", f"the branches give {n!r} different types"))
        for n, s, t in zip(requested, found[0][2].result_types, found[1][2].result_types, strict=True)
    ]
    outs = []
    for run, given, block in found:
        op = at.b.make("if_else", run, *captured, *given, true_block=block, false_block=_empty_block(block, row_types))
        outs.append(at.b.append(op))
    for name, a, b in zip(requested, *outs, strict=True):
        r.define(at, at.b.typed(at.b.make("merge_by_mask", mask, a, b)), [name])


def _row_type(name: str, type: Type) -> TensorType:
    if not isinstance(type, TensorType) or type.rank == 0:
        raise ProgramError(f"{name!r} must be an array with rows, not {type}", "branch_mismatch")
    return type


def _empty_block(like: Block, types: list[TensorType]) -> Block:
    """A block with the parameters of `like` that returns arrays with 0 rows."""
    b = BlockBuilder()
    for name, type in zip(like.params, like.param_types, strict=True):
        b.param(type, name)
    return b.build([b.constant(0, t.dtype, (0, *(max(n, 0) for n in t.shape[1:]))) for t in types])
