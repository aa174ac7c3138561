"""Replace every composite by its expansion and every call by its body, in inner blocks too."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from core.ir import HOLE, Block, Op, with_inner
from core.ir.builder import BlockBuilder, expansion
from core.ir.registry import lookup

__all__ = ["expand_composites"]


def expand_composites(block: Block, keep: Container[str] = ()) -> Block:
    """A block of primitives, loops and branches that computes the same results as `block`.

    keep: composites that stay as they are.
    """
    return _expanded(block, keep, {})


def _expanded(block: Block, keep: Container[str], known: dict[int, tuple[Block, Block]]) -> Block:
    """`block` expanded. known: by their ids, blocks with what they become: calls of a function share its block, and the
    adjoint of a chain of calls has each of them again for each level."""
    found = known.get(id(block))
    if found is None:
        found = known[id(block)] = block, _expand(block, keep, known)
    return found[1]


def _expand(block: Block, keep: Container[str], known: dict[int, tuple[Block, Block]]) -> Block:
    if not any(_needs_expansion(op, keep) for op in block.ops):
        return block
    b = BlockBuilder()
    b.params.extend(block.params)
    b.types.update(block.types)
    renamed: dict[str, str] = {HOLE: HOLE}
    final = renamed.get
    for op in block.ops:
        inputs = tuple([final(n, n) for n in op.inputs])
        spec = lookup(op.type)
        if spec.kind == "composite" and op.type not in keep:
            types = tuple(None if n == HOLE else b.types[n] for n in inputs)
            inner = _expanded(expansion(spec, types, op.attrs), keep, known)
            with b.at(op.location):
                outs = b.inline(inner, [None if n == HOLE else b.value(n) for n in inputs])
            renamed.update(zip(op.outputs, (v.name for v in outs), strict=True))
        elif op.type == "call":
            outs = b.inline(_expanded(op.attrs["block"], keep, known), [b.value(n) for n in inputs])
            renamed.update(zip(op.outputs, (v.name for v in outs), strict=True))
        else:
            op = with_inner(op, lambda inner: _expanded(inner, keep, known))
            b.ops.append(op if inputs == op.inputs else replace(op, inputs=inputs))
    results = tuple(renamed.get(n, n) for n in block.results)
    return Block(block.params, tuple(b.ops), results, b.types, block.stopped, block.index)


def _needs_expansion(op: Op, keep: Container[str]) -> bool:
    if lookup(op.type).kind == "composite" and op.type not in keep:
        return True
    return any(isinstance(v, Block) for v in op.attrs.values())
