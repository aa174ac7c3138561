"""The plan of a whole block."""

from __future__ import annotations

from collections.abc import Mapping

from core.ir import Block, TensorType, Type
from core.plan import (
    branches,
    by_data,
    checked,
    constants,
    convolution,
    draws,
    dynamic_slices,
    einsum,
    factors,
    found,
    fourier,
    indexing,
    lattices,
    linear,
    loops,
    merging,
    moments,
    movement,
    ordered,
    pooling,
    ragged,
    reduce,
    sampling,
    scaling,
    segments,
    selecting,
    shapes,
    spectra,
    stacks,
)
from core.plan.data import Root, Sequence, View, bytes_of, contiguous
from core.plan.lowering import Lowering, Shared
from core.plan.plan import Plan
from core.plan.refine import refined
from core.plan.sizes import bounded_types, is_open
from core.plan.target import Target
from core.plan.unsupported import Unsupported
from core.plan.walk import lower_ops

__all__ = ["plan_block"]

LOWERING = [  # importing these modules registers the lowerings
    branches,
    by_data,
    checked,
    constants,
    convolution,
    draws,
    dynamic_slices,
    einsum,
    factors,
    found,
    fourier,
    indexing,
    lattices,
    linear,
    loops,
    merging,
    moments,
    movement,
    ordered,
    pooling,
    ragged,
    reduce,
    sampling,
    scaling,
    segments,
    selecting,
    shapes,
    spectra,
    stacks,
]


def plan_block(block: Block, target: Target) -> Plan:
    """The plan of a block whose composites are expanded and whose sizes are known. Raises Unsupported."""
    shared = Shared(target)
    params = tuple(_given(block.types, name) for name in block.params)
    bounded = bounded_types(block) if any(is_open(block.types[n]) for n in block.results) else block.types
    results = tuple(_given(bounded, name) for name in block.results)
    low = Lowering(block, shared, list(zip(block.results, results, strict=True)))
    for name, view in zip(block.params, params, strict=True):
        low.define(name, view)
    lower_ops(low)
    lengths = {i: _length(low, name) for i, name in enumerate(block.results) if is_open(block.types[name])}
    body = Sequence(refined(low.finish(), target))
    found = (tuple(shared.checks), tuple(shared.stacks), tuple(shared.interpreted))
    cuts = tuple(zip(lengths, range(len(results), len(results) + len(lengths)), strict=True))
    return Plan(block, target, body, params, (*results, *lengths.values()), shared.error, *found, cuts)


def _length(low: Lowering, name: str) -> View:
    """A result of its own for the length of the result `name`. Raises Unsupported."""
    sizes = low.sizes.get(name, {})
    if sizes.keys() != {0}:
        index = next(i for i, op in enumerate(low.block.ops) if name in op.outputs)
        raise Unsupported(f"the size of {name} is known only when it runs", index)
    view = View(Root(8, "given", f"{name} length"), "int64", (), ())
    low.write(sizes[0].length, view)
    return view


def _given(types: Mapping[str, Type], name: str) -> View:
    type = types[name]
    if not isinstance(type, TensorType) or not type.is_static:
        raise Unsupported(f"the size of {name} is known only when it runs")
    return View(Root(bytes_of(type.shape, type.dtype), "given", name), type.dtype, type.shape, contiguous(type.shape))
