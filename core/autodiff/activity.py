"""Activity analysis: which outputs of an op or a block depend, differentiably, on which inputs.

The backward pass applies a VJP rule only to ops on a path from a requested variable to a target. For most ops every
output depends on every input. For control flow the dependence follows from its inner blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from core.ir import Block, Op, inner_blocks
from core.ir.names import ClientNames, block_index
from core.ir.registry import lookup

__all__ = ["FLOWS", "Activity"]

FLOWS: dict[str, Callable[..., Sequence[int]]] = {}
"""Control-flow op -> function (op, dependence bits of each inner block by attribute name) -> bits of each output.

Bit i of an output is set if the output depends on input i.
"""


class Activity:
    """Dependences of outputs on inputs, cached for each block: a nested block is analysed once.

    places: variables of inner blocks, by the number of the client's block and the name, that no gradient flows through
            in this backward pass. The blocks themselves do not change: another backward pass may flow through them.
    """

    def __init__(self, places: Collection[tuple[int, str]] = ()) -> None:
        self.places = places
        self._of: dict[int, tuple[Block, tuple[int, ...]]] = {}

    def stopped(self, block: Block) -> frozenset[str]:
        """The variables of an inner block that no gradient flows through."""
        if not self.places:
            return block.stopped
        names = ClientNames(block, block_index(block))
        return block.stopped.union(n for place in self.places for n in names.called(*place))

    def active(
        self, block: Block, wrt: Iterable[str], cut: Collection[str], ops: Iterable[Op] | None = None
    ) -> set[str]:
        """The variables of `block` that depend differentiably on a variable in `wrt`, not through a name in `cut`.

        ops: the ops that may lie on the way, in order; by default all of the block.
        """
        active = {name for name in wrt if block.types[name].is_float and name not in cut}
        for op in block.ops if ops is None else ops:
            if active.isdisjoint(op.inputs):
                continue
            inputs = sum(1 << i for i, each in enumerate(op.inputs) if each in active)
            for name, reaches in zip(op.outputs, self.op(op), strict=True):
                if name not in cut and block.types[name].is_float and reaches & inputs:
                    active.add(name)
        return active

    def of(self, block: Block) -> tuple[int, ...]:
        """For each result of `block`, the parameters it depends on: bit i for parameter i."""
        if id(block) not in self._of:
            self._of[id(block)] = (block, self._walk(block))
        return self._of[id(block)][1]

    def op(self, op: Op) -> tuple[int, ...]:
        """For each output of `op`, the inputs it depends on: bit i for input i."""
        spec = lookup(op.type)
        if spec.no_gradient is not None:
            return (0,) * len(op.outputs)
        if spec.kind == "control":
            inner = {name: self.of(block) for name, block in inner_blocks(op)}
            return tuple(FLOWS[op.type](op, **inner))
        return ((1 << len(op.inputs)) - 1,) * len(op.outputs)

    def _walk(self, block: Block) -> tuple[int, ...]:
        stopped = self.stopped(block)
        masks = {name: 1 << i for i, name in enumerate(block.params) if block.types[name].is_float}
        for op in block.ops:
            bits = [masks.get(name, 0) for name in op.inputs]
            if not any(bits):
                continue
            for name, reaches in zip(op.outputs, self.op(op), strict=True):
                if name not in stopped and block.types[name].is_float:
                    total = 0
                    for i, each in enumerate(bits):
                        if each and reaches >> i & 1:
                            total |= each
                    masks[name] = total
        return tuple(masks.get(name, 0) for name in block.results)
