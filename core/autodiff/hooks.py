"""Hooks: the client's actions on gradients during the backward pass, as data.

A hook selects variables by name, by the op that writes them or by their role, and acts on their gradients: on each
contribution, or once after all of them are added. Its action is one of `ACTIONS` and becomes an op of the backward
program like any other. To add an action, declare one more class here: requests, their schemas and the documentation
follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from core.ir import Block, Op, StackType
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import Location, ProgramError
from core.ir.members import Kind, Kinds, Member, Name, check_members, read_members
from core.ir.names import ClientNames, block_index, inner_name
from core.ir.program import OF_FUNCTION
from core.ir.registry import REGISTRY

__all__ = ["ACTIONS", "Action", "Hook", "Hooks", "Match", "When"]

When = Literal["after_accumulation", "each_contribution"]
Role = Literal["parameter", "feed", "state"]


class Action(Kind):
    """The action of a hook on a gradient.

    returned: whether the step returns the gradient to the client, as a whole array.
    """

    __slots__ = ()
    returned: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_members(self, self.name, "bad_hook")

    @property
    def by_rows(self) -> bool:
        """Whether the action on the nonzero rows of a gradient equals the action on the whole gradient."""
        return True

    def scaled(self, factor: float) -> Action:
        """The action on `factor` times a gradient that does the same: itself, unless it has a bound."""
        return self

    def emit(self, b: BlockBuilder, x: Value) -> Op:
        """The op of this action on `x`: typed, but not yet added, and without a name for its output."""
        raise NotImplementedError


ACTIONS: Kinds[Action] = Kinds()
"""All actions by their names in JSON: the values of `do` in a hook."""


@ACTIONS.add
@dataclass(frozen=True, slots=True)
class ClipValue(Action):
    """Move each element to the nearest number in [min, max]; give min, max or both. NaN stays NaN."""

    name = "clip_value"
    min: Annotated[float | None, Member("Smallest element; unbounded by default.")] = None
    max: Annotated[float | None, Member("Largest element; unbounded by default.")] = None

    def __post_init__(self) -> None:
        check_members(self, self.name, "bad_hook")
        if (self.min is None and self.max is None) or self.low > self.high:
            raise ProgramError("clip_value needs a min, a max or both, and min must not exceed max", "bad_hook")

    @property
    def low(self) -> float:
        return -math.inf if self.min is None else self.min

    @property
    def high(self) -> float:
        return math.inf if self.max is None else self.max

    @property
    def by_rows(self) -> bool:
        return self.low <= 0 <= self.high

    def scaled(self, factor: float) -> ClipValue:
        bounds = (None if bound is None else bound * factor for bound in (self.min, self.max))
        return ClipValue(*bounds)

    def emit(self, b: BlockBuilder, x: Value) -> Op:
        return b.make("clip", x, min=self.low, max=self.high)


@ACTIONS.add
@dataclass(frozen=True, slots=True)
class ClipNorm(Action):
    """Scale a gradient whose 2-norm exceeds max_norm down to that norm."""

    name = "clip_norm"
    max_norm: Annotated[float, Member("Largest 2-norm.", gt=0)]

    def scaled(self, factor: float) -> ClipNorm:
        return ClipNorm(self.max_norm * factor)

    def emit(self, b: BlockBuilder, x: Value) -> Op:
        return b.make("clip_by_norm", x, max_norm=self.max_norm)


@ACTIONS.add
@dataclass(frozen=True, slots=True)
class Scale(Action):
    """Multiply the gradient by factor."""

    name = "scale"
    factor: Annotated[float, Member("Multiplier.")]

    def emit(self, b: BlockBuilder, x: Value) -> Op:
        return b.make("scale", x, scale=self.factor)


@ACTIONS.add
@dataclass(frozen=True, slots=True)
class CheckFinite(Action):
    """Fail with `numeric-error` and the place in the program if an element is NaN or infinite."""

    name = "check_finite"

    def emit(self, b: BlockBuilder, x: Value) -> Op:
        return b.make("check_finite", x)


@ACTIONS.add
@dataclass(frozen=True, slots=True)
class Record(Action):
    """Return the gradient under `recorded`: of a loop one row per trip, first trip first; of a scan one per element."""

    name = "record"
    returned = True

    @property
    def by_rows(self) -> bool:
        return False

    def emit(self, b: BlockBuilder, x: Value) -> Op:
        return b.make("assign", x)


@dataclass(frozen=True, slots=True)
class Match:
    """Selects the gradients that a hook acts on. Give exactly one member."""

    variable: Annotated[
        Name | None,
        Member("Gradient of the last version of this variable of block 0; `1:h` names one of block 1."),
    ] = None
    op: Annotated[Name | None, Member("Gradients of the outputs of every op of this type, in all blocks.")] = None
    role: Annotated[Role | None, Member("Gradients of all variables of this role.")] = None

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.variable, self.op, self.role)) != 1:
            raise ProgramError("a hook matches exactly one of variable, op and role", "bad_hook")
        if self.op is not None and self.op not in REGISTRY:
            raise ProgramError(f"unknown op type {self.op!r}", "bad_hook", pointer="/op")

    @classmethod
    def read(cls, raw: Any) -> Match:
        """The match in the JSON form ``{"variable": "h"}``."""
        return read_members(cls, raw, "the match of a hook", "bad_hook")


@dataclass(frozen=True, slots=True)
class Hook:
    """Changes, checks or records gradients while the step computes them."""

    match: Annotated[Match, Member("The gradients to act on.")]
    do: Annotated[Action, ACTIONS, Member("Action on each of these gradients.")]
    when: Annotated[
        When,
        Member("Once on the gradient after all contributions are added, or on each contribution before."),
    ] = "after_accumulation"

    def __post_init__(self) -> None:
        check_members(self, "a hook", "bad_hook")
        if self.do.returned and self.when == "each_contribution":
            text = f"{self.do.name} takes the whole gradient: leave `when` out"
            raise ProgramError(text, "bad_hook", pointer="/when")

    @classmethod
    def read(cls, raw: Any) -> Hook:
        """A hook from its JSON form ``{"match": {"variable": "h"}, "do": "clip_value", "max": 1}``."""
        return read_members(cls, raw, "a hook", "bad_hook")

    @property
    def place(self) -> tuple[int, str]:
        """The client's block that has the matched variable, and the name of the variable there."""
        return inner_name(self.match.variable or "")

    def emit(self, b: BlockBuilder, name: str, location: Location | None) -> Op:
        """The op of the action on the gradient `name`: typed, but not yet added, and without a name for its output."""
        with b.at(location):
            return self.do.emit(b, b.value(name))


