"""Accumulate sums early: keep one running total in memory instead of all addends."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from core.ir import Block, Op, StackType, with_inner
from core.ir.builder import BlockBuilder
from core.ir.precision import is_half

__all__ = ["accumulate_early"]


def accumulate_early(block: Block) -> Block:
    """Write every `sum` of more than two arrays as additions, each right after its operand is computed.

    The gradient of a weight that a thousand ops read has a thousand contributions. They need not exist at the same
    time. The order of the additions does not change. The running total of 16-bit floats is a float32.
    """
    made = {name: i for i, op in enumerate(block.ops) for name in op.outputs}
    behind: dict[int, list[Op]] = defaultdict(list)
    replaced: dict[int, Op] = {}
    b = BlockBuilder()
    b.types.update(block.types)

    def add(position: int, type: str, *names: str, **attrs: str) -> str:
        op = b.typed(b.make(type, *map(b.value, names), **attrs))
        behind[position].append(op)
        return op.outputs[0]

    for index, op in enumerate(block.ops):
        if op.type != "sum" or len(op.inputs) < 3 or isinstance(type := block.types[op.outputs[0]], StackType):
            continue
        position, half, total = -1, is_half(type), op.inputs[0]
        with b.at(op.location):
            for i, name in enumerate(op.inputs if half else op.inputs[:-1]):
                position = max(position, made.get(name, -1))
                each = add(position, "cast", name, dtype="float32") if half else name
                total = each if i == 0 else add(position, "sum", total, each)
            if half:
                replaced[index] = replace(b.make("cast", b.value(total), dtype=type.dtype), outputs=op.outputs)
            else:
                replaced[index] = replace(op, inputs=(total, op.inputs[-1]))
    ops: list[Op] = list(behind.get(-1, ()))
    for index, op in enumerate(block.ops):
        op = replaced.get(index, op)
        ops.append(with_inner(op, accumulate_early))
        ops += behind.get(index, ())
    return replace(block, ops=tuple(ops), types=b.types)
