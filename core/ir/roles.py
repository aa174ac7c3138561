"""The roles of the operands and outputs of loops and branches.

`loop` and `if_else` declare them once (``@loop.roles``). Passes ask `core.ir.registry.roles_of` for them, so that no
pass tests the type of an op or slices its operands by its attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from core.ir.program import StackType, Type

__all__ = ["Roles"]

T = TypeVar("T")
EMPTY = range(0)


@dataclass(frozen=True, slots=True)
class Roles:
    """Positions in `Op.inputs` and `Op.outputs`, by role.

    Every inner block takes the operands (carried, captured, elements) as its parameters, in that order, and returns
    (next carried values, values for `optional`) as its results, which stand at the same positions as the outputs.

    condition: the operand that chooses between the blocks; no block takes it.
    carried:   operands that each trip replaces by a result of the block; the outputs at the same positions are the last
               values.
    captured:  operands that the blocks read, the same on every trip.
    elements:  operands that are stacks; each trip takes one element of each.
    optional:  outputs that a pass may drop, together with the results they come from: the records of a loop, and all
               results of a branch.
    repeats:   whether the block runs once for each trip. If not, each block runs once or not at all.
    """

    condition: range = EMPTY
    carried: range = EMPTY
    captured: range = EMPTY
    elements: range = EMPTY
    optional: range = EMPTY
    repeats: bool = False

    @property
    def passed(self) -> range:
        """The operands that the blocks take, in the order of the blocks' parameters."""
        first = len(self.condition)
        return range(first, first + len(self.carried) + len(self.captured) + len(self.elements))

    def param(self, operand: int) -> int:
        """The position of the parameter that takes `operand`."""
        return operand - len(self.condition)

    def split(self, operands: Sequence[T]) -> tuple[Sequence[T], Sequence[T], Sequence[T]]:
        """The carried, the captured and the element operands out of all."""
        each = (self.carried, self.captured, self.elements)
        carried, captured, elements = (operands[role.start : role.stop] for role in each)
        return carried, captured, elements

    def param_types(self, types: Sequence[Type]) -> list[Type]:
        """The types of the blocks' parameters in the first trip, where the operands have `types`."""
        given = list(types[len(self.condition) :])
        for i in self.elements:
            stack = types[i]
            if isinstance(stack, StackType):
                given[self.param(i)] = stack.element
        return given