class Hooks:
    """The hooks of one backward pass, found by variable.

    applied: (number of the hook, "block:variable" of the gradient it acts on), in the order in which ops were inserted.
    """

    def __init__(self, hooks: tuple[Hook, ...] = (), roles: Mapping[str, str] | None = None) -> None:
        self.hooks = hooks
        self.roles = roles or {}
        self.applied: list[tuple[int, str]] = []

    def table(self, block: Block, root: bool) -> dict[str, list[int]]:
        """Variable of `block` -> the numbers of the hooks that act on its gradient.

        Those that record leave functions out, of which one variable may have the gradients of many calls.
        """
        if not self.hooks:
            return {}
        index = 0 if root else block_index(block)
        leaves = self.roles if root else {}
        writer = {name: op.type for op in block.ops for name in op.outputs if name not in leaves}
        found: dict[str, list[int]] = {}
        of_client = ClientNames(block, index)
        for number, hook in enumerate(self.hooks):
            if hook.match.variable is not None:
                names = of_client.called(*hook.place)[-1:]
            elif hook.match.op is not None and hook.do.returned and index == OF_FUNCTION:
                names = []
            elif hook.match.op is not None:
                names = [n for n, type in writer.items() if type == hook.match.op]
            else:
                names = [n for n, role in leaves.items() if role == hook.match.role and n in block.types]
            for name in names:
                if block.types[name].is_float and not isinstance(block.types[name], StackType):
                    found.setdefault(name, []).append(number)
        return found
