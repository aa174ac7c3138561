"""Gradients of slices of one array become one array: ``sum(slice_into(a), slice_into(b)) = concat(a, b)``.

The gradient of an array that a program reads in slices, such as the gates of an LSTM or the neighbours of a stencil,
has an addend for each slice: zeros of the size of the array with the gradient of the slice among them. Where slices lie
side by side, a `concat` of these gradients, with zeros between those that do not touch, writes each element once. Where
they overlap, a large array is cut at their ends, along one axis after the other: a piece of it is the sum of the parts
of the gradients that reach it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from core.ir import Block, Op, TensorType, with_inner
from core.ir.builder import BlockBuilder, Value
from core.ops.indexing.gather import cut

__all__ = ["join_slices"]

LEAST_ELEMENTS = 4096
"""Fewest elements of an array that is cut into pieces: that costs some kernels, and saves a pass for each addend."""

MOST_TERMS = 512
"""Most addends of all pieces of an array."""

ALONG = ("scale", "neg", "cast")
"""Ops on one operand, element by element: a slice of the result is the op of a slice."""

Range = tuple[int, int]
"""Start and end along an axis."""


@dataclass(frozen=True, slots=True)
class _Part:
    """An addend of a sum: zeros except for the variable `name`, in the range of each axis in `box`."""

    addend: str
    name: str
    box: Mapping[int, Range]

    def meets(self, other: _Part, axis: int) -> bool:
        return self.box[axis][0] < other.box[axis][1] and other.box[axis][0] < self.box[axis][1]


def join_slices(block: Block) -> Block:
    """Write sums of gradients of slices as one `concat`, or as a sum with it."""
    made = {name: op for op in block.ops for name in op.outputs}
    used = Counter([*block.results, *(name for op in block.ops for name in op.inputs)])
    b = BlockBuilder()
    b.types.update(block.types)
    for op in block.ops:
        parts = _chosen(block, op, _parts(block, made, used, op)) if op.type == "sum" else []
        if not parts:
            b.ops.append(with_inner(op, join_slices))
            continue
        joined = {part.addend for part in parts}
        rest = [name for name in op.inputs if name not in joined]
        type = block.types[op.outputs[0]]
        assert isinstance(type, TensorType)
        with b.at(op.location):
            whole = _Pieces(b, made, used, type, parts).whole()
            if rest:
                (value,) = b.append(whole)
                first = min(i for i, name in enumerate(op.inputs) if name in joined)
                rest.insert(first, value.name)
                b.ops.append(replace(op, inputs=tuple(rest)))
            else:
                b.ops.append(replace(whole, outputs=op.outputs))
    return replace(block, ops=tuple(b.ops), types=b.types)


def _parts(block: Block, made: Mapping[str, Op], used: Mapping[str, int], op: Op) -> list[_Part]:
    """The addends of a sum that nothing else reads and that have zeros outside of ranges along some axes."""
    found = []
    for name in op.inputs:
        addend, type = made.get(name), block.types[name]
        if addend is None or addend.type != "slice_into" or used[name] > 1:
            continue
        if not isinstance(type, TensorType) or not type.is_static:
            continue
        ranges = [(axis, part.indices(type.shape[axis])) for axis, part in cut(type.rank, **addend.attrs)]
        if all(step == 1 and start < end for _, (start, end, step) in ranges):
            box = {axis: (a, e) for axis, (a, e, _) in ranges if (a, e) != (0, type.shape[axis])}
            found.append(_Part(name, addend.inputs[0], box))
    return found


def _chosen(block: Block, op: Op, parts: list[_Part]) -> list[_Part]:
    """The parts that become one array; none if that is not worth it.

    All of them if the array is large and they make few pieces, with the only other addend of the sum, if there is one.
    Otherwise those along the axis that most of them have, without those that overlap one before them.
    """
    type = block.types[op.outputs[0]]
    if not _axes(parts) or not isinstance(type, TensorType):
        return []
    rest = [name for name in op.inputs if name not in {part.addend for part in parts}]
    if math.prod(type.shape) >= LEAST_ELEMENTS:
        every = list(parts)
        if len(rest) == 1:
            every.insert(op.inputs.index(rest[0]), _Part(rest[0], rest[0], {}))
        if len(every) > 1 and _count(type, every, _axes(every)) <= MOST_TERMS:
            return every
    axes = Counter(axis for part in parts if len(part.box) == 1 for axis in part.box)
    found: list[_Part] = []
    if axes:
        axis = max(axes, key=lambda each: axes[each])
        for part in sorted((p for p in parts if [*p.box] == [axis]), key=lambda each: each.box[axis]):
            if not found or not part.meets(found[-1], axis):
                found.append(part)
    return found if len(found) > 1 else []


def _axes(parts: Iterable[_Part]) -> list[int]:
    """The axes that are cut, in order."""
    return sorted({axis for part in parts for axis in part.box})


@dataclass(frozen=True, slots=True)
class _Cuts:
    """An axis of an array, cut at the ends of `parts`.

    ends:  where it is cut, its own two ends included, in order.
    spans: for each part, the numbers of the ranges between two cuts that it covers: first, end.
    """

    parts: list[_Part]
    ends: list[int]
    spans: list[Range]

    @classmethod
    def of(cls, type: TensorType, parts: list[_Part], axis: int) -> _Cuts:
        every = (0, type.shape[axis])
        ends = sorted({*every, *(end for part in parts for end in part.box.get(axis, ()))})
        at = {end: i for i, end in enumerate(ends)}
        return cls(parts, ends, [(at[start], at[end]) for start, end in (p.box.get(axis, every) for p in parts)])

    def covering(self) -> Iterator[tuple[Range, list[_Part]]]:
        """Each range between two cuts, and the parts that cover it."""
        found: list[list[_Part]] = [[] for _ in self.ends[1:]]
        for part, (first, end) in zip(self.parts, self.spans, strict=True):
            for i in range(first, end):
                found[i].append(part)
        return zip(pairwise(self.ends), found, strict=True)


def _count(type: TensorType, parts: list[_Part], axes: list[int]) -> int:
    """The number of addends of all pieces; if it exceeds `MOST_TERMS`, another number that does."""
    if not axes or not parts:
        return max(len(parts), 1)
    axis, *inner = axes
    cuts = _Cuts.of(type, parts, axis)
    least = sum(end - first for first, end in cuts.spans)
    return least if least > MOST_TERMS else sum(_count(type, covering, inner) for _, covering in cuts.covering())


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Writes an array of type `type`, the sum of `parts`, piece by piece."""

    b: BlockBuilder
    made: Mapping[str, Op]
    used: Mapping[str, int]
    type: TensorType
    parts: list[_Part]

    def whole(self) -> Op:
        """The op that makes the array of its pieces."""
        axis, *inner = _axes(self.parts)
        return self.b.make("concat", *self._along(axis, inner, self.parts, {}), axis=axis)

    def _along(self, axis: int, inner: list[int], parts: list[_Part], box: Mapping[int, Range]) -> list[Value]:
        """The pieces along an axis. box: the ranges along the axes before it."""
        return [
            self._piece(inner if covering else [], covering, {**box, axis: each})
            for each, covering in _Cuts.of(self.type, parts, axis).covering()
        ]

    def _piece(self, axes: list[int], parts: list[_Part], box: Mapping[int, Range]) -> Value:
        if axes:
            pieces = self._along(axes[0], axes[1:], parts, box)
            return self.b.emit("concat", *pieces, axis=axes[0]) if len(pieces) > 1 else pieces[0]
        terms = [self._sliced(part.name, self._inside(part, box)) for part in parts]
        if not terms:
            shape = [end - start for start, end in (box.get(i, (0, n)) for i, n in enumerate(self.type.shape))]
            return self.b.constant(0.0, self.type.dtype, tuple(shape))
        return self.b.emit("sum", *terms) if len(terms) > 1 else terms[0]

    def _inside(self, part: _Part, box: Mapping[int, Range]) -> dict[int, Range]:
        """The ranges of the variable of a part that lie in `box`, along the axes of which it has more."""
        found = {}
        for axis, (start, end) in box.items():
            first, last = part.box.get(axis, (0, self.type.shape[axis]))
            if (start, end) != (first, last):
                found[axis] = start - first, end - first
        return found

    def _sliced(self, name: str, ranges: Mapping[int, Range]) -> Value:
        """Ranges of a variable, taken before ops whose results nothing else reads."""
        op = self.made.get(name)
        if not ranges:
            return self.b.value(name)
        if op is not None and op.type in ALONG and self.used[name] == 1:
            return self.b.emit(op.type, self._sliced(op.inputs[0], ranges), **op.attrs)
        starts, ends = (tuple(each[i] for each in ranges.values()) for i in (0, 1))
        return self.b.emit("slice", self.b.value(name), axes=tuple(ranges), starts=starts, ends=ends, steps=None)
