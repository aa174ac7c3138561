"""The construct `safe_where`: elementwise selection in which the side not selected has no gradient."""

from __future__ import annotations

from core.ir import Op, TensorType
from core.ir.attr_values import BlockIndex
from core.ir.builder import BlockBuilder, Value, expansion
from core.ir.errors import ProgramError
from core.ir.registry import Slot, construct, lookup
from core.ops import control
from core.wire.reader import Reader
from core.wire.site import AlreadyReported, Site

__all__: list[str] = []

FAMILY = control.FAMILY

UNIFORM = ("fill_zeros_like", "full_like")


@construct(inputs=(Slot("condition"),))
def safe_where(r: Reader, at: Site, *, true_block: BlockIndex, false_block: BlockIndex) -> None:
    """Run both inner blocks on all elements, and select each variable in `out` elementwise by `condition`.

    Example: with ``out = sqrt(x)`` in one block and ``out = 0 * x`` in the other, the gradient where x is not positive
    is that of ``0 * x``, although the gradient of the square root is inf or NaN there. A plain `where` would give NaN.
    The blocks read outer variables through `mask_gradient`. An element therefore gets a gradient only from the selected
    side, at any order of derivative. Shapes broadcast. The blocks may contain only elementwise ops, and may overwrite
    outer variables only if `out` lists them.
    """
    condition = r.operand(at, "condition")
    if not isinstance(condition.type, TensorType) or condition.dtype != "bool":
        raise ProgramError(f"the condition of safe_where must be bool, not {condition.type}", "bad_condition")
    requested = list(at.raw.outputs.get("out", ()))
    if not requested:
        raise at.refuse("out must list at least one variable that both blocks write", "bad_slot", "outputs")
    sides = [
        _masked_side(r, at, true_block, condition, requested),
        _masked_side(r, at, false_block, at.b.emit("logical_not", condition), requested),
    ]
    for name, a, b in zip(requested, *sides, strict=True):
        r.define(at, at.b.typed(at.b.make("where", condition, a, b)), [name])


def _masked_side(r: Reader, at: Site, index: int, selected: Value, requested: list[str]) -> list[Value]:
    """The values of the names `requested` after the ops of an inner block, which are inlined here.

    selected: bool mask. The gradient of each outer variable that the block reads is masked with it.
    """
    touched = r.scopes.touched(index)
    if touched.draws:
        raise ProgramError("random ops cannot be used in safe_where", "bad_block")
    for name in touched.writes:
        if name in at.env and name not in requested:
            raise ProgramError(f"safe_where cannot overwrite {name!r}: list it in out", "bad_slot")
    missing = [name for name in requested if name not in touched.writes]
    if missing:
        raise ProgramError(f"block {index} does not write {missing[0]!r}", "branch_mismatch")
    read = [n for n in touched.reads if n in at.env]
    env = dict(at.env)
    for name, value in zip(read, at.current(read), strict=True):
        if isinstance(value.type, TensorType) and value.type.is_float:
            env[name] = at.b.emit("mask_gradient", selected, value)
    first = len(at.b.ops)
    r.inline_block(at.versions, env, r.raw.blocks[index])
    for op in at.b.ops[first:]:
        _check_elementwise(at.b, op)
    found = [env[name] for name in requested]
    if None in found:
        raise AlreadyReported
    return [v for v in found if v is not None]


def _check_elementwise(b: BlockBuilder, op: Op) -> None:
    """Raises ProgramError (bad_block) for an op that mixes elements: a mask on its inputs would be wrong for its
    outputs.
    """
    spec = lookup(op.type)
    if spec.elementwise or not op.inputs or op.type in UNIFORM:
        return
    if spec.kind != "composite":
        raise ProgramError(f"safe_where allows only elementwise ops, not {op.type}", "bad_block", location=op.location)
    inner = BlockBuilder.like(expansion(spec, tuple(b.types.get(n) for n in op.inputs), op.attrs))
    for each in inner.ops:
        _check_elementwise(inner, Op(each.type, each.inputs, each.outputs, each.attrs, op.location))
