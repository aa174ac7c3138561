"""Common subexpression elimination: compute equal expressions once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from core.ir import Block, Op, with_inner
from core.ir.exact import exact_attrs
from core.ir.registry import is_loop
from core.passes.merge import merge_loops

__all__ = ["share_common"]


def share_common(block: Block) -> Block:
    """Merge ops of one type with equal inputs and attributes, replace `assign` by its input, and merge loops that
    differ only in their recorded values.

    Every op is a pure function of its inputs and attributes. This includes random ops: their key is an input.
    """
    renamed: dict[str, str] = {}
    seen: dict[Hashable, Op] = {}
    loops: dict[Hashable, int] = {}
    ops: list[Op] = []
    final = renamed.get
    for op in block.ops:
        inputs = tuple([final(n, n) for n in op.inputs])
        if op.type == "assign":
            renamed[op.outputs[0]] = inputs[0]
            continue
        inside = with_inner(op, share_common)
        if inside is op:
            same = seen.setdefault((op.type, inputs, exact_attrs(op.attrs)), op)
            if same is not op:
                renamed.update(zip(op.outputs, same.outputs, strict=True))
                continue
        if is_loop(op):
            trips = (inputs, exact_attrs({k: v for k, v in op.attrs.items() if k != "sub_block"}))
            at = loops.setdefault(trips, len(ops))
            merged = merge_loops(ops[at], inside, share_common) if at < len(ops) else None
            if merged:
                ops[at] = merged[0]
                renamed.update(merged[1])
                continue
        ops.append(inside if inputs == inside.inputs else replace(inside, inputs=inputs))
    results = tuple(renamed.get(n, n) for n in block.results)
    return replace(block, ops=tuple(ops), results=results)
