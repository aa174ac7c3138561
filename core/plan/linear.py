"""Products of matrices."""

from __future__ import annotations

import math
from dataclasses import replace

from core.ir import Op
from core.plan.data import Gemm, Kernel, View
from core.plan.geometry import Turned
from core.plan.lowering import Lowering, lowers
from core.plan.shapes import reshaped_view
from core.plan.unsupported import Unsupported

__all__ = ["matrix", "target_of"]


@lowers("matmul")
def lower_matmul(low: Lowering, op: Op) -> None:
    """Operands of rank 2 and more; leading axes of the first are rows where the second is a plain matrix."""
    x, _ = (low.type(n) for n in op.inputs)
    low.type(op.outputs[0])
    if not x.is_float:
        raise Unsupported(f"matmul of {x.dtype}")
    a, b = (low.stored(low.entry(n)) for n in op.inputs)
    row, column = len(a.shape) == 1, len(b.shape) == 1
    if row:
        a = replace(a, shape=(1, *a.shape), strides=(0, *a.strides))
    elif op.attrs["transpose_x"]:
        a = _turned(a)
    if column:
        b = replace(b, shape=(*b.shape, 1), strides=(*b.strides, 0))
    elif op.attrs["transpose_y"]:
        b = _turned(b)
    a, b = matrix(low, a), matrix(low, b)
    if len(b.shape) == 2 and min(b.shape) > 1 and b.strides[-1] != 1 and b.strides[-2] == 1:
        rules = low.shared.target.products
        if low.outer is not None and b.root not in low.own:  # a weight that every trip reads
            b = low.once(b, _laid_out) if rules.transposes_invariant else b
        elif rules.transposes(math.prod(a.shape[:-1]), b.shape[-1]):
            b = _laid_out(low, b)
    out, added = target_of(low, op.outputs[0])
    c = out
    if column:
        c = replace(c, shape=(*c.shape, 1), strides=(*c.strides, 0))
    if row:
        c = replace(c, shape=(*c.shape[:-1], 1, *c.shape[-1:]), strides=(*c.strides[:-1], 0, *c.strides[-1:]))
    if len(b.shape) == 2 and len(a.shape) > 2:
        rows = a.shape[:-1]
        m = 1
        for n in rows:
            m *= n
        flat, flat_c = reshaped_view(a, (m, a.shape[-1])), reshaped_view(c, (m, c.shape[-1]))
        if flat and flat_c:
            a, c = matrix(low, flat), flat_c  # single rows with gaps are not yet rows of one matrix
    _gemm(low, op, a, b, c, added)
    low.define(op.outputs[0], out)


def _laid_out(low: Lowering, view: View) -> View:
    """A transposed matrix, row by row."""
    columns, rows = view.shape
    target = low.room(view.shape, view.dtype)
    low.add(Kernel("turn", Turned(rows, columns, view.strides[-1], view.dtype), (view, target)))
    return target


def target_of(low: Lowering, name: str) -> tuple[View, bool]:
    """Where a product goes, and whether it is added to what is there."""
    return (low.added[name], True) if name in low.added else (low.place(name), False)


def _gemm(low: Lowering, op: Op, a: View, b: View, c: View, added: bool) -> None:
    batch = c.shape[:-2]
    a, b = (_batched(v, batch) for v in (a, b))
    low.add(Gemm(a, b, c, accumulate=added, location=op.location))


def _batched(view: View, batch: tuple[int, ...]) -> View:
    """`view` with the leading axes `batch`, those it lacks or has as 1 repeated."""
    extra = len(batch) - (len(view.shape) - 2)
    shape = (1,) * extra + view.shape[:-2]
    strides = (0,) * extra + view.strides[:-2]
    strides = tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
    return replace(view, shape=(*batch, *view.shape[-2:]), strides=(*strides, *view.strides[-2:]))


def _turned(view: View) -> View:
    return replace(
        view,
        shape=(*view.shape[:-2], view.shape[-1], view.shape[-2]),
        strides=(*view.strides[:-2], view.strides[-1], view.strides[-2]),
    )


def matrix(low: Lowering, view: View) -> View:
    """`view` if its rows or its columns lie one behind the other, each without gaps, else a copy."""
    turned = _turned(view)
    return view if _has_rows(view) or _has_rows(turned) else low.dense(view)


def _has_rows(view: View) -> bool:
    """Whether the rows of a matrix lie without gaps and do not overlap: repeated and turned ones do."""
    (rows, columns), (down, along) = view.shape[-2:], view.strides[-2:]
    return (columns == 1 or along == 1) and (rows == 1 or down >= columns)
