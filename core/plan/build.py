"""A whole block as a plan."""

from __future__ import annotations

from core.ir import Block, TensorType
from core.plan import indexing, linear, reduce, shapes
from core.plan.data import Plan, Root, Sequence, View, bytes_of, contiguous
from core.plan.lowering import Lowering, Shared, Unsupported

__all__ = ["plan_block"]

_ = (indexing, linear, reduce, shapes)  # they register their lowerings


def plan_block(block: Block) -> Plan:
    """The plan of a block whose composites are expanded and whose sizes are known. Raises Unsupported."""
    shared = Shared()
    params = tuple(_given(block, name) for name in block.params)
    results = tuple(_given(block, name) for name in block.results)
    wanted = dict(zip(reversed(block.results), reversed(results), strict=True))
    low = Lowering(block, shared, wanted)
    for name, view in zip(block.params, params, strict=True):
        low.define(name, view)
    low.run()
    for name, view in zip(block.results, results, strict=True):
        if view is not wanted[name]:
            low.copy(low.entry(name), view)
    return Plan(Sequence(low.finish()), params, results, shared.error, tuple(shared.checks))


def _given(block: Block, name: str) -> View:
    type = block.types[name]
    if not isinstance(type, TensorType) or not type.is_static:
        raise Unsupported(f"the size of {name} is known only when it runs")
    return View(Root(bytes_of(type.shape, type.dtype), "given", name), type.dtype, type.shape, contiguous(type.shape))
