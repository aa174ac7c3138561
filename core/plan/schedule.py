"""What a block has become so far, in the order it will run: instructions, and groups that still grow.

An op joins the latest group that computes one of its operands, else one of the last groups over as many elements, if
all that it reads is there when that group runs; otherwise it begins a group of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from core.ir.errors import Location
from core.plan.data import Instruction, Root, View
from core.plan.fusion import Axes, Group, Member
from core.plan.target import RowLimits

__all__ = ["Schedule"]

LOOKBACK = 24
"""How many of the last groups an op without a producer in any of them is offered to."""


class Schedule:
    """Positions are those of instructions and groups among all of them."""

    def __init__(self, limits: RowLimits) -> None:
        self._limits = limits
        self._all: list[Group | Instruction] = []
        self._ready: dict[Root, int] = {}  # the last position that writes to it

    def add(self, instruction: Instruction) -> None:
        """Append an instruction; whatever it writes is ready behind it."""
        for root in instruction.writes():
            self.written(root, len(self._all))
        self._all.append(instruction)

    def written(self, root: Root, position: int) -> None:
        """`root` holds something new from `position` on."""
        self._ready[root] = max(self._ready.get(root, -1), position)

    def begin(self, shape: tuple[int, ...], location: Location | None) -> Group:
        """A new group over `shape`, behind everything."""
        group = Group(shape, len(self._all), self._limits, location=location)
        self._all.append(group)
        return group

    def finish(self) -> tuple[Instruction, ...]:
        """All of it as instructions; the groups are closed."""
        return tuple(each.finish() if isinstance(each, Group) else each for each in self._all)

    def taker(
        self, shape: tuple[int, ...], operands: Sequence[Member | View], stored: Callable[[Member], View]
    ) -> tuple[Group, Axes] | None:
        """The group that computes a result of `shape` from `operands`, and the domain's axes of the result.

        stored: gives the memory of an operand that another group computes. None if no group there is can take it.
        """
        homes = {e.group.position: e.group for e in operands if isinstance(e, Member)}
        for position in sorted(homes, reverse=True):
            axes = self._admits(homes[position], shape, operands, stored)
            if axes is not None:
                return homes[position], axes
        seen = 0
        for each in reversed(self._all):
            if not isinstance(each, Group):
                continue
            seen += 1
            if seen > LOOKBACK:
                break
            if math.prod(each.shape) == math.prod(shape) and each.position not in homes:
                axes = self._admits(each, shape, operands, stored)
                if axes is not None:
                    return each, axes
        return None

    def _admits(
        self,
        group: Group,
        shape: tuple[int, ...],
        operands: Sequence[Member | View],
        stored: Callable[[Member], View],
    ) -> Axes | None:
        """The domain's axes of a result of `shape`, if `group` can compute it."""
        if len(group.drafts) > self._limits.instructions:
            return None
        axes = group.aligned(shape, [e for e in operands if isinstance(e, Member) and e.group is group])
        if axes is None:
            return None
        for operand in operands:
            own = axes[len(shape) - len(operand.shape) :]
            if isinstance(operand, View):
                if self._ready.get(operand.root, -1) >= group.position:
                    return None
                if not group.can_load(group.strides(operand, own)):
                    return None
            elif operand.group is not group:
                if operand.group.position >= group.position:
                    return None
                if group.row is not None and not group.can_load(group.strides(stored(operand), own)):
                    return None
        return axes
