"""The plan of a whole block."""

from __future__ import annotations

from core.ir import Block, TensorType
from core.plan import (
    branches,
    constants,
    convolution,
    draws,
    einsum,
    indexing,
    linear,
    loops,
    movement,
    ordered,
    pooling,
    reduce,
    scaling,
    segments,
    selecting,
    shapes,
    stacks,
)
from core.plan.data import Root, Sequence, View, bytes_of, contiguous
from core.plan.epilogue import fuse_epilogues
from core.plan.lowering import Lowering, Shared
from core.plan.plan import Plan
from core.plan.target import Target
from core.plan.unsupported import Unsupported
from core.plan.walk import lower_ops

__all__ = ["plan_block"]

LOWERING = [  # importing these modules registers the lowerings
    branches,
    constants,
    convolution,
    draws,
    einsum,
    indexing,
    linear,
    loops,
    movement,
    ordered,
    pooling,
    reduce,
    scaling,
    segments,
    selecting,
    shapes,
    stacks,
]


def plan_block(block: Block, target: Target) -> Plan:
    """The plan of a block whose composites are expanded and whose sizes are known. Raises Unsupported."""
    shared = Shared(target)
    params = tuple(_given(block, name) for name in block.params)
    results = tuple(_given(block, name) for name in block.results)
    low = Lowering(block, shared, list(zip(block.results, results, strict=True)))
    for name, view in zip(block.params, params, strict=True):
        low.define(name, view)
    lower_ops(low)
    body = Sequence(fuse_epilogues(low.finish(), target.products.takes_epilogue))
    found = (tuple(shared.checks), tuple(shared.stacks), tuple(shared.interpreted))
    return Plan(block, target, body, params, results, shared.error, *found)


def _given(block: Block, name: str) -> View:
    type = block.types[name]
    if not isinstance(type, TensorType) or not type.is_static:
        raise Unsupported(f"the size of {name} is known only when it runs")
    return View(Root(bytes_of(type.shape, type.dtype), "given", name), type.dtype, type.shape, contiguous(type.shape))
