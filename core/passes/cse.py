"""Compute once what is computed twice."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from core.ir import Block, Op

__all__ = ["share_common"]


def share_common(block: Block) -> Block:
    """Ops of one type with the same inputs and attributes become one; an `assign` becomes its input.

    Every op is a pure function of its inputs and attributes (random ones included: their key is an input).
    """
    renamed: dict[str, str] = {}
    seen: dict[Hashable, tuple[str, ...]] = {}
    ops: list[Op] = []
    for op in block.ops:
        inputs = tuple([renamed.get(n, n) for n in op.inputs])
        if op.type == "assign":
            renamed[op.outputs[0]] = inputs[0]
            continue
        attrs = {k: share_common(v) if isinstance(v, Block) else v for k, v in op.attrs.items()}
        op = replace(op, inputs=inputs, attrs=attrs)
        if not any(isinstance(v, Block) for v in attrs.values()):
            key = (op.type, inputs, tuple(attrs.items()))
            if key in seen:
                renamed.update(zip(op.outputs, seen[key], strict=True))
                continue
            seen[key] = op.outputs
        ops.append(op)
    results = tuple(renamed.get(n, n) for n in block.results)
    return replace(block, ops=tuple(ops), results=results)
