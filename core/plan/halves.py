"""16-bit floats: ops whose kernels compute in float32 alone.

Fusions hold 16-bit values themselves, each rounded as its op rounds it. Sums, products of matrices, convolutions and
pooling run in float32: their operands are widened, in the fusion that computes them if there is one, and their result
is rounded by a cast, which later elementwise work joins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from core.ir import HOLE, Op, TensorType
from core.ir.precision import is_half
from core.ops.common.types import as_dtype
from core.plan.elementary import WIDE
from core.plan.entries import Entry, Uniform
from core.plan.lowering import Lowering
from core.plan.memory import View
from core.plan.storage import Storage

__all__ = ["WIDE", "lower_wide", "narrowed", "wide", "widened", "widened_array"]


def wide(type: TensorType) -> TensorType:
    """The type with 16-bit floats widened."""
    return replace(type, dtype=WIDE) if is_half(type) else type


def lower_wide(low: Lowering, op: Op, lowering: Callable[[Lowering, Op], None]) -> None:
    """Lower `op` by `lowering` with its 16-bit operands and results in float32."""
    names: dict[str, str] = {}
    for name in (*op.inputs, *op.outputs):
        if name != HOLE and name not in names and is_half(low.types[name]):
            names[name] = f"{name}@{WIDE}"
            low.types[names[name]] = wide(low.type(name))
            if name in low.sizes:
                low.sizes[names[name]] = low.sizes[name]
            if name in op.inputs:
                low.define(names[name], widened_array(low, low.entry(name)))
    for name in op.outputs:
        low.stand_alone(name)
    inputs, outputs = (tuple(names.get(n, n) for n in each) for each in (op.inputs, op.outputs))
    lowering(low, replace(op, inputs=inputs, outputs=outputs))
    for name in op.outputs:
        if name in names:
            low.define(name, narrowed(low, low.entry(names[name]), low.type(name)))


def widened_array(low: Lowering, entry: Entry) -> Entry:
    """`entry` in float32, for a kernel that reads an array.

    An array is copied once for all kernels, before all loops that do not change it. Where products store 16-bit floats,
    an array may be their result, and is widened where it is read.
    """
    if isinstance(entry, View) and low.outer and entry.root not in low.own:
        return low.hoist_invariant(entry, _copied)
    if isinstance(entry, View) and not low.target.products.rounds:
        return low.copied_once(entry, _copied)
    return widened(low, entry)


def widened(low: Lowering, entry: Entry) -> Entry:
    """`entry` in float32, for a pass over its elements, which widens an array where it reads it."""
    if isinstance(entry, Uniform):
        return replace(entry, number=as_dtype(entry.dtype).type(entry.number), dtype=WIDE)
    return low.apply("cast", {"dtype": WIDE}, [entry], [entry.dtype], TensorType(entry.shape, WIDE))


def narrowed(low: Lowering, entry: Entry, type: TensorType) -> Entry:
    """`entry`, of `type` in float32, rounded to the dtype of `type`."""
    return low.apply("cast", {"dtype": type.dtype}, [entry], [WIDE], type)


def _copied(low: Storage, view: View) -> View:
    """A float32 copy of an array with its elements in the same order in memory."""
    rank = len(view.shape)
    order = sorted(range(rank), key=lambda i: -abs(view.strides[i]))
    shape = tuple(view.shape[i] if view.strides[i] else 1 for i in order)  # repeated elements are not copied
    source = View(view.root, view.dtype, shape, tuple(view.strides[i] for i in order), view.offset)
    target = low.allocate(shape, WIDE)
    fusion = low.new_fusion(shape)
    axes = tuple(range(rank))
    number = fusion.apply("cast", [("dtype", WIDE)], [fusion.load(source, axes)], WIDE)
    fusion.store(number, target, axes)
    low.instructions.written(target.root, fusion.position)
    strides = dict(zip(order, target.strides, strict=True))
    steps = tuple(strides[i] if view.strides[i] else 0 for i in range(rank))
    return View(target.root, WIDE, view.shape, steps, target.offset)
