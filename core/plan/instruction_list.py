"""The instructions of a block so far, in the order they run, and the fusions among them that still grow.

An op joins the latest fusion that computes one of its operands, else one of the last fusions over as many elements, if
all its operands are complete when that fusion runs, or that fusion can compute them again. Otherwise it begins a fusion
of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice

from core.ir.errors import Location
from core.ir.stop import poll
from core.plan.fused_kernel import row_kernel_of
from core.plan.fusion import Axes, Fusion, Member
from core.plan.instructions import Gemm, Instruction, Limited, Rows
from core.plan.memory import Root, View
from core.plan.rows_at import lookup_of
from core.plan.sizes import Size
from core.plan.target import RowLimits

__all__ = ["InstructionList"]

LOOKBACK = 24
"""The number of most recent fusions to try for an op whose operands no fusion computes."""


class InstructionList:
    """A position is an index into the list of instructions and fusions."""

    def __init__(self, limits: RowLimits) -> None:
        self._limits = limits
        self._all: list[Fusion | Instruction] = []
        self._early: dict[int, list[Instruction]] = {}  # position, -1 for the start -> instructions that follow it
        self._fusions: list[Fusion] = []
        self._ready: dict[Root, int] = {}  # root -> the last position that writes to it
        self._products: set[Root] = set()  # results of products, which an epilogue may keep from memory

    def add(self, instruction: Instruction) -> None:
        """Append an instruction."""
        for root in instruction.writes():
            self.written(root, len(self._all))
            if isinstance(instruction, Gemm):
                self._products.add(root)
        self._all.append(instruction)

    def add_early(self, instruction: Instruction) -> None:
        """Insert an instruction that writes only to new memory after the last one that writes what it reads.

        A fusion that begins before the instruction is added can read the result.
        """
        position = max((self._ready.get(root, -1) for root in instruction.reads()), default=-1)
        self._early.setdefault(position, []).append(instruction)
        for root in instruction.writes():
            self.written(root, position)

    def written(self, root: Root, position: int) -> None:
        """Record that the instruction at `position` writes to `root`."""
        self._ready[root] = max(self._ready.get(root, -1), position)

    def begin(self, shape: tuple[int, ...], location: Location | None, size: Size | None = None) -> Fusion:
        """Append a new fusion over `shape`. size: of its first axis, if only the run tells it."""
        fusion = Fusion(shape, len(self._all), self._limits, location=location, size=size)
        self._all.append(fusion)
        self._fusions.append(fusion)
        return fusion

    def finish(self) -> tuple[Instruction, ...]:
        """All instructions, with the fusions as row kernels."""
        finished = [*self._early.get(-1, ())]
        for position, each in enumerate(self._all):
            poll()
            if isinstance(each, Fusion):
                done = row_kernel_of(each) if 0 not in each.shape else None
                if done is not None:
                    finished.append(_limited(done, each.size))
            else:
                finished.append(each)
            finished += self._early.get(position, ())
        return tuple(finished)

    def keeps(self, view: View, fusion: Fusion) -> bool:
        """Whether an array is complete before `fusion` runs, and no epilogue keeps it from memory."""
        return view.root not in self._products and self._ready.get(view.root, -1) < fusion.position

    def is_newer(self, copy: Root, source: Root) -> bool:
        """Whether the last instruction that writes to `copy` follows all those that write to `source`."""
        return self._ready.get(source, -1) < self._ready[copy]

    def find_fusion(
        self,
        shape: tuple[int, ...],
        operands: Sequence[Member | View],
        stored: Callable[[Member], View],
        repeats: Callable[[Member, Fusion, Axes], bool],
        size: Size | None = None,
    ) -> tuple[Fusion, Axes] | None:
        """A fusion that can compute a result of `shape` from `operands`, and the axes of the result; None if none can.

        stored:  a function that stores an operand which another fusion computes.
        repeats: whether a fusion computes such an operand again.
        size:   of the first axis, if only the run tells it: a fusion leaves rows beyond its own size out.
        """
        homes = {e.fusion.position: e.fusion for e in operands if isinstance(e, Member) and e.fusion.size is size}
        for position in sorted(homes, reverse=True):
            axes = self._axes_in(homes[position], shape, operands, stored, repeats)
            if axes is not None:
                return homes[position], axes
        for each in islice(reversed(self._fusions), LOOKBACK):
            if each.position in homes or each.size is not size or math.prod(each.shape) != math.prod(shape):
                continue
            if len(each.drafts) <= self._limits.unrelated or any(
                isinstance(e, View) and each.loads(e) for e in operands
            ):
                axes = self._axes_in(each, shape, operands, stored, repeats)
                if axes is not None:
                    return each, axes
        return None

    def _axes_in(
        self,
        fusion: Fusion,
        shape: tuple[int, ...],
        operands: Sequence[Member | View],
        stored: Callable[[Member], View],
        repeats: Callable[[Member, Fusion, Axes], bool],
    ) -> Axes | None:
        """The axes of a result of `shape` in `fusion`; None if it cannot compute that."""
        if len(fusion.drafts) > self._limits.instructions or fusion.sums >= self._limits.sums:
            return None
        if self._limits.live is not None and fusion.live() > self._limits.live:
            return None
        axes = fusion.aligned(shape, [e for e in operands if isinstance(e, Member) and e.fusion is fusion])
        if axes is None:
            return None
        for operand in operands:
            own = axes[len(shape) - len(operand.shape) :]
            if isinstance(operand, View):
                if not self._can_read(fusion, operand, own):
                    return None
            elif operand.fusion is not fusion and (found := lookup_of(operand)) is not None:
                if fusion.is_across or not all(
                    self._can_read(fusion, view, own) for view in (found.source, found.index)
                ):
                    return None
            elif operand.fusion is not fusion:
                again = repeats(operand, fusion, own)
                if operand.fusion.position >= fusion.position and not again:
                    return None
                if again and fusion.is_across and not operand.fusion.is_plain:
                    return None
                if fusion.row is None or again:
                    continue
                if not fusion.can_load(fusion.strides(stored(operand), own)):
                    return None
        return axes

    def _can_read(self, fusion: Fusion, view: View, axes: Axes) -> bool:
        """Whether `fusion` can load an array: it is complete, and a row of the fusion is one walk through it."""
        return self._ready.get(view.root, -1) < fusion.position and fusion.can_load(fusion.strides(view, axes))


def _limited(rows: Rows, size: Size | None) -> Instruction:
    """A row kernel, without the rows beyond the length if only the run tells that."""
    if size is None or (rows.kernel.rows * rows.kernel.inner) % size.bound:
        return rows
    return Limited(rows, size.bound, size.length, location=rows.location)
