"""Ops that move elements: each result is made of parts that strides describe, and of numbers between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from core.ir import Op, TensorType
from core.ir.errors import InternalError
from core.ops.linalg.einsum import diagonal_sizes
from core.plan.entries import Entry, Uniform
from core.plan.lowering import Lowering, lowers
from core.plan.memory import View, bytes_of
from core.plan.reduce import reduced
from core.plan.shapes import expanded, reshaped, reshaped_view
from core.plan.unsupported import Unsupported

__all__ = ["part_of"]


@lowers("tile")
def lower_tile(low: Lowering, op: Op) -> None:
    name, entry = op.outputs[0], low.entry(op.inputs[0])
    shape, counts = _aligned(entry.shape, op.attrs["repeats"])
    each = tuple(n for size in shape for n in (1, size))
    split = tuple(n for pair in zip(counts, shape, strict=True) for n in pair)
    copies = expanded(reshaped(low, entry, each), split)
    out = low.type(name).shape
    if all(1 in pair for pair in zip(counts, shape, strict=True)):  # a broadcast
        low.define(name, reshaped(low, copies, out))
        return
    whole = low.destination(name)
    target = reshaped_view(whole, split)
    assert target is not None
    low.write(copies, target)
    low.define(name, whole)


@lowers("sum_tiles_like")
def lower_sum_tiles(low: Lowering, op: Op) -> None:
    type, entry = low.type(op.outputs[0]), low.entry(op.inputs[0])
    shape, counts = _aligned(type.shape, op.attrs["repeats"])
    split = tuple(n for pair in zip(counts, shape, strict=True) for n in pair)
    given = low.stored(entry)
    tiles = reshaped_view(given, split) or reshaped(low, low.dense(given), split)
    over = frozenset(range(0, len(split), 2))
    kept = tuple(1 if i in over else n for i, n in enumerate(split))
    low.define(op.outputs[0], reshaped(low, reduced(low, "sum", tiles, over, TensorType(kept, type.dtype)), type.shape))


@lowers("diagonal")
def lower_diagonal(low: Lowering, op: Op) -> None:
    low.type(op.outputs[0])
    low.define(op.outputs[0], _diagonal(low.stored(low.entry(op.inputs[0])), **op.attrs))


@lowers("diagonal_into")
def lower_diagonal_into(low: Lowering, op: Op) -> None:
    whole = low.destination(op.outputs[0])
    _placed(low, whole, [(low.entry(op.inputs[0]), _diagonal(whole, **op.attrs))])
    low.define(op.outputs[0], whole)


@lowers("diagonals_into")
def lower_diagonals_into(low: Lowering, op: Op) -> None:
    whole, letters = low.destination(op.outputs[0]), op.attrs["letters"]
    unique = dict.fromkeys(letters)
    steps = {each: sum(s for s, n in zip(whole.strides, letters, strict=True) if n == each) for each in unique}
    shape, strides = diagonal_sizes(letters, whole.shape), tuple(steps[n] for n in unique)
    if shape is None or low.entry(op.inputs[0]).shape != shape:
        raise Unsupported("sizes that do not fit the diagonals")
    _placed(low, whole, [(low.entry(op.inputs[0]), replace(whole, shape=shape, strides=strides))])
    low.define(op.outputs[0], whole)


@lowers("shift")
def lower_shift(low: Lowering, op: Op) -> None:
    name, entry, steps = op.outputs[0], low.entry(op.inputs[0]), op.attrs["steps"]
    type = low.type(name)
    axis = op.attrs["axis"] % len(type.shape)
    size = type.shape[axis]
    if abs(steps) >= size:
        low.define(name, Uniform(0, type.dtype, type.shape))
        return
    source, whole, kept = low.stored(entry), low.destination(name), size - abs(steps)
    low.copy(Uniform(0, type.dtype, ()), part_of(whole, axis, 0 if steps > 0 else kept, abs(steps)))
    low.copy(part_of(source, axis, max(-steps, 0), kept), part_of(whole, axis, max(steps, 0), kept))
    low.define(name, whole)


@lowers("meshgrid")
def lower_meshgrid(low: Lowering, op: Op) -> None:
    for i, (name, vector) in enumerate(zip(op.outputs, op.inputs, strict=True)):
        shape = low.type(name).shape
        column = tuple(n if k == i else 1 for k, n in enumerate(shape))
        low.define(name, expanded(reshaped(low, low.entry(vector), column), shape))


def _aligned(shape: tuple[int, ...], repeats: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and repeats with as many axes each; missing ones in front are 1."""
    rank = max(len(shape), len(repeats))
    return tuple((1,) * (rank - len(each)) + tuple(each) for each in (shape, repeats))  # type: ignore[return-value]


def part_of(view: View, axis: int, start: int, length: int) -> View:
    """`length` slices of a view along an axis, from `start` on."""
    shape = (*view.shape[:axis], length, *view.shape[axis + 1 :])
    return replace(view, shape=shape, offset=view.offset + start * view.strides[axis])


def _diagonal(view: View, offset: int, axis1: int, axis2: int) -> View:
    """The diagonal of two axes as a view, whose last axis it is."""
    first, second = axis1 % len(view.shape), axis2 % len(view.shape)
    down, right = max(-offset, 0), max(offset, 0)
    length = min(view.shape[first] - down, view.shape[second] - right)
    if length <= 0:
        raise Unsupported("an empty diagonal")
    rest = [i for i in range(len(view.shape)) if i not in (first, second)]
    start = view.offset + down * view.strides[first] + right * view.strides[second]
    shape = (*(view.shape[i] for i in rest), length)
    strides = (*(view.strides[i] for i in rest), view.strides[first] + view.strides[second])
    return View(view.root, view.dtype, shape, strides, start)


def _placed(low: Lowering, whole: View, parts: Iterable[tuple[Entry, View]]) -> None:
    """Write zeros to `whole`, then each entry to its part of it.

    Raises InternalError if the part is not inside of `whole` or has another shape than the entry: machine code would
    write or read outside of the arrays.
    """
    low.copy(Uniform(0, whole.dtype, ()), whole)
    for entry, part in parts:
        if entry.shape != part.shape:
            raise InternalError(f"cannot copy an array of shape {list(entry.shape)} to one of {list(part.shape)}")
        if not _is_inside(part):
            raise InternalError(f"{part} leaves its {part.root.nbytes} bytes of memory")
        low.copy(entry, part)


def _is_inside(view: View) -> bool:
    """Whether all elements of a view lie inside of its root."""
    reach = [(n - 1) * step for n, step in zip(view.shape, view.strides, strict=True)]
    first, last = (view.offset + sum(f(each, 0) for each in reach) for f in (min, max))
    return 0 in view.shape or (first >= 0 and bytes_of((last + 1,), view.dtype) <= view.root.nbytes)
