"""Divides a step in two: all other results first, then the new values of parameters and states.

Machine code can then write each new value over the old one, which only its update still reads. A step that computes new
values along the way needs a second array for each: twice the memory, and up to three times as long with large weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from core.ir import HOLE, Block, Op, TensorType, Type
from core.ir.builder import BlockBuilder
from core.ir.registry import lookup
from core.ir.stop import poll
from core.ops.common.types import byte_size
from core.passes.dce import eliminate_dead

__all__ = ["LEAST_BYTES", "UpdatesApart", "updates_apart"]

LEAST_BYTES = 1 << 20
"""Fewest bytes of values that are updated apart. Two arrays of smaller ones stay in a core's cache."""

SMALL = 8
"""A value that only the update reads may be kept for it if it has at most this part of the bytes that the update writes
in place."""

SMALL_OPERANDS = 4
"""An op that is not elementwise belongs to the update if its operands have at most this part of its result's bytes."""

HIDDEN_TERMS = 64
"""Terms of the sums of a product in whose epilogue an update of one value takes no time of its own: memory is fast
enough to read the old value and write the new one meanwhile. An update of more values at once needs as many times more.
"""

MOVES = frozenset({"assign", "expand", "reshape", "transpose"})
"""Ops that only arrange elements: they belong to the update where it computes their operand."""

ROUNDS = 8
"""Most divisions to try. An update that is refused leaves others with operands that no longer belong to updates."""


@dataclass(frozen=True, slots=True)
class UpdatesApart:
    """A block in two.

    step:    the same parameters; its results are those of the block that are no update, then further operands of
             `update`.
    update:  its parameters are the old values, then results of `step`; its results are the new values.
    updated: result of the block -> the parameter with its old value, in the order of the parameters and the results of
             `update`.
    """

    step: Block
    update: Block
    updated: Mapping[int, int]


def updates_apart(block: Block, updated: Mapping[int, int]) -> UpdatesApart | None:
    """`block` in two; None if no update can be apart, or if the values are small.

    block: its composites are expanded. updated: result -> the parameter with its old value, of the same type.
    """
    block = _with_open_clips(block)
    counts = Counter(block.results)
    chosen = {i: j for i, j in updated.items() if counts[block.results[i]] == 1}
    for _ in range(ROUNDS):
        if not chosen or sum(byte_size(block.types[block.results[i]]) for i in chosen) < LEAST_BYTES:
            return None
        found = _Division(block, chosen)
        refused = [i for i in chosen if found.refuses(i)]
        if not refused:
            return found.divided()
        for i in refused:
            del chosen[i]
    return None


def _with_open_clips(block: Block) -> Block:
    """`block` with clips by a joint norm as ops for the norm and, apart from these, a product for each array."""
    if not any(op.type == "clip_by_global_norm" for op in block.ops):
        return block
    b = BlockBuilder()
    b.types.update(block.types)
    for op in block.ops:
        if op.type != "clip_by_global_norm" or not all(block.types[n].is_static for n in op.inputs):
            b.ops.append(op)
            continue
        with b.at(op.location):
            limit, total = b.constant(op.attrs["max_norm"], "float64"), b.constant(0.0, "float64")
            for name in op.inputs:
                total = total + b.emit("reduce_sum", b.emit("square", b.emit("cast", b.value(name), dtype="float64")))
            norm = b.emit("sqrt", total)
            scale = b.emit("div", limit, b.emit("maximum", norm, limit))
            factor = b.emit("where", b.emit("isfinite", norm), scale, b.constant(1.0, "float64"))
            for name, out in zip(op.inputs, op.outputs, strict=True):
                wide = b.emit("cast", b.value(name), dtype="float64")  # once more: the norm is computed before
                narrow = b.make("cast", wide * factor, dtype=b.value(name).dtype)
                b.append(replace(narrow, outputs=(out,)))
    return replace(block, ops=tuple(b.ops), types=b.types)


