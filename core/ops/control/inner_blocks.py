"""The backward pass of an inner block and its residuals, for the gradient rules of loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from core.autodiff.adjoint import Adjoint
from core.ir import HOLE, Block, Op, StackType, TensorType, Type, live, reads, with_inner
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import ProgramError
from core.ir.generated import residual
from core.ir.names import unversioned
from core.ir.registry import lookup
from core.ops.shape.creation import fill_constant

VIEWS = frozenset({"array_chunks", "array_unstack"})
"""Ops whose result is another view of their operand, which is stored in its place."""

PARTS = frozenset({"assign", "expand", "reshape", "slice", "squeeze", "transpose", "unsqueeze"})
"""Ops whose results are other views of their operand, or parts of it."""

__all__ = ["BranchMemory", "LoopMemory", "Side", "check_condition", "empty", "free_names", "silent", "zero_cotangent"]

BranchMemory = Literal["store", "recompute"]
LoopMemory = Literal["store", "recompute", "sqrt", "binomial"]


@dataclass(slots=True)
class Side:
    """The backward pass of one inner block, and the values of the forward block that it reads.

    ops:     the ops of the backward block.
    reads:   the variables of the forward block that they read.
    forward: the forward block, whose own loops and branches now return their residuals.
    """

    adjoint: Adjoint
    ops: tuple[Op, ...]
    reads: list[str]
    forward: Block

    @classmethod
    def of(
        cls, a: Adjoint, results: Sequence[str], memory: str, checkpoints: Sequence[str], given: Collection[str] = ()
    ) -> Side:
        """The ops that `results` need. The forward values that they read are stored, or computed again among these ops.

        With `memory` "store" only constants, `VIEWS`, and `PARTS` of the parameters `given` are computed again;
        otherwise all values except the parameters of the block and the variables named in `checkpoints`.
        given: parameters that the backward block can read without storing them.
        """
        names = [a.final(r) for r in results]
        ops = [_without_reading(a, each) for each in live(a.ops(), names)]
        read = [n for n in reads(ops, names, a.b.types) if a.is_primal(n)]
        if memory == "store":
            free, parts = set[str](), set(given)
            for each in (_without_reading(a, op) for op in a.primal):
                if each.type in PARTS and parts.issuperset(each.inputs):
                    parts.update(each.outputs)
                    free.update(each.outputs)
                elif not each.inputs or each.type in VIEWS:
                    free.update(each.outputs)
            again, read = _again(a, read, lambda n: n in free)
            forward = a.part(a.primal, a.block.params, a.block.results)
        else:
            kept = {*a.block.params, *(n for n in a.block.types if unversioned(n) in checkpoints)}
            again, read = _again(a, read, lambda n: n not in kept)
            forward = a.block
        return cls(a, (*again, *ops), read, forward)


def _again(a: Adjoint, read: Sequence[str], lost: Callable[[str], bool]) -> tuple[list[Op], list[str]]:
    """The forward ops that compute the `lost` variables in `read`, and the variables that are still read from
    outside.
    """
    needed = {n for n in read if lost(n)}
    kept = dict.fromkeys(n for n in read if not lost(n))
    ops: list[Op] = []
    for op in reversed(a.primal):
        if needed.isdisjoint(op.outputs):
            continue
        op = _without_reading(a, op)
        # an output that is stored exists already: its recomputed copy gets a name that no op reads
        outputs = tuple(n if lost(n) else a.b.fresh(op.type) for n in op.outputs)
        a.b.types.update((new, a.b.types[old]) for new, old in zip(outputs, op.outputs, strict=True))
        ops.append(silent(replace(op, outputs=outputs)))
        needed.update(n for n in op.inputs if n != HOLE and lost(n))
        kept.update((n, None) for n in op.inputs if n != HOLE and not lost(n))
    order = {n: i for i, n in enumerate(a.b.types)}
    return ops[::-1], sorted(kept, key=order.__getitem__)


def silent(op: Op) -> Op:
    """`op` without messages, for a run that repeats an earlier one: the earlier one has reported them."""
    if lookup(op.type).reports:
        return replace(op, type="assign", attrs={})
    return with_inner(op, lambda block: replace(block, ops=tuple(map(silent, block.ops))))


def _without_reading(a: Adjoint, op: Op) -> Op:
    """`op`, or a constant in its place if it fills an array of a known shape: the value it reads is no residual."""
    if op.type in ("fill_zeros_like", "full_like"):
        type = a.b.types[op.inputs[0]]
        if isinstance(type, TensorType) and type.is_static:
            attrs = {"shape": type.shape, "value": op.attrs.get("value", 0.0), "dtype": type.dtype}
            return replace(op, type="fill_constant", inputs=(), attrs=fill_constant.complete(attrs))
    return op


def check_condition(op: str, type: Type | None) -> None:
    """Raises ProgramError (bad_condition) unless `type` is one bool."""
    if not isinstance(type, TensorType) or type.dtype != "bool" or any(n not in (1, -1) for n in type.shape):
        raise ProgramError(f"the condition of {op} must be one bool, not {type}", "bad_condition")


def empty(b: BlockBuilder, type: Type) -> Value:
    """A placeholder for a residual of the other branch; no op reads it."""
    if isinstance(type, StackType):
        depth, element = 0, type
        while isinstance(element, StackType):
            depth, element = depth + 1, element.element  # type: ignore[assignment]
        return b.emit("empty_stack", depth=depth, shape=element.shape, dtype=element.dtype)
    return b.constant(0.0, type.dtype, tuple(max(n, 0) for n in type.shape))


def zero_cotangent(b: BlockBuilder, value: Value) -> Value:
    """Zeros for the cotangent of `value`. That of a tensor array has no elements, which stand for zeros: its adjoint
    need not keep the array to know the length.
    """
    nested = isinstance(value.type, StackType) and isinstance(value.type.element, StackType)
    return empty(b, value.type) if isinstance(value.type, StackType) and not nested else b.zeros_like(value)


def free_names(a: Adjoint, names: Sequence[str], tag: str) -> list[str]:
    """Names for the residuals of the inner variables `names` in the block of `a`."""
    return [a.b.free(residual(name, tag)) for name in names]
