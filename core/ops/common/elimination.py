"""Gaussian elimination and Cholesky factors of matrices with elements that are not finite, or denormal.

LAPACK skips the division by a pivot that is NaN or infinite, so some of its results are finite although they depend on
a NaN, or on the quotient of two infinities. OpenBLAS skips the division by a denormal pivot, or multiplies by the
reciprocal of the pivot, which is infinite. Here all follows IEEE arithmetic. NaN counts as the largest number of a
column, as in machine code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from core.ir.errors import ExecutionError

__all__ = ["all_finite", "all_ordinary", "eliminated", "factored", "replaced", "solved"]


def all_finite(xp: Any, x: Any) -> Any:
    """A bool for each matrix."""
    return xp.isfinite(x).all(axis=(-2, -1))


def all_ordinary(xp: Any, x: Any, dtype: Any) -> Any:
    """A bool for each matrix: whether its elements are finite, and none is denormal in `dtype`."""
    size = xp.abs(x)
    return (xp.isfinite(x) & ((size >= float(np.finfo(dtype).tiny)) | (size == 0))).all(axis=(-2, -1))


def replaced(xp: Any, where: Any, out: Any, f: Callable[..., Any], *operands: Any) -> Any:
    """`out` with ``f(*operands)`` in those places of a batch where a bool is set.

    f takes arrays with one batch axis. operands: arrays whose batch is the shape of `where`, with two axes more.
    """
    at = xp.flatnonzero(where)
    flat = out.reshape(-1, *out.shape[where.ndim :])
    flat[at] = f(*(each.reshape(-1, *each.shape[-2:])[at] for each in operands))
    return flat.reshape(out.shape)


def eliminated(xp: Any, x: Any) -> tuple[Any, Any, Any, Any]:
    """The factors of matrices [batch, n, n], ``x[rows] = lower @ upper``: lower, upper, rows, and the sign of the order
    of the rows.
    """
    batch, n = x.shape[:2]
    lower, upper = xp.zeros_like(x) + xp.eye(n, dtype=x.dtype), x.copy()
    rows, sign, each = xp.zeros((batch, n), "int64") + xp.arange(n), xp.ones(batch, x.dtype), xp.arange(batch)
    for k in range(n):
        best = k + xp.abs(upper[:, k:, k]).argmax(axis=1)
        for array in (upper, rows, lower[:, :, :k]):
            first = array[:, k].copy()
            array[:, k] = array[each, best]
            array[each, best] = first
        sign = xp.where(best == k, sign, -sign)
        pivot = upper[:, k, k, None]
        lower[:, k + 1 :, k] = upper[:, k + 1 :, k] / xp.where(pivot == 0, x.dtype.type(1), pivot)
        upper[:, k + 1 :, k + 1 :] -= lower[:, k + 1 :, k, None] * upper[:, k, None, k + 1 :]
        upper[:, k + 1 :, k] = 0
    return lower, upper, rows, sign


def solved(xp: Any, x: Any, y: Any, code: str, problem: str) -> Any:
    """The solutions z of ``x @ z = y`` for matrices [batch, n, n] and [batch, n, k].

    Raises ExecutionError with `code` and `problem` for a pivot 0.
    """
    lower, upper, rows, _ = eliminated(xp, x)
    if bool((xp.diagonal(upper, axis1=1, axis2=2) == 0).any()):
        raise ExecutionError(problem, code)
    z = xp.take_along_axis(y, rows[..., None], 1)
    for k in range(x.shape[1]):
        z[:, k + 1 :] -= lower[:, k + 1 :, k, None] * z[:, k, None]
    for k in reversed(range(x.shape[1])):
        z[:, k] /= upper[:, k, k, None]
        z[:, :k] -= upper[:, :k, k, None] * z[:, k, None]
    return z


def factored(xp: Any, x: Any, code: str, problem: str) -> Any:
    """The lower triangular L with ``L @ L.T = x`` for matrices [batch, n, n].

    Raises ExecutionError with `code` and `problem` for a pivot that is not positive.
    """
    out = xp.zeros_like(x)
    for k in range(x.shape[1]):
        column = x[:, k:, k] - (out[:, k:, :k] * out[:, k, None, :k]).sum(-1)
        if bool((column[:, 0] <= 0).any()):
            raise ExecutionError(problem, code)
        column[:, 0] = xp.sqrt(column[:, 0])
        column[:, 1:] /= column[:, 0, None]
        out[:, k:, k] = column
    return out
