"""Products of gathered matrices and vectors, as the scores of words and their adjoints: passes over gathered rows.

Such a product reads each row once, so the rows that it gathers need no memory of their own (see `rows_at`).
"""

from __future__ import annotations

import math

from core.ir import Op, TensorType
from core.ir.precision import is_half
from core.plan.lowering import Lowering
from core.plan.reduce import reduced
from core.plan.rows_at import lookup_of
from core.plan.shapes import reshaped

__all__ = ["reads_rows", "row_product"]

LEAST_SUMS = 256
"""Fewest sums of rows that run at the same time. With fewer, threads would share a sum, and its bits depend on them."""


def reads_rows(low: Lowering, op: Op | None, name: str) -> bool:
    """Whether `op` is a product that reads the rows of `name` inside of a fusion."""
    return op is not None and op.type == "matmul" and op.inputs.count(name) == 1 and _matrix(low, op) == name


def row_product(low: Lowering, op: Op) -> bool:
    """Lower a matmul as a pass over gathered rows, if it is one. Otherwise nothing happens, and the result is False."""
    name = _matrix(low, op)
    if name is None or lookup_of(low.entry(name)) is None:
        return False
    first = op.inputs[0] == name
    other = op.inputs[1 if first else 0]
    type, out = low.type(name), low.type(op.outputs[0])
    along = _is_along(op, name)
    *batch, rows, columns = type.shape
    vector = reshaped(low, low.entry(other), (*batch, 1, columns) if along else (*batch, rows, 1))
    factors = [low.entry(name), vector] if first else [vector, low.entry(name)]
    products = low.apply("mul", {}, factors, [type.dtype] * 2, type)
    sums = TensorType((*batch, rows, 1) if along else (*batch, 1, columns), type.dtype)
    total = reduced(low, "sum", products, frozenset({len(batch) + along}), sums)
    # elementwise work on the sums is another pass, which has them in the lanes of its vectors
    low.define(op.outputs[0], reshaped(low, low.stored(total), out.shape))
    return True


def _matrix(low: Lowering, op: Op) -> str | None:
    """The matrix operand, if `op` is a batch of products of a matrix and a vector each; else None."""
    if not low.target.products.in_passes or op.outputs[0] in low.destinations.sums:
        return None
    if low.limit is not None or low.product_limit is not None:
        return None
    types = [low.types[n] for n in op.inputs]
    x, y = types
    if not isinstance(x, TensorType) or not isinstance(y, TensorType) or not x.is_static or not y.is_static:
        return None
    if min(x.rank, y.rank) < 3 or x.shape[:-2] != y.shape[:-2] or is_half(x) or not x.is_float:
        return None
    m, k = x.shape[:-3:-1] if op.attrs["transpose_x"] else x.shape[-2:]
    n = y.shape[-2] if op.attrs["transpose_y"] else y.shape[-1]
    if min(*x.shape, *y.shape) == 0 or k == 1 or (m == 1) == (n == 1):
        return None
    name = op.inputs[0] if n == 1 else op.inputs[1]
    return name if _is_along(op, name) or math.prod(x.shape[:-2]) >= LEAST_SUMS else None


def _is_along(op: Op, matrix: str) -> bool:
    """Whether the sums run along the rows of the matrix; else they are sums of rows."""
    first = op.inputs[0] == matrix
    return bool(op.attrs["transpose_x" if first else "transpose_y"]) != first
