"""Why a gradient that was asked for does not exist."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from core.autodiff.activity import Dependence
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
    depends: Dependence,
) -> tuple[str, Location | None]:
    """A machine-readable reason, most telling first, and the op at which the path ends, if it is one op.

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
    return _cut_point(block, variable, targets, cut, depends)


def _reaches(block: Block, variable: str, targets: Collection[str]) -> bool:
    """Whether any path of data leads from `variable` to a target, differentiable or not."""
    moved = {variable}
    for op in block.ops:
        if not moved.isdisjoint(op.inputs):
            moved.update(op.outputs)
    return not moved.isdisjoint(targets)


def _cut_point(
    block: Block, variable: str, targets: Sequence[str], cut: Collection[str], depends: Dependence
) -> tuple[str, Location | None]:
    """The first op on the way to a target past which the value no longer moves smoothly with `variable`."""
    useful = set(targets)
    for op in reversed(block.ops):
        if not useful.isdisjoint(op.outputs):
            useful.update(op.inputs)
    active = {variable}
    for op in block.ops:
        if active.isdisjoint(op.inputs) or useful.isdisjoint(op.outputs):
            continue
        for name, reaches in zip(op.outputs, depends.op(op), strict=True):
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
                return _reason_in(op, [i for i, each in enumerate(op.inputs) if each in active]), op.location
    return "not_on_path_to_loss", None


def _reason_in(op: Op, inputs: list[int]) -> str:
    if op.type == "stop_gradient":
        return f"stopped_at:{op.outputs[0]}"
    blocks = [inner for _, inner in inner_blocks(op)]
    if not blocks:
        return f"non_differentiable_op:{op.type}"
    for inner in blocks:  # name the op inside that ends the path, where there is just one way in
        for each in inner.ops:
            if each.type == "stop_gradient":
                return f"stopped_at:{each.outputs[0]}"
        if inner.stopped:
            return f"stopped_at:{min(inner.stopped)}"
    roles = roles_of(op)
    is_branch = roles is not None and not roles.repeats
    return "branch_never_differentiable" if is_branch else f"non_differentiable_op:{op.type}"
