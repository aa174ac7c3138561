"""Dead code elimination, inner blocks included."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from core.ir import Block, Op

__all__ = ["eliminate_dead"]


def eliminate_dead(block: Block) -> Block:
    """`block` with only the ops that its results need, in the same order.

    Unread results of branches and unread stacks of loops are removed, and so are the ops inside that compute them.
    Parameters of `block` stay: they are its signature.
    """
    needed = set(block.results)
    kept: list[Op] = []
    for op in reversed(block.ops):
        if needed.isdisjoint(op.outputs):
            continue
        op = _trim(op, needed)
        kept.append(op)
        needed.update(op.inputs)
    ops = tuple(reversed(kept))
    named = {*block.params, *(name for op in ops for name in op.outputs)}
    types = {name: type for name, type in block.types.items() if name in named}
    return Block(block.params, ops, block.results, types, block.stopped & named, block.index)


def _trim(op: Op, needed: Collection[str]) -> Op:
    if op.type == "if_else":
        keep = [i for i, name in enumerate(op.outputs) if name in needed]
        return _with_results(op, keep, keep)
    if op.type == "loop":
        carried = op.attrs["carried"]
        keep = [i for i, name in enumerate(op.outputs) if i < carried or name in needed]
        return _with_results(op, keep, keep)
    return op


def _with_results(op: Op, outputs: list[int], results: list[int]) -> Op:
    """`op` with only these outputs, its blocks with only these results, and branches without dead operands."""
    blocks = {
        k: eliminate_dead(replace(v, results=tuple(v.results[i] for i in results)))
        for k, v in op.attrs.items()
        if isinstance(v, Block)
    }
    outs = tuple(op.outputs[i] for i in outputs)
    if op.type == "if_else":
        used = [i for i in range(len(op.inputs) - 1) if any(_reads(b, b.params[i]) for b in blocks.values())]
        blocks = {k: _with_params(b, used) for k, b in blocks.items()}
        inputs = (op.inputs[0], *(op.inputs[1 + i] for i in used))
        return replace(op, inputs=inputs, outputs=outs, attrs={**op.attrs, **blocks})
    return replace(op, outputs=outs, attrs={**op.attrs, **blocks})


def _reads(block: Block, name: str) -> bool:
    return name in block.results or any(name in op.inputs for op in block.ops)


def _with_params(block: Block, params: list[int]) -> Block:
    """`block` with only these parameters; the others must be unread."""
    kept = tuple(block.params[i] for i in params)
    dropped = set(block.params) - set(kept)
    types = {name: type for name, type in block.types.items() if name not in dropped}
    return replace(block, params=kept, types=types, stopped=block.stopped - dropped)
