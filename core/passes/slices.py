"""Gradients of slices that lie side by side become one array: ``sum(slice_into(a), slice_into(b)) = concat(a, b)``.

The gradient of an array that a program reads in slices, such as the gates of an LSTM, has an addend for each slice:
zeros of the size of the array with the gradient of the slice among them. A `concat` of these gradients, with zeros
between slices that do not touch, writes each element once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from core.ir import Block, Op, TensorType, with_inner
from core.ir.builder import BlockBuilder, Value
from core.ops.indexing.gather import cut

__all__ = ["join_slices"]


@dataclass(frozen=True, slots=True)
class _Part:
    """An addend of a sum: zeros except for the variable `name`, the elements `start` to `end` along `axis`."""

    addend: str
    name: str
    axis: int
    start: int
    end: int


def join_slices(block: Block) -> Block:
    """Write sums of gradients of slices along one axis that do not overlap as one `concat`, or a sum with it."""
    made = {name: op for op in block.ops for name in op.outputs}
    used = Counter([*block.results, *(name for op in block.ops for name in op.inputs)])
    b = BlockBuilder()
    b.types.update(block.types)
    for op in block.ops:
        parts = _apart(_parts(block, made, used, op)) if op.type == "sum" else []
        if len(parts) < 2:
            b.ops.append(with_inner(op, join_slices))
            continue
        joined = {part.addend for part in parts}
        rest = [name for name in op.inputs if name not in joined]
        with b.at(op.location):
            whole = b.make("concat", *_pieces(b, block, parts), axis=parts[0].axis)
            if rest:
                (value,) = b.append(whole)
                first = min(i for i, name in enumerate(op.inputs) if name in joined)
                rest.insert(first, value.name)
                b.ops.append(replace(op, inputs=tuple(rest)))
            else:
                b.ops.append(replace(whole, outputs=op.outputs))
    return replace(block, ops=tuple(b.ops), types=b.types)


def _parts(block: Block, made: Mapping[str, Op], used: Mapping[str, int], op: Op) -> list[_Part]:
    """The addends of a sum that nothing else reads and that have zeros outside of a range along one axis."""
    found = []
    for name in op.inputs:
        addend, type = made.get(name), block.types[name]
        if addend is None or addend.type != "slice_into" or used[name] > 1:
            continue
        if not isinstance(type, TensorType) or not type.is_static or len(addend.attrs["axes"]) != 1:
            continue
        ((axis, part),) = cut(type.rank, **addend.attrs)
        start, end, step = part.indices(type.shape[axis])
        if step == 1 and start < end:
            found.append(_Part(name, addend.inputs[0], axis, start, end))
    return found


def _apart(parts: Iterable[_Part]) -> list[_Part]:
    """Parts along the axis that most parts have, in order, without those that overlap one before them."""
    axes = Counter(part.axis for part in parts)
    found: list[_Part] = []
    for part in sorted(parts, key=lambda each: each.start):
        if part.axis == max(axes, key=lambda axis: axes[axis]) and (not found or found[-1].end <= part.start):
            found.append(part)
    return found


def _pieces(b: BlockBuilder, block: Block, parts: list[_Part]) -> list[Value]:
    """The operands of the `concat`: the parts, and zeros before, between and behind them."""
    type = block.types[parts[0].addend]
    assert isinstance(type, TensorType)
    axis, done = parts[0].axis, 0
    found: list[Value] = []
    for start, end, name in [*((p.start, p.end, p.name) for p in parts), (type.shape[axis], 0, "")]:
        if done < start:
            shape = (*type.shape[:axis], start - done, *type.shape[axis + 1 :])
            found.append(b.constant(0.0, type.dtype, shape))
        if name:
            found.append(b.value(name))
        done = end
    return found
