"""The VJP rule of one op, applied to symbols.

No rule undoes broadcasting: here the contributions of all rules are summed over the axes that the op broadcast. A rule
on 16-bit floats runs in float32 if it would round more than once, this sum included. The rule itself is written without
dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.ir import Block, Op, StackType, live
from core.ir.builder import BlockBuilder, Cotangent, SparseRows, Value, arrays_of, in_float32_if_better
from core.ir.derived import derived
from core.ir.precision import EXACT, can_widen
from core.ir.registry import as_tuple, lookup

__all__ = ["apply_rule", "fitted"]

Symbols = Sequence[Value | None]
Parts = tuple[Cotangent | None, ...]


def apply_rule(
    b: BlockBuilder, op: Op, cts: Symbols, outs: Symbols, ins: Symbols, wanted: Sequence[bool] | None = None
) -> Parts:
    """The contributions that the rule of `op` makes to the cotangents of its inputs; None for a structural zero.

    cts:       a cotangent for every floating-point output, None for the other outputs.
    outs, ins: the outputs and inputs of `op`.
    wanted:    for each input whether its contribution is used; by default all are.
    """
    used = (True,) * len(ins) if wanted is None else tuple(wanted)
    if can_widen(v.type for v in (*cts, *ins) if v is not None):
        return _in_float32(b, op, cts, outs, ins, used)
    return _contributions(op, cts, outs, ins, used)


def fitted(ct: Cotangent, op: Op, primal: Value) -> Cotangent:
    """`ct` of the operand `primal`, summed over the axes that `op` broadcast."""
    if isinstance(ct, SparseRows) or isinstance(primal.type, StackType):
        return ct
    # two open sizes may differ at run time
    certain = primal.type.is_static or len(op.inputs) == 1 or not lookup(op.type).broadcasts
    if ct.type == primal.type and certain:
        return ct
    assert ct.dtype == primal.dtype, f"the rule of {op.type} gave {ct.type} for {primal.type}"
    if primal.type.is_static and ct.type.is_static:
        return ct.builder.emit("sum_to", ct, shape=primal.shape)  # type: ignore[no-any-return]
    return ct.builder.emit("sum_to_like", ct, primal)  # type: ignore[no-any-return]


def _contributions(op: Op, cts: Symbols, outs: Symbols, ins: Symbols, used: Sequence[bool]) -> Parts:
    return tuple(
        fitted(part, op, primal) if part is not None and primal is not None and each else None
        for part, primal, each in zip(_call_rule(op, cts, outs, ins), ins, used, strict=True)
    )


def _call_rule(op: Op, cts: Symbols, outs: Symbols, ins: Symbols) -> Parts:
    spec = lookup(op.type)
    assert spec.vjp_rule is not None
    if len(outs) == 1 and not spec.variadic_outputs:
        return as_tuple(spec.vjp_rule(cts[0], outs[0], *ins, **op.attrs))
    return as_tuple(spec.vjp_rule(tuple(cts), tuple(outs), *ins, **op.attrs))


def _in_float32(b: BlockBuilder, op: Op, cts: Symbols, outs: Symbols, ins: Symbols, used: tuple[bool, ...]) -> Parts:
    """Apply the rule to 16-bit floats, in float32 where that is more precise.

    The op's outputs were rounded to 16 bits, and differences from them lose digits. The float32 rule therefore reads
    outputs computed again in float32.
    """
    operands = (*cts, *outs, *ins)
    types = tuple(None if v is None else v.type for v in operands)

    def derive() -> tuple[Block, tuple[int, ...]]:
        n = len(outs)
        reached: list[int] = []

        def body(*x: Value | None) -> list[Value]:
            inputs, outputs = x[2 * n :], x[n : 2 * n]
            if op.type not in EXACT and any(v is not None and v.type != t for v, t in zip(x, types, strict=True)):
                outputs = as_tuple(next(v for v in x if v is not None).builder.emit(op.type, *inputs, **op.attrs))
            found = _contributions(op, x[:n], outputs, inputs, used)
            parts = [() if v is None else arrays_of(v) for v in found]
            reached[:] = map(len, parts)
            return [v for part in parts for v in part]

        block = in_float32_if_better(body, types)
        return replace(block, ops=live(block.ops, block.results)), tuple(reached)

    block, reached = derived("rule", lookup(op.type), types, op.attrs, derive, len(outs), used)
    found = iter(b.inline(block, operands))
    return tuple(SparseRows(next(found), next(found)) if r == 2 else next(found) if r else None for r in reached)
