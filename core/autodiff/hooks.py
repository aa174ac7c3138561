"""Hooks: what a client wants done to gradients while they are computed, as data.

A hook finds variables by name, by the op that writes them or by their role, and acts on their gradients: on each
contribution, or once after all of them are added. What it does is an op of the backward program like any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from core.ir import Block, Op, StackType
from core.ir.builder import BlockBuilder
from core.ir.errors import Location, ProgramError
from core.ir.names import block_index, called, inner_name
from core.ir.registry import REGISTRY, convert

__all__ = ["Hook", "Hooks", "When"]

Do = Literal["clip_value", "clip_norm", "scale", "check_finite", "record"]
When = Literal["after_accumulation", "each_contribution"]
Role = Literal["parameter", "feed", "state"]


@dataclass(frozen=True, slots=True)
class Hook:
    """One rule. Exactly one of `variable`, `op` and `role` says which gradients it is about.

    variable: a name of block 0, or ``"1:h"`` for one of block 1; its last version there is meant.
    op:       gradients of what ops of this type write, in every block.
    role:     gradients of all variables of this role.
    do:       clip_value to within [min, max]; clip_norm so that the 2-norm is at most max_norm; scale by factor;
              check_finite, an error with its place if an element is not; record, return it (inside a loop that of every
              trip, in their order).
    """

    do: Do
    variable: str | None = None
    op: str | None = None
    role: Role | None = None
    when: When = "after_accumulation"
    min: float = -math.inf
    max: float = math.inf
    max_norm: float | None = None
    factor: float | None = None

    def __post_init__(self) -> None:
        if sum(x is not None for x in (self.variable, self.op, self.role)) != 1:
            raise ProgramError("a hook matches one of: a variable, an op, a role", "bad_hook")
        if self.op is not None and self.op not in REGISTRY:
            raise ProgramError(f"there is no op {self.op!r}", "bad_hook")
        if self.do == "clip_value" and (not self.min <= self.max or (math.isinf(self.min) and math.isinf(self.max))):
            raise ProgramError("clip_value needs a min, a max or both, in order", "bad_hook")
        if self.do == "clip_norm" and not (self.max_norm is not None and 0 < self.max_norm < math.inf):
            raise ProgramError("clip_norm needs a positive max_norm", "bad_hook")
        if self.do == "scale" and (self.factor is None or not math.isfinite(self.factor)):
            raise ProgramError("scale needs a finite factor", "bad_hook")
        if self.do == "record" and self.when == "each_contribution":
            raise ProgramError("record takes the whole gradient: leave `when` out", "bad_hook")

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Hook:
        """A hook from its JSON form ``{"match": {"variable": "h"}, "do": "clip_value", "max": 1}``."""
        known = {"match", "do", "when", "min", "max", "max_norm", "factor"}
        match = raw.get("match")
        if raw.keys() - known or not isinstance(match, Mapping) or match.keys() - {"variable", "op", "role"}:
            raise ProgramError(f"a hook has the members {', '.join(sorted(known))}", "bad_hook")
        kinds = {"do": Do, "when": When, "role": Role, "variable": str, "op": str}
        given = {k: v for k, v in (dict(raw) | dict(match)).items() if k != "match"}
        try:
            return cls(**{k: convert(kinds.get(k, float), v) for k, v in given.items()})
        except (ValueError, TypeError) as error:
            raise ProgramError(f"not a hook: {error}", "bad_hook") from None

    @property
    def by_rows(self) -> bool:
        """Whether it does to some rows of a gradient, the others being zero, what it does to the whole."""
        return self.do != "record" and not (self.do == "clip_value" and not self.min <= 0 <= self.max)

    @property
    def place(self) -> tuple[int, str]:
        """The client's block of `variable`, and its name there."""
        return inner_name(self.variable or "")

    def emit(self, b: BlockBuilder, name: str, location: Location | None) -> Op:
        """The op that does it to the gradient `name`; it is typed, but not yet added, and its output is not named."""
        with b.at(location):
            x = b.value(name)
            if self.do == "clip_value":
                return b.make("clip", x, min=self.min, max=self.max)
            if self.do == "clip_norm":
                return b.make("clip_by_norm", x, max_norm=self.max_norm)
            if self.do == "scale":
                return b.make("scale", x, scale=self.factor)
            return b.make("check_finite" if self.do == "check_finite" else "assign", x)


class Hooks:
    """The hooks of one backward pass, found by variable.

    applied: (number of the hook, "block:variable" whose gradient it is about), in the order in which they were put in.
    """

    def __init__(self, hooks: tuple[Hook, ...] = (), roles: Mapping[str, str] | None = None) -> None:
        self.hooks = hooks
        self.roles = roles or {}
        self.applied: list[tuple[int, str]] = []

    def table(self, block: Block, root: bool) -> dict[str, list[int]]:
        """Variable of `block` -> the numbers of the hooks about its gradient."""
        if not self.hooks:
            return {}
        index = 0 if root else block_index(block)
        writer = {name: op.type for op in block.ops for name in op.outputs}
        found: dict[str, list[int]] = {}
        for number, hook in enumerate(self.hooks):
            if hook.variable is not None:
                names = called(block, index, *hook.place)[-1:]
            elif hook.op is not None:
                names = [n for n, type in writer.items() if type == hook.op]
            else:
                names = [n for n in block.params if root and self.roles.get(n) == hook.role]
            for name in names:
                if block.types[name].is_float and not isinstance(block.types[name], StackType):
                    found.setdefault(name, []).append(number)
        return found
