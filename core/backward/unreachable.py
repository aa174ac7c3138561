"""The reason why a requested gradient does not exist."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from core.autodiff.activity import Activity
from core.ir import Block, Op, Program, inner_blocks
from core.ir.errors import Location
from core.ir.registry import lookup, roles_of

__all__ = ["reason_for"]


def reason_for(
    program: Program,
    block: Block,
    variable: str,
    targets: Sequence[str],
    cut: Collection[str],
    activity: Activity,
) -> tuple[str, Location | None]:
    """A machine-readable reason, the most specific one, and the op at which the path ends, if it is a single op.

    integer_dtype, in_no_grad_set, not_trainable, unused, not_on_path_to_loss, stopped_at:<variable>,
    non_differentiable_op:<op>, branch_never_differentiable.
    """
    if not block.types[variable].is_float:
        return "integer_dtype", None
    if variable in cut:
        return "in_no_grad_set", None
    if variable in block.stopped:
        return f"stopped_at:{variable}", None
    if any(v.name == variable and v.role == "parameter" and not v.trainable for v in program.variables):
        return "not_trainable", None
    readers = [op for op in block.ops if variable in op.inputs]
    if not readers:
        return "unused", None
    if not _reaches(block, variable, targets):
        return "not_on_path_to_loss", None
    return _cut_point(block, variable, targets, cut, activity)


def _reaches(block: Block, variable: str, targets: Collection[str]) -> bool:
    """Whether a target depends on `variable`, differentiably or not."""
    dependent = {variable}
    for op in block.ops:
        if not dependent.isdisjoint(op.inputs):
            dependent.update(op.outputs)
    return not dependent.isdisjoint(targets)


def _cut_point(
    block: Block, variable: str, targets: Sequence[str], cut: Collection[str], activity: Activity
) -> tuple[str, Location | None]:
    """The first op on a path to a target whose output does not depend differentiably on `variable`."""
    useful = set(targets)
    for op in reversed(block.ops):
        if not useful.isdisjoint(op.outputs):
            useful.update(op.inputs)
    active = {variable}
    for op in block.ops:
        if active.isdisjoint(op.inputs) or useful.isdisjoint(op.outputs):
            continue
        for name, reaches in zip(op.outputs, activity.op(op), strict=True):
            smooth = any(reaches >> i & 1 and each in active for i, each in enumerate(op.inputs))
            if name not in useful:
                continue
            if name in cut:
                return "in_no_grad_set", op.location
            if name in block.stopped:
                return f"stopped_at:{name}", op.location
            if smooth and block.types[name].is_float:
                active.add(name)
            elif block.types[name].is_float or not smooth or lookup(op.type).kind != "control":
                return _reason_in(op), op.location
    return "not_on_path_to_loss", None


def _reason_in(op: Op) -> str:
    if op.type == "stop_gradient":
        return f"stopped_at:{op.outputs[0]}"
    blocks = [inner for _, inner in inner_blocks(op)]
    if not blocks:
        return f"non_differentiable_op:{op.type}"
    for inner in blocks:  # a stop inside the control-flow op is a more precise reason than the op itself
        for each in inner.ops:
            if each.type == "stop_gradient":
                return f"stopped_at:{each.outputs[0]}"
        if inner.stopped:
            return f"stopped_at:{min(inner.stopped)}"
    roles = roles_of(op)
    is_branch = roles is not None and not roles.repeats
    return "branch_never_differentiable" if is_branch else f"non_differentiable_op:{op.type}"
