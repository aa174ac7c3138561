"""What depends, differentiably, on what: asked of an op, of a block, or of all variables of a block.

A rule is only applied where it can matter: to an op between what is differentiated and what it is differentiated by.
For most ops every output depends on every input. Control flow is asked more precisely, through its inner blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from core.ir import Block, Op, inner_blocks
from core.ir.registry import lookup

__all__ = ["FLOWS", "Dependence"]

FLOWS: dict[str, Callable[..., Sequence[int]]] = {}
"""Control-flow op -> function (op, bits of each inner block by attribute name) -> bits of each output."""


class Dependence:
    """Which outputs depend, differentiably, on which inputs; remembered per block, so that nesting costs no more."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Block, tuple[int, ...]]] = {}

    def active(self, block: Block, wrt: Iterable[str], cut: Collection[str]) -> set[str]:
        """The variables of `block` whose value moves with those in `wrt`, none of them behind a cut."""
        active = {name for name in wrt if block.types[name].is_float and name not in cut}
        for op in block.ops:
            if active.isdisjoint(op.inputs):
                continue
            for name, reaches in zip(op.outputs, self.op(op), strict=True):
                if name in cut or not block.types[name].is_float:
                    continue
                if any(reaches >> i & 1 and each in active for i, each in enumerate(op.inputs)):
                    active.add(name)
        return active

    def of(self, block: Block) -> tuple[int, ...]:
        """For each result of `block`, the set of parameters it depends on, as bits."""
        if id(block) not in self._of:
            self._of[id(block)] = (block, self._walk(block))
        return self._of[id(block)][1]

    def op(self, op: Op) -> tuple[int, ...]:
        """For each output of `op`, the set of inputs it depends on, as bits."""
        spec = lookup(op.type)
        if spec.no_gradient is not None:
            return (0,) * len(op.outputs)
        if spec.kind == "control":
            inner = {name: self.of(block) for name, block in inner_blocks(op)}
            return tuple(FLOWS[op.type](op, **inner))
        return ((1 << len(op.inputs)) - 1,) * len(op.outputs)

    def _walk(self, block: Block) -> tuple[int, ...]:
        moved = {name: 1 << i for i, name in enumerate(block.params) if block.types[name].is_float}
        for op in block.ops:
            bits = [moved.get(name, 0) for name in op.inputs]
            if not any(bits):
                continue
            for name, reaches in zip(op.outputs, self.op(op), strict=True):
                if name not in block.stopped and block.types[name].is_float:
                    total = 0
                    for i, each in enumerate(bits):
                        if each and reaches >> i & 1:
                            total |= each
                    moved[name] = total
        return tuple(moved.get(name, 0) for name in block.results)
