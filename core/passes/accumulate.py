"""Add up early: a sum of many values holds one running total instead of all of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from core.build import BlockBuilder
from core.ir import Block, Op, StackType, with_inner

__all__ = ["accumulate_early"]


def accumulate_early(block: Block) -> Block:
    """Every `sum` of more than two arrays as additions, each right after its operand; the order of addition stays.

    A weight that is read a thousand times has a thousand contributions to its gradient, and no two of them need to
    exist at once.
    """
    made = {name: i for i, op in enumerate(block.ops) for name in op.outputs}
    behind: dict[int, list[Op]] = defaultdict(list)
    replaced: dict[int, Op] = {}
    b = BlockBuilder()
    b.types.update(block.types)
    for index, op in enumerate(block.ops):
        if op.type != "sum" or len(op.inputs) < 3 or isinstance(block.types[op.outputs[0]], StackType):
            continue
        total, position = op.inputs[0], made.get(op.inputs[0], -1)
        with b.at(op.location):
            for name in op.inputs[1:-1]:
                position = max(position, made.get(name, -1))
                add = b.typed(b.make("sum", b.value(total), b.value(name)))
                behind[position].append(add)
                total = add.outputs[0]
        replaced[index] = replace(op, inputs=(total, op.inputs[-1]))
    ops: list[Op] = list(behind.get(-1, ()))
    for index, op in enumerate(block.ops):
        op = replaced.get(index, op)
        ops.append(with_inner(op, accumulate_early))
        ops += behind.get(index, ())
    return replace(block, ops=tuple(ops), types=b.types)
