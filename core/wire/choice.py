"""A choice element by element, where what one side computes for the other's elements reaches no gradient."""

from __future__ import annotations

from core.ir import Op, TensorType
from core.ir.builder import BlockBuilder, Value, expansion
from core.ir.errors import ProgramError
from core.ir.registry import BlockIndex, Slot, construct, lookup
from core.ops import control
from core.wire.reader import Reader
from core.wire.site import Known, Site

__all__: list[str] = []

FAMILY = control.FAMILY

UNIFORM = ("fill_zeros_like", "full_like")


@construct(inputs=(Slot("condition"),))
def safe_where(r: Reader, at: Site, *, true_block: BlockIndex, false_block: BlockIndex) -> None:
    """Run both inner blocks on all elements, and take each variable named in `out` from the side that `condition` says.

    With ``out = sqrt(x)`` in one block and ``out = 0 * x`` in the other this is what `where` was to be: where x is not
    positive the gradient is that of ``0 * x``, though that of the square root is inf or NaN there. The blocks read the
    variables around them through `mask_gradient`, so that an element of theirs gets a gradient from the side it chose
    only, at any order. Shapes broadcast. The blocks work element by element; they overwrite nothing around them.
    """
    condition = r.operand(at, "condition")
    if not isinstance(condition.type, TensorType) or condition.dtype != "bool":
        raise ProgramError(f"the condition must be bool, not {condition.type}", "bad_condition")
    wanted = list(at.raw.outputs.get("out", ()))
    if not wanted:
        raise at.refuse("name what both blocks write in out", "bad_slot", "outputs")
    sides = [
        _side(r, at, true_block, condition, wanted),
        _side(r, at, false_block, at.b.emit("logical_not", condition), wanted),
    ]
    for name, a, b in zip(wanted, *sides, strict=True):
        r.define(at, at.b.typed(at.b.make("where", condition, a, b)), [name])


def _side(r: Reader, at: Site, index: int, chosen: Value, wanted: list[str]) -> list[Value]:
    """The values of `wanted` after the ops of an inner block, which stand here; what it reads is masked by `chosen`."""
    touched = r.scopes.touched(index)
    if touched.draws:
        raise ProgramError("random ops cannot be used in safe_where", "bad_block")
    for name in touched.writes:
        if name in at.env and name not in wanted:
            raise ProgramError(f"safe_where cannot overwrite {name!r}: list it in out", "bad_slot")
    missing = [name for name in wanted if name not in touched.writes]
    if missing:
        raise ProgramError(f"block {index} does not write {missing[0]!r}", "branch_mismatch")
    read = [n for n in touched.reads if n in at.env]
    env = dict(at.env)
    for name, value in zip(read, at.known(read), strict=True):
        if isinstance(value.type, TensorType) and value.type.is_float:
            env[name] = at.b.emit("mask_gradient", chosen, value)
    first = len(at.b.ops)
    r.scope(at.versions, env, r.raw.blocks[index])
    for op in at.b.ops[first:]:
        _check_elementwise(at.b, op)
    found = [env[name] for name in wanted]
    if None in found:
        raise Known
    return [v for v in found if v is not None]


def _check_elementwise(b: BlockBuilder, op: Op) -> None:
    """Raises ProgramError for an op in which one element depends on another: masking would drop what flows across."""
    spec = lookup(op.type)
    if spec.elementwise or not op.inputs or op.type in UNIFORM:
        return
    if spec.kind != "composite":
        raise ProgramError(
            f"safe_where works element by element, and {op.type} does not", "bad_block", location=op.location
        )
    inner = BlockBuilder.like(expansion(spec, tuple(b.types.get(n) for n in op.inputs), op.attrs))
    for each in inner.ops:
        _check_elementwise(inner, Op(each.type, each.inputs, each.outputs, each.attrs, op.location))