class _Division:
    """The division of a block for some updates. inside: the variables that the update computes."""

    def __init__(self, block: Block, updated: Mapping[int, int]) -> None:
        self.block, self.updated = block, updated
        self._others = [name for i, name in enumerate(block.results) if i not in updated]
        self._kept = set(self._others)
        self._values = {block.params[j] for j in updated.values()}
        self._made = {name: op for op in block.ops for name in op.outputs}
        self._places = {name: i for i, op in enumerate(block.ops) for name in op.outputs}
        self.inside = self._computed_by_update()
        self._read = {n for op in block.ops if self.inside.isdisjoint(op.outputs) for n in op.inputs}
        self._operands = {i: self._operands_of([block.results[i]])[0] for i in updated}
        self._readers = Counter(name for each in self._operands.values() for name in each)

    def _computed_by_update(self) -> set[str]:
        """The results of ops that only updates need and that can be apart, as all of their readers are."""
        rest = eliminate_dead(replace(self.block, results=tuple(self._others)))
        outside = {name for op in rest.ops for name in op.outputs}
        for op in reversed(self.block.ops):
            poll()
            if not outside.isdisjoint(op.outputs) or not self._can_be_apart(op):
                outside.update(op.outputs, op.inputs)
        return {name for op in self.block.ops for name in op.outputs if name not in outside}

    def _can_be_apart(self, op: Op) -> bool:
        """Whether an op neither has blocks nor reports, and reads no more than it writes, or much less."""
        spec = lookup(op.type)
        if spec.kind != "primitive" or spec.reports:
            return False
        if spec.elementwise or op.type in MOVES:
            return True
        operands = sum(byte_size(self.block.types[n]) for n in op.inputs if n != HOLE)
        return SMALL_OPERANDS * operands <= sum(byte_size(self.block.types[n]) for n in op.outputs)

    def refuses(self, result: int) -> bool:
        """Whether an update is not apart: it has no op of its own, an operand would have to be kept for it, or it takes
        less time where it is.
        """
        name = self.block.results[result]
        if name not in self.inside:
            return True
        room = byte_size(self.block.types[name]) // SMALL
        operands = self._operands[result]
        kept = [n for n in operands if not (n in self._kept or n in self._values or self._is_in_memory(n))]
        return any(byte_size(self.block.types[n]) > room for n in kept) or self._is_hidden(operands)

    def _is_in_memory(self, name: str) -> bool:
        """Whether the step stores a value for its own use, such as a gradient whose norm it computes."""
        op = self._made.get(name)
        return op is not None and name in self._read and not lookup(op.type).elementwise and op.type not in MOVES

    def _is_hidden(self, operands: Iterable[str]) -> bool:
        """Whether an update of these operands runs in the epilogue of a product that takes longer than the memory."""
        made = [name for name in operands if name in self._made]
        last = max(made, key=lambda name: self._places[name], default=None)
        op = self._made.get(last) if last is not None else None
        while op is not None and op.type in MOVES:
            op = self._made.get(op.inputs[0])
        if last is None or op is None or op.type not in ("matmul", "einsum") or len(op.inputs) != 2:
            return False
        x, y, out = (_size(self.block.types[n]) for n in (*op.inputs, op.outputs[0]))
        return x * y >= out * (HIDDEN_TERMS * self._readers[last]) ** 2

    def _operands_of(self, names: Iterable[str]) -> tuple[list[str], list[Op]]:
        """(operands, ops) of the update of `names`, the ops in order."""
        wanted, seen = list(names), set(names)
        ops, operands = {}, []
        while wanted:
            name = wanted.pop()
            if name not in self.inside:
                operands.append(name)
                continue
            ops[self._places[name]] = op = self._made[name]
            new = [n for n in dict.fromkeys(op.inputs) if n != HOLE and n not in seen]
            seen.update(new)
            wanted += new
        return operands, [ops[i] for i in sorted(ops)]

    def divided(self) -> UpdatesApart:
        """The two blocks."""
        block = self.block
        names = tuple(block.results[i] for i in self.updated)
        operands, ops = self._operands_of(names)
        old = [block.params[j] for j in self.updated.values()]
        params = tuple(dict.fromkeys([*old, *operands]))
        more = [n for n in params if n not in self._values and n not in self._kept]
        step = eliminate_dead(replace(block, results=(*self._others, *more)))
        types = {n: block.types[n] for n in (*params, *(n for op in ops for n in op.outputs))}
        return UpdatesApart(step, Block(params, tuple(ops), names, types), self.updated)


def _size(type: Type) -> int:
    """Elements of an array; an unknown size counts as 1."""
    return math.prod(max(n, 1) for n in type.shape) if isinstance(type, TensorType) else 1
