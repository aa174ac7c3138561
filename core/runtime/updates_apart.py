"""A step in two regions of machine code: the second one updates parameters and states where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.ir import Block
from core.passes.updates import updates_apart
from core.plan.in_place import in_place
from core.plan.partition import plan_parts
from core.plan.plan import Plan
from core.plan.target import Target
from core.runtime.backend import Region

__all__ = ["PlansApart", "RegionsApart", "plans_apart"]


@dataclass(frozen=True, slots=True)
class PlansApart:
    """The plans of a block in two, see `core.passes.updates.UpdatesApart`. Each result of `update` may be the array of
    its old value.
    """

    step: Plan
    update: Plan
    updated: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class RegionsApart:
    """The compiled plans of a block, which has `results` results."""

    step: Region
    update: Region
    updated: Mapping[int, int]
    results: int

    def spread(self, own: Sequence[Any]) -> list[Any]:
        """The results of the block, from those of `step`; None for each update."""
        left = iter(own)
        return [None if i in self.updated else next(left) for i in range(self.results)]

    def of_step(self, inputs: Sequence[Any], results: Sequence[Any], own: Sequence[Any]) -> list[Any]:
        """The arrays that `step` is bound to. own: its own results; those of the block are replaced by `results`."""
        mine = [each for i, each in enumerate(results) if i not in self.updated]
        return [*inputs, *mine, *own[len(mine) :]]

    def of_update(self, inputs: Sequence[Any], results: Sequence[Any], own: Sequence[Any]) -> list[Any]:
        """The arrays that `update` is bound to: it writes the new values over the old ones."""
        block, step = self.update.plan.block, self.step.plan.block
        made = dict(zip(step.results, self.of_step((), results, own), strict=True))
        old = [inputs[j] for j in self.updated.values()]
        return [*old, *(made[name] for name in block.params[len(old) :]), *old]


def plans_apart(block: Block, target: Target, updated: Mapping[int, int]) -> PlansApart | None:
    """The plans of `block` with its updates apart, as many as can be in place; None if there are none, or if it does
    not become two regions.

    updated: result -> the parameter with its old value, of the same type.
    """
    while (found := updates_apart(block, updated)) is not None:
        step, update = _whole(found.step, target), _whole(found.update, target)
        if step is None or update is None or len(update.checks) > 1 or update.interpreted or update.stacks:
            return None
        update = replace(update, in_order=True)
        right = in_place(update, [(at, at) for at in range(len(found.updated))])
        fitting = {i: j for (i, j), fits in zip(found.updated.items(), right, strict=True) if fits}
        if len(fitting) == len(found.updated):
            return PlansApart(step, update, fitting)
        updated = fitting
    return None


def _whole(block: Block, target: Target) -> Plan | None:
    """The plan of a block that is one region and whose sizes are known before a run."""
    parts = plan_parts(block, target).parts
    if len(parts) != 1 or not isinstance(parts[0], Plan) or parts[0].cuts or parts[0].expected:
        return None
    own = parts[0].block
    return parts[0] if (own.params, own.results) == (block.params, block.results) else None
