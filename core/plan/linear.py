"""Products of matrices: the lowering of `matmul`, and the layouts that products accept."""

from __future__ import annotations

import math
from dataclasses import replace

from core.ir import Op
from core.ir.errors import Location
from core.ir.precision import is_half
from core.plan.gathered_products import row_product
from core.plan.geometry import Transposition
from core.plan.halves import lower_wide, narrowed, widened_array
from core.plan.instructions import PRODUCT_BLOCK, Gemm, Kernel, Limited
from core.plan.lowering import Lowering, lowers
from core.plan.memory import Root, View, contiguous, is_matrix
from core.plan.shapes import inverse, reshaped, reshaped_view, sole_transposition
from core.plan.storage import Storage
from core.plan.unsupported import Unsupported

__all__ = ["matrix", "paired", "product"]


@lowers("matmul")
def lower_matmul(low: Lowering, op: Op) -> None:
    """Operands have rank 2 or more; leading axes of the first one are rows if the second one is a single matrix."""
    x, _ = (low.type(n) for n in op.inputs)
    low.type(op.outputs[0])
    if not x.is_float:
        raise Unsupported(f"matmul of {x.dtype}")
    half = is_half(x) and not low.target.products.rounds  # its sums need memory of their own
    pairs = half and _as_pairs(low, op)
    if half and not pairs and not _in_place(low, op):
        lower_wide(low, op, lower_matmul)
    elif _is_outer(low, op):
        _lower_outer(low, op)
    elif not row_product(low, op):
        _lower_product(low, op, half, pairs)


def _lower_product(low: Lowering, op: Op, half: bool, pairs: bool) -> None:
    """half: whether the sums of 16-bit operands are float32 in memory. pairs: whether it takes two terms at a time."""
    x, type = low.type(op.inputs[0]), low.type(op.outputs[0])
    a, b = _as_matrices(low, op)
    turned = _turned_destination(low, op, a) if len(a.shape) == len(b.shape) and not half else None
    if turned is None and _is_turned(low, op, a, b):
        made = low.allocate(type.shape[::-1], type.dtype)
        turned = replace(made, shape=type.shape, strides=made.strides[::-1])
    by_columns = turned is not None and turned.strides[-1] != 1
    if by_columns:
        a, b = _transposed(b), _transposed(a)
    a, b = matrix(low, a), matrix(low, b)
    b = _by_rows(low, a, b)
    if is_half(x):
        low.stand_alone(op.outputs[0])
    if half:
        out, accumulates = low.allocate(type.shape, "float32"), False
    else:
        out, accumulates = (turned, False) if turned else low.product_destination(op.outputs[0])
    c = _with_vector_axes(low, op, _transposed(out) if by_columns else out)
    if len(b.shape) == 2 and len(a.shape) > 2:
        a, c = _rows_merged(low, a, b, c)
    if pairs:
        a, b = paired(low, a, b)
    elif half:
        a = low.dense(widened_array(low, a))
    _gemm(low, op, a, b, c, accumulates)
    low.define(op.outputs[0], narrowed(low, out, type) if half else out)


def _as_matrices(low: Lowering, op: Op) -> tuple[View, View]:
    """The operands as factors [..., m, k] and [..., k, n]: a vector is a row on the left, a column on the right."""
    a, b = (low.stored(low.entry(n)) for n in op.inputs)
    if len(a.shape) == 1:
        a = replace(a, shape=(1, *a.shape), strides=(0, *a.strides))
    elif op.attrs["transpose_x"]:
        a = _transposed(a)
    if len(b.shape) == 1:
        b = replace(b, shape=(*b.shape, 1), strides=(*b.strides, 0))
    elif op.attrs["transpose_y"]:
        b = _transposed(b)
    return a, b


def _with_vector_axes(low: Lowering, op: Op, c: View) -> View:
    """The result with the axes of size 1 that it lacks where an operand is a vector."""
    x, y = (low.type(n) for n in op.inputs)
    if y.rank == 1:
        c = replace(c, shape=(*c.shape, 1), strides=(*c.strides, 0))
    if x.rank == 1:
        c = replace(c, shape=(*c.shape[:-1], 1, *c.shape[-1:]), strides=(*c.strides[:-1], 0, *c.strides[-1:]))
    return c


