"""One step for many sizes of its feeds: its code has room for arrays up to some sizes, and each run tells how much of
it is filled.

A program with known sizes has the quickest code, but needs a compilation for each of them. Here a feed with open sizes
becomes an array of larger, known sizes, and its beginning is cut from it at run time: code for sizes that only the run
knows does the rest (`core.plan.sized`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from core.ir import Block, Op, Program, TensorType, Variable
from core.ir.builder import BlockBuilder
from core.ir.generated import CUTTING
from core.ops.common.types import byte_size
from core.plan.sizes import bounded_types

__all__ = ["Room", "larger_bytes", "largest_with_room", "room_for"]

LEAST = 16
"""The smallest size that an open axis has room for."""

WHOLE, COUNT = CUTTING, f"{CUTTING}@COUNT"
"""Ends of the name of a feed's larger array, and of the name of the feed that tells a size."""

START, END, STEP = f"{CUTTING}@START", f"{CUTTING}@END", f"{CUTTING}@STEP"
"""Ends of the names of the operands that cut a feed."""

OPS = 4
"""Ops that cut a feed."""


@dataclass(frozen=True, slots=True)
class Room:
    """Room for feeds with open sizes.

    shapes: feed -> the shape that there is room for.
    counts: feed -> for each axis the number of its count, None for a size that the program knows. Axes of one size
            share a count, so that the code knows that they agree.
    """

    shapes: Mapping[str, tuple[int, ...]]
    counts: Mapping[str, tuple[int | None, ...]]

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells this room from another one of the same program."""
        return tuple((name, self.shapes[name], self.counts[name]) for name in sorted(self.shapes))

    @property
    def ops(self) -> int:
        """The number of ops that cut the feeds, at the start of the program."""
        return OPS * len(self.shapes)

    def of(self, program: Program) -> Program:
        """`program` with the larger arrays and the counts for feeds, in place of those with open sizes.

        The feeds themselves are variables of the block. Raises ProgramError as a program with open sizes does.
        """
        block = program.block
        b = BlockBuilder()
        own: list[Variable] = []
        for name in block.params:
            type = block.types[name]
            if name in self.shapes:
                assert isinstance(type, TensorType)
                name, type = name + WHOLE, TensorType(self.shapes[name], type.dtype)
                own.append(Variable(name, type, "feed"))
            b.param(type, name)
        for number in range(self._numbers):
            type = TensorType((1,), "int64")
            own.append(Variable(b.param(type, f"{number}{COUNT}").name, type, "feed"))
        for name in self.shapes:
            self._cut(b, name)
        for op in block.ops:
            b.append(op)
        b.stopped.update(block.stopped)
        kept = tuple(v for v in program.variables if v.name not in self.shapes)
        return replace(
            program,
            block=replace(b.build(block.results), index=block.index),
            variables=(*kept, *own),
            cut={name + WHOLE: name for name in self.shapes},
        )

    def packed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """`values` of a run with the larger arrays and the counts, in place of the feeds that have room."""
        packed, sizes = dict(values), dict[int, int]()
        for name, room in self.shapes.items():
            value = packed.pop(name)
            packed[name + WHOLE] = value if value.shape == room else _larger(value, room)
            sizes.update((n, size) for n, size in zip(self.counts[name], value.shape, strict=True) if n is not None)
        packed.update((f"{number}{COUNT}", np.array([size])) for number, size in sizes.items())
        return packed

    @property
    def _numbers(self) -> int:
        return 1 + max(n for counts in self.counts.values() for n in counts if n is not None)

    def _cut(self, b: BlockBuilder, name: str) -> None:
        """Add the op that cuts the feed from its larger array."""
        counts = self.counts[name]
        axes = tuple(i for i, n in enumerate(counts) if n is not None)
        ends = tuple(f"{counts[i]}{COUNT}" for i in axes)
        start, end, step = name + START, name + END, name + STEP
        shape = tuple(-1 if i in axes else n for i, n in enumerate(self.shapes[name]))
        number = {"shape": (len(axes),), "dtype": "int64"}
        cutting = (
            Op("concat", ends, (end,), {"axis": 0}),
            Op("fill_constant", (), (start,), {**number, "value": 0.0}),
            Op("fill_constant", (), (step,), {**number, "value": 1.0}),
            Op("dynamic_slice", (name + WHOLE, start, end, step), (name,), {"axes": axes, "shape": shape}),
        )
        assert len(cutting) == OPS
        for op in cutting:
            b.append(op)


def room_for(program: Program, shapes: Mapping[str, Sequence[int]]) -> Room:
    """Room for feeds of these shapes, given for all that have open sizes: for the next power of two of each size.

    It depends on the shapes alone.
    """
    numbers: dict[int, int] = {}
    room, counts = {}, {}
    for name, type in ((v.name, v.type) for v in program.feeds):
        if type.is_static or name not in shapes:
            continue
        given = shapes[name]
        is_open = [n == -1 for n in type.shape]
        counts[name] = tuple(
            numbers.setdefault(n, len(numbers)) if free else None for n, free in zip(given, is_open, strict=True)
        )
        room[name] = tuple(
            max(LEAST, 1 << max(0, n - 1).bit_length()) if free else n for n, free in zip(given, is_open, strict=True)
        )
    return Room(room, counts)


def _larger(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    larger = np.zeros(shape, value.dtype)  # arithmetic with what memory contains, denormal numbers for one, is slow
    larger[tuple(map(slice, value.shape))] = value
    return larger


def larger_bytes(inputs: Iterable[Variable]) -> int:
    """Bytes of the larger arrays, among the inputs of a step, that each run makes for its feeds."""
    return sum(byte_size(v.type) for v in inputs if v.name.endswith(WHOLE))


def largest_with_room(block: Block) -> int:
    """Bytes of the largest array that the code of `block` has memory for. `block` is that of a step with room."""
    types = bounded_types(block, None)
    return max([byte_size(types[name]) for name in (*block.params, *(n for op in block.ops for n in op.outputs))])
