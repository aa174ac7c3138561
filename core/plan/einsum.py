"""`einsum` of two operands as one product of matrices, or as a batch of products."""

from __future__ import annotations

import math
from dataclasses import replace

from core.ir import Op
from core.ir.errors import InternalError
from core.ops.linalg.einsum import terms_of
from core.plan.data import Gemm, Root, View, contiguous
from core.plan.linear import matrix
from core.plan.lowering import Lowering, lowers
from core.plan.shapes import reshaped_view
from core.plan.unsupported import Unsupported

__all__: list[str] = []


@lowers("einsum")
def lower_einsum(low: Lowering, op: Op) -> None:
    """Letters of both operands and the result are batch axes; letters of both operands alone are summed over."""
    equation = op.attrs["equation"]
    if not low.type(op.outputs[0]).is_float:
        raise Unsupported(f"einsum of {low.type(op.outputs[0]).dtype}")
    views = [low.stored(low.entry(n)) for n in op.inputs]
    letters, result, _ = terms_of(equation, tuple(len(v.shape) for v in views))
    sizes = {c: n for term, v in zip(letters, views, strict=True) for c, n in zip(term, v.shape, strict=True)}
    simple = len(views) == 2 and all(len(set(term)) == len(term) for term in letters)
    if not simple or any(v.shape != tuple(sizes[c] for c in t) for t, v in zip(letters, views, strict=True)):
        raise Unsupported(f"einsum {equation}")
    (x, y), (a, b) = letters, views
    batch = [c for c in result if c in x and c in y]
    rows, columns = ([c for c in result if c in one and c not in other] for one, other in ((x, y), (y, x)))
    summed = [c for c in x if c in y and c not in result]
    if len(batch) + len(rows) + len(summed) < len(x) or len(batch) + len(columns) + len(summed) < len(y):
        raise Unsupported(f"einsum {equation}: it sums over a letter of one operand alone")
    if rows and columns and result.index(columns[0]) < result.index(rows[0]):  # then rows are contiguous
        x, y, a, b, rows, columns = y, x, b, a, columns, rows
    m, n, k = (math.prod(sizes[c] for c in part) for part in (rows, columns, summed))
    lead = tuple(sizes[c] for c in batch)
    a = matrix(low, _grouped(low, _ordered(a, x, [*batch, *rows, *summed]), (*lead, m, k)))
    b = matrix(low, _grouped(low, _ordered(b, y, [*batch, *summed, *columns]), (*lead, k, n)))
    order = [*batch, *rows, *columns]
    name, shape = op.outputs[0], low.type(op.outputs[0]).shape
    if _can_view(shape, result, order, (*lead, m, n)):
        target, accumulates = low.product_destination(name)
        c = reshaped_view(_ordered(target, result, order), (*lead, m, n))
    elif name in low.destinations.sums:
        raise Unsupported(f"einsum {equation}, added to a state")
    else:
        stored, accumulates = low.allocate(tuple(sizes[each] for each in order), a.dtype), False
        c, target = reshaped_view(stored, (*lead, m, n)), _ordered(stored, "".join(order), list(result))
    if c is None:
        raise InternalError(f"no strides describe the result of einsum {equation} as matrices {[*lead, m, n]}")
    low.add(Gemm(a, b, c, accumulate=accumulates, location=op.location))
    low.define(op.outputs[0], target)


def _ordered(view: View, letters: str, order: list[str]) -> View:
    """`view`, whose axes are `letters`, with its axes in another order."""
    at = [letters.index(c) for c in order]
    return replace(view, shape=tuple(view.shape[i] for i in at), strides=tuple(view.strides[i] for i in at))


def _can_view(shape: tuple[int, ...], letters: str, order: list[str], wanted: tuple[int, ...]) -> bool:
    """Whether strides can view a dense array of `shape`, with its axes in `order`, as an array of shape `wanted`."""
    dense = View(Root(0), "", shape, contiguous(shape))
    return reshaped_view(_ordered(dense, letters, order), wanted) is not None


def _grouped(low: Lowering, view: View, shape: tuple[int, ...]) -> View:
    """`view` as matrices; a copy if strides cannot view it so."""
    found = reshaped_view(view, shape) or reshaped_view(low.dense(view), shape)
    if found is None:
        raise InternalError(f"cannot view a dense array of shape {list(view.shape)} as matrices {list(shape)}")
    return found
