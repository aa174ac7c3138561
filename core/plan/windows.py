"""Windows that slide over images: where they lie, and the rooms that images are copied into for them.

What is padded, or moves by more than one element along a row, is first copied into a room (`core.plan.geometry`), where
every window lies inside its image and neighbouring windows meet neighbouring elements. An adjoint leaves such a room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.ir import Op
from core.ops.common.windows import pads_of, sizes
from core.plan.data import Kernel, View
from core.plan.entries import Entry
from core.plan.geometry import Room, Triple
from core.plan.lowering import Lowering

__all__ = ["Windows", "in_room", "triple", "windows_of"]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over planes of `size`; all on three axes."""

    size: Triple
    kernel: Triple
    strides: Triple
    dilations: Triple
    before: Triple
    counts: Triple

    @property
    def reach(self) -> Triple:
        """Elements that windows meet along each axis, padding included."""
        axes = zip(self.counts, self.strides, self.kernel, self.dilations, strict=True)
        a, b, c = ((n - 1) * s + (k - 1) * d + 1 for n, s, k, d in axes)
        return a, b, c

    @property
    def inside(self) -> bool:
        """Whether no window meets padding."""
        return not any(self.before) and all(r <= n for r, n in zip(self.reach, self.size, strict=True))

    def room(self, dtype: str, planes: int, phases: int, fill: float = 0.0) -> Room:
        depth, height, width = self.reach
        return Room(dtype, planes, self.size, self.before, (depth, height), width, phases, fill)


def windows_of(
    shape: Sequence[int], result: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], paddings: Sequence[int],
) -> Windows:  # fmt: skip
    """The windows over `shape` that give `result`, both with batch and channels, by an op's attributes."""
    k = len(shape) - 2
    kernel, strides, dilations, paddings = map(tuple, (kernel, strides, dilations, paddings))
    return Windows(
        triple(shape[2:], 1),
        triple(sizes(kernel, k, "kernel_size", 1), 1),
        triple(sizes(strides, k, "strides", 1), 1),
        triple(sizes(dilations, k, "dilations", 1), 1),
        triple([before for before, _ in pads_of(paddings, k)], 0),
        triple(result[2:], 1),
    )


def in_room(low: Lowering, op: Op, entry: Entry, room: Room | None) -> View:
    """`entry`, in a room where one is needed."""
    view = low.dense(entry)
    if room is None:
        return view
    target = low.allocate((room.planes, room.plane), room.dtype)
    low.add(Kernel("fill_room", room, (view, target), location=op.location))
    return target


def triple(values: Sequence[int], missing: int) -> Triple:
    """The values of one to three spatial axes as those of three."""
    a, b, c = (*(missing,) * (3 - len(values)), *values)
    return a, b, c
