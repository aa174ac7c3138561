"""Gradients of slices of one array become one array: ``sum(slice_into(a), slice_into(b)) = concat(a, b)``.

The gradient of an array that a program reads in slices, such as the gates of an LSTM or the neighbours of a stencil,
has an addend for each slice: zeros of the size of the array with the gradient of the slice among them. Where slices lie
side by side, a `concat` of these gradients, with zeros between those that do not touch, writes each element once. Where
they overlap, the array is cut at their ends: a range of it is the sum of the parts of the gradients that reach it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from core.ir import Block, Op, TensorType, with_inner
from core.ir.builder import BlockBuilder, Value
from core.ops.indexing.gather import cut

__all__ = ["join_slices"]


LEAST_ELEMENTS = 4096
"""Fewest elements of an array that is cut into ranges: that costs some kernels, and saves a pass for each addend."""

MOST_PARTS = 32
"""Most addends that overlap."""

ALONG = ("scale", "neg", "cast")
"""Ops on one operand, element by element: a slice of the result is the op of a slice."""


@dataclass(frozen=True, slots=True)
class _Part:
    """An addend of a sum: zeros except for the variable `name`, the elements `start` to `end` along `axis`."""

    addend: str
    name: str
    axis: int
    start: int
    end: int


def join_slices(block: Block) -> Block:
    """Write sums of gradients of slices along one axis as one `concat`, or as a sum with it."""
    made = {name: op for op in block.ops for name in op.outputs}
    used = Counter([*block.results, *(name for op in block.ops for name in op.inputs)])
    b = BlockBuilder()
    b.types.update(block.types)
    for op in block.ops:
        parts = _chosen(block, _parts(block, made, used, op)) if op.type == "sum" else []
        joined = {part.addend for part in parts}
        rest = [name for name in op.inputs if name not in joined]
        if parts and len(rest) == 1 and _is_large(block, rest[0]):
            parts.insert(op.inputs.index(rest[0]), _whole(block, rest[0], parts[0].axis))
            rest = []
        if len(parts) < 2:
            b.ops.append(with_inner(op, join_slices))
            continue
        with b.at(op.location):
            whole = b.make("concat", *_ranges(b, block, made, used, parts), axis=parts[0].axis)
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


def _chosen(block: Block, parts: list[_Part]) -> list[_Part]:
    """The parts along the axis that most of them have; without those that overlap one before them if there are too many
    parts, or the array is small.
    """
    if not parts:
        return []
    axes = Counter(part.axis for part in parts)
    axis = max(axes, key=lambda each: axes[each])
    along = [part for part in parts if part.axis == axis]
    if len(along) <= MOST_PARTS and _is_large(block, parts[0].addend):
        return along
    found: list[_Part] = []
    for part in sorted(along, key=lambda each: each.start):
        if not found or found[-1].end <= part.start:
            found.append(part)
    return found


def _whole(block: Block, name: str, axis: int) -> _Part:
    type = block.types[name]
    assert isinstance(type, TensorType)
    return _Part(name, name, axis, 0, type.shape[axis])


def _is_large(block: Block, name: str) -> bool:
    type = block.types[name]
    return isinstance(type, TensorType) and math.prod(type.shape) >= LEAST_ELEMENTS


def _ranges(
    b: BlockBuilder, block: Block, made: Mapping[str, Op], used: Mapping[str, int], parts: list[_Part]
) -> list[Value]:
    """The operands of the `concat`: for each range between two ends of parts, the sum of those that reach it."""
    type = block.types[parts[0].addend]
    assert isinstance(type, TensorType)
    axis = parts[0].axis
    ends = sorted({0, type.shape[axis], *(p.start for p in parts), *(p.end for p in parts)})
    found: list[Value] = []
    for start, end in pairwise(ends):
        terms = [
            _sliced(b, made, used, p.name, axis, start - p.start, end - p.start)
            for p in parts
            if p.start <= start and end <= p.end
        ]
        if not terms:
            shape = (*type.shape[:axis], end - start, *type.shape[axis + 1 :])
            terms = [b.constant(0.0, type.dtype, shape)]
        found.append(b.emit("sum", *terms) if len(terms) > 1 else terms[0])
    return found


def _sliced(
    b: BlockBuilder, made: Mapping[str, Op], used: Mapping[str, int], name: str, axis: int, start: int, end: int
) -> Value:
    """The elements `start` to `end` of a variable along `axis`, through ops whose results nothing else reads."""
    type, op = b.types[name], made.get(name)
    assert isinstance(type, TensorType)
    if (start, end) == (0, type.shape[axis]):
        return b.value(name)
    if op is not None and op.type in ALONG and used[name] == 1:
        return b.emit(op.type, _sliced(b, made, used, op.inputs[0], axis, start, end), **op.attrs)
    return b.emit("slice", b.value(name), axes=(axis,), starts=(start,), ends=(end,), steps=None)