def _by_rows(low: Lowering, a: View, b: View) -> View:
    """`b`, or a copy that is stored by rows if the target multiplies faster by that."""
    if not (len(b.shape) == 2 and min(b.shape) > 1 and b.strides[-1] != 1 and b.strides[-2] == 1):
        return b
    rules = low.target.products
    if low.outer is not None and b.root not in low.own:  # a weight that every trip reads
        return low.hoist_invariant(b, _transposed_copy) if rules.transposes_invariant else b
    if rules.transposes(math.prod(a.shape[:-1]), b.shape[-1], b.shape[-2]):
        return _transposed_copy(low, b)
    return b


def _rows_merged(low: Lowering, a: View, b: View, c: View) -> tuple[View, View]:
    """`a` [batch..., m, k] and `c` [batch..., m, n] after axes of the batch became rows: as many as strides allow.

    If `a` is much smaller than `c`, a copy of `a` makes all axes rows. The product can then have an epilogue.
    """
    for first in range(len(a.shape) - 2):
        before, rows = a.shape[:first], math.prod(a.shape[first:-1])
        longer, longer_c = (reshaped_view(v, (*before, rows, v.shape[-1])) for v in (a, c))
        if longer_c and longer is None and _pays_copy(low, a, b, longer_c):
            longer = reshaped_view(low.dense(a), (rows, a.shape[-1]))
        if longer and longer_c:
            return matrix(low, longer), longer_c  # rows with gaps between them may not be the rows of a matrix
    return a, c


def _pays_copy(low: Lowering, a: View, b: View, c: View) -> bool:
    """Whether a row-major copy of `a` takes less time than the pass over c [m, n] that an epilogue saves."""
    small = 2 * math.prod(a.shape) <= math.prod(c.shape)
    return small and len(c.shape) == 2 and low.target.products.takes_epilogue(Gemm(a, b, c))


def _turned_destination(low: Lowering, op: Op, a: View) -> View | None:
    """Memory for a product in the layout of its transposition, if only that is read; else None.

    a: the first operand. A product that is stored by columns is that of the transposed operands, and the second one of
    these should be stored by rows.
    """
    found = sole_transposition(low, op)
    if found is None or low.product_limit is not None:
        return None
    name, order = found
    shape = low.type(op.outputs[0]).shape
    back = inverse(order)
    strides = contiguous(tuple(shape[i] for i in order))
    down, along = (strides[i] for i in back[-2:])
    if along != 1 and (down != 1 or a.strides[-2] != 1):
        return None
    made = low.destination(name)
    return replace(made, shape=shape, strides=tuple(made.strides[i] for i in back))


def _is_turned(low: Lowering, op: Op, a: View, b: View) -> bool:
    """Whether to compute the transpose of the product: the first operand is stored by columns, the second is narrow."""
    if len(a.shape) > 2 or len(b.shape) > 2 or is_half(low.type(op.inputs[0])) or low.product_limit is not None:
        return False
    by_columns = a.strides[0] == 1 and a.strides[1] > 1 and b.strides[1] == 1
    (rows, terms), columns = a.shape, b.shape[1]
    sums = op.outputs[0] in low.destinations.sums
    return by_columns and not sums and low.target.products.turns(rows, columns, terms)


def _is_outer(low: Lowering, op: Op) -> bool:
    """Whether every sum has one term, and is not added to a state: then the product is elementwise work."""
    x, y = (low.type(n) for n in op.inputs)
    if min(x.rank, y.rank) < 2 or is_half(x) or op.outputs[0] in low.destinations.sums:
        return False
    return x.shape[-2 if op.attrs["transpose_x"] else -1] == 1


def _lower_outer(low: Lowering, op: Op) -> None:
    x, y = (low.type(n).shape for n in op.inputs)
    type = low.type(op.outputs[0])
    column = reshaped(low, low.entry(op.inputs[0]), (*x[:-2], max(x[-2:]), 1))
    row = reshaped(low, low.entry(op.inputs[1]), (*y[:-2], 1, max(y[-2:])))
    low.define(op.outputs[0], low.apply("mul", {}, [column, row], [type.dtype] * 2, type))


