"""The plan of a whole block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from core.ir import Block, TensorType, Type
from core.plan import all_lowerings  # noqa: F401  (registers them)
from core.plan.instructions import Instruction, Instructions
from core.plan.lowering import Lowering, Shared
from core.plan.memory import Root, View, bytes_of, contiguous
from core.plan.plan import Plan
from core.plan.refine import refined
from core.plan.sizes import Expected, bounded_types, is_open
from core.plan.target import Target
from core.plan.unrounded import without_rounding
from core.plan.unsupported import Unsupported
from core.plan.walk import lower_ops

__all__ = ["plan_block"]


def plan_block(block: Block, target: Target, expected: Expected = MappingProxyType({})) -> Plan:
    """The plan of a block whose composites are expanded and whose sizes are known. Raises Unsupported.

    expected: shapes of variables that are larger than the planner would expect.
    """
    shared = Shared(target, expected if target.expects else None)
    params = tuple(_given(block.types, name) for name in block.params)
    opened = any(is_open(block.types[n]) for n in block.results)
    bounded = bounded_types(block, shared.expected) if opened else block.types
    results = tuple(_given(bounded, name) for name in block.results)
    low = Lowering(block, shared, list(zip(block.results, results, strict=True)))
    for name, view in zip(block.params, params, strict=True):
        low.define(name, view)
    lower_ops(low)
    cut = [(i, name) for i, name in enumerate(block.results) if is_open(block.types[name])]
    lengths = {(i, axis): view for i, name in cut for axis, view in _lengths(low, name)}
    body = Instructions(_finished(low, target))
    found = (tuple(shared.checks), tuple(shared.stacks), tuple(shared.interpreted))
    cuts = tuple((i, axis, len(results) + at) for at, (i, axis) in enumerate(lengths))
    results += tuple(lengths.values())
    return Plan(block, target, body, params, results, shared.error, *found, cuts, dict(shared.outputs))


def _finished(low: Lowering, target: Target) -> tuple[Instruction, ...]:
    instructions = refined(low.finish(), target)
    return instructions if target.rows.rounds else without_rounding(instructions)


def _lengths(low: Lowering, name: str) -> Iterator[tuple[int, View]]:
    """The open axes of the result `name`, and for each a result of its own for its size."""
    for axis, size in low.sizes.get(name, {}).items():
        view = View(Root(8, "given", f"{name} length"), "int64", (), ())
        low.write(size.length, view)
        yield axis, view


def _given(types: Mapping[str, Type], name: str) -> View:
    type = types[name]
    if not isinstance(type, TensorType) or not type.is_static:
        raise Unsupported(f"the size of {name} is known only when it runs")
    return View(Root(bytes_of(type.shape, type.dtype), "given", name), type.dtype, type.shape, contiguous(type.shape))
