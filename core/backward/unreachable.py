"""The reasons why requested gradients do not exist."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from heapq import heappop, heappush

from core.autodiff.activity import Activity
from core.ir import Block, Op, Program, inner_blocks
from core.ir.errors import Location
from core.ir.registry import lookup, roles_of

__all__ = ["Reason", "Unreachable"]

Reason = tuple[str, Location | None]
"""A machine-readable reason, and the op at which the path ends, if it is a single op."""


class Unreachable:
    """The reasons for variables of `block`, block 0 of `program`, that no gradient of `targets` reaches.

    cut: the variables at which differentiation stops.
    """

    def __init__(
        self, program: Program, block: Block, targets: Sequence[str], cut: Collection[str], activity: Activity
    ) -> None:
        self._block = block
        self._cut = cut
        self._activity = activity
        self._frozen = {v.name for v in program.variables if v.role == "parameter" and not v.trainable}
        self._readers = defaultdict[str, list[int]](list)
        for at, op in enumerate(block.ops):
            for name in set(op.inputs):
                self._readers[name].append(at)
        self._useful = set(targets)  # what a target depends on, differentiably or not
        for op in reversed(block.ops):
            if not self._useful.isdisjoint(op.outputs):
                self._useful.update(op.inputs)
        self._found: dict[str, Reason] = {}

    def reason(self, variable: str) -> Reason:
        """The most specific reason for a variable without a gradient.

        integer_dtype, in_no_grad_set, not_trainable, unused, not_on_path_to_loss, stopped_at:<variable>,
        non_differentiable_op:<op>, branch_never_differentiable.
        """
        if not self._block.types[variable].is_float:
            return "integer_dtype", None
        if variable in self._cut:
            return "in_no_grad_set", None
        if variable in self._block.stopped:
            return f"stopped_at:{variable}", None
        if variable in self._frozen:
            return "not_trainable", None
        if variable not in self._readers:
            return "unused", None
        if variable not in self._useful:
            return "not_on_path_to_loss", None
        return self._first_cut(variable)

    def _first_cut(self, variable: str) -> Reason:
        """The first op on a path to a target whose output does not depend differentiably on `variable`.

        Where all paths meet in one variable, its reason is the same.
        """
        alike, active = [], {variable}
        waiting, seen = list(self._readers[variable]), set(self._readers[variable])
        found: Reason | None = None
        met: str | None = variable
        while found is None:
            if met is not None:
                if met in self._found:
                    found = self._found[met]
                    break
                alike.append(met)
            if not waiting:
                found = "not_on_path_to_loss", None
                break
            found, reached = self._through(self._block.ops[heappop(waiting)], active)
            active.update(reached)
            met = reached[0] if len(reached) == 1 and not waiting else None
            for name in reached:
                for at in self._readers.get(name, ()):
                    if at not in seen:
                        seen.add(at)
                        heappush(waiting, at)
        self._found.update(dict.fromkeys(alike, found))
        return found

    def _through(self, op: Op, active: Collection[str]) -> tuple[Reason | None, list[str]]:
        """The reason why differentiation ends at `op`, if it does, and the outputs that it reaches."""
        reached: list[str] = []
        if self._useful.isdisjoint(op.outputs):
            return None, reached
        for name, reaches in zip(op.outputs, self._activity.op(op), strict=True):
            smooth = any(reaches >> i & 1 and each in active for i, each in enumerate(op.inputs))
            if name not in self._useful:
                continue
            if name in self._cut:
                return ("in_no_grad_set", op.location), []
            if name in self._block.stopped:
                return (f"stopped_at:{name}", op.location), []
            is_float = self._block.types[name].is_float
            if smooth and is_float:
                reached.append(name)
            elif is_float or not smooth or lookup(op.type).kind != "control":
                return (_reason_in(op, self._activity), op.location), []
        return None, reached


def _reason_in(op: Op, activity: Activity) -> str:
    if op.type == "stop_gradient":
        return f"stopped_at:{op.outputs[0]}"
    blocks = [inner for _, inner in inner_blocks(op)]
    if not blocks:
        return f"non_differentiable_op:{op.type}"
    for inner in blocks:  # a stop inside the control-flow op is a more precise reason than the op itself
        for each in inner.ops:
            if each.type == "stop_gradient":
                return f"stopped_at:{each.outputs[0]}"
        if stopped := activity.stopped(inner):
            return f"stopped_at:{min(stopped)}"
    roles = roles_of(op)
    is_branch = roles is not None and not roles.repeats
    return "branch_never_differentiable" if is_branch else f"non_differentiable_op:{op.type}"