def _as_pairs(low: Lowering, op: Op) -> bool:
    """Whether the target multiplies the 16-bit operands of a product as they are.

    A single column of the result becomes a row (`product`), whose operands may have no pairs that follow each other.
    """
    x, y = (low.type(n) for n in op.inputs)
    if min(x.rank, y.rank) < 2:
        return False
    if y.rank > 2 and op.attrs["transpose_x"]:  # no copy would turn a batch of matrices
        entry = low.entry(op.inputs[0])
        stored = entry if isinstance(entry, View) else View(Root(0), x.dtype, x.shape, contiguous(x.shape))
        if not low.target.products.takes_left(_transposed(stored)):
            return False
    terms, rows = x.shape[-2:] if op.attrs["transpose_x"] else x.shape[:-3:-1]
    columns = y.shape[-2] if op.attrs["transpose_y"] else y.shape[-1]
    if y.rank == 2 and not op.attrs["transpose_x"]:
        rows = math.prod(x.shape[:-1])
    return columns > 1 and low.target.products.pairs(x.dtype, rows, columns, terms)


def _in_place(low: Lowering, op: Op) -> bool:
    """Whether the second of two 16-bit operands stays as it is, and the first one is widened."""
    x, y = (low.type(n) for n in op.inputs)
    if low.outer is not None or x.rank < 2 or y.rank != 2 or low.product_limit is not None:
        return False
    if op.attrs["transpose_x"] and x.rank > 2:
        return False
    terms, columns = y.shape[::-1] if op.attrs["transpose_y"] else y.shape
    rows = math.prod(x.shape) // terms
    stored = low.entry(op.inputs[1])
    by_columns = bool(op.attrs["transpose_y"]) != (isinstance(stored, View) and stored.strides[-1] != 1)
    return low.target.products.reads_halves(rows, columns, terms, by_columns)


def paired(low: Lowering, a: View, b: View) -> tuple[View, View]:
    """The operands in a layout that the target can read pairs of; copies if they have another one."""
    if not low.target.products.takes_left(a):
        turned = len(a.shape) == 2 and a.strides[-2] == 1 and a.strides[-1] > 1
        a = _transposed_copy(low, a) if turned else _copy(low, a)
    if not low.target.products.takes_right(b):
        b = _copy(low, b)
    return a, b


def _copy(low: Lowering, view: View) -> View:
    """A row-major copy."""
    target = low.allocate(view.shape, view.dtype)
    low.write(view, target)
    return target


def _transposed_copy(low: Storage, view: View) -> View:
    """A copy of a matrix that is stored by columns, stored by rows."""
    columns, rows = view.shape
    target = low.allocate(view.shape, view.dtype)
    low.add(Kernel("turn", Transposition(rows, columns, view.strides[-1], view.dtype), (view, target)))
    return target


def _gemm(low: Lowering, op: Op, a: View, b: View, c: View, accumulates: bool) -> None:
    batch = c.shape[:-2]
    a, b = (_batched(v, batch) for v in (a, b))
    made = product(a, b, c, accumulates, op.location)
    low.add(_limited(low, made, a) or made)


def _limited(low: Lowering, made: Gemm, a: View) -> Limited | None:
    """A product whose number of rows only the run tells, in blocks; None if it has another form."""
    if low.product_limit is None or len(made.c.shape) != 2 or made.a is not a:
        return None
    size = low.product_limit
    if made.a.shape[0] != size.bound or size.bound % PRODUCT_BLOCK or size.bound == PRODUCT_BLOCK:
        return None
    return Limited(made, size.bound, size.length, location=made.location)


def product(a: View, b: View, c: View, accumulate: bool, location: Location | None) -> Gemm:
    """``c = a b`` or ``c += a b``; a single column of the result is computed as a single row of its transpose."""
    if c.shape[-1] == 1 and c.shape[-2] > 1 and c.strides[-2] == 1:
        a, b, c = _transposed(b), _transposed(a), _transposed(c)
    return Gemm(a, b, c, accumulate=accumulate, location=location)


def _batched(view: View, batch: tuple[int, ...]) -> View:
    """`view` with the leading axes `batch`; missing axes and axes of size 1 are repeated."""
    extra = len(batch) - (len(view.shape) - 2)
    shape = (1,) * extra + view.shape[:-2]
    strides = (0,) * extra + view.strides[:-2]
    strides = tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
    return replace(view, shape=(*batch, *view.shape[-2:]), strides=(*strides, *view.strides[-2:]))


def _transposed(view: View) -> View:
    return replace(
        view,
        shape=(*view.shape[:-2], view.shape[-1], view.shape[-2]),
        strides=(*view.strides[:-2], view.strides[-1], view.strides[-2]),
    )


def matrix(low: Lowering, view: View) -> View:
    """`view` if it is stored by rows or by columns without gaps inside them, else a copy that is."""
    return view if is_matrix(view) else low.dense(view)
