"""Gaussian elimination and Cholesky factors of matrices with elements that are not finite.

LAPACK skips the division by a pivot that is NaN or infinite, so some of its results are finite although they depend on
a NaN, or on the quotient of two infinities. Here all follows IEEE arithmetic. NaN counts as the largest number of a
column, as in machine code.
"""

from __future__ import annotations

from typing import Any

from core.ir.errors import ExecutionError

__all__ = ["all_finite", "eliminated", "factored", "places", "solved"]


def all_finite(xp: Any, x: Any) -> Any:
    """A bool for each matrix."""
    return xp.isfinite(x).all(axis=(-2, -1))


def places(xp: Any, flags: Any) -> list[tuple[int, ...]]:
    """The positions of a batch where `flags` is set."""
    return [tuple(at) for at in xp.argwhere(flags).tolist()]


def eliminated(xp: Any, x: Any) -> tuple[Any, Any, Any, int]:
    """The factors of one matrix, ``x[rows] = lower @ upper``: lower, upper, rows, and the sign of their order."""
    n, sign = len(x), 1
    lower, upper, rows = xp.eye(n, dtype=x.dtype), x.copy(), xp.arange(n)
    for k in range(n):
        best = k + int(xp.abs(upper[k:, k]).argmax())
        if best != k:
            sign = -sign
            for each in (upper, rows, lower[:, :k]):
                each[[k, best]] = each[[best, k]]
        if upper[k, k] != 0:
            lower[k + 1 :, k] = upper[k + 1 :, k] / upper[k, k]
        upper[k + 1 :, k + 1 :] -= lower[k + 1 :, k : k + 1] * upper[k : k + 1, k + 1 :]
        upper[k + 1 :, k] = 0
    return lower, upper, rows, sign


def solved(xp: Any, x: Any, y: Any, code: str, problem: str) -> Any:
    """The solution z of ``x @ z = y`` for one matrix x.

    Raises ExecutionError with `code` and `problem` for a pivot 0.
    """
    lower, upper, rows, _ = eliminated(xp, x)
    if bool((xp.diagonal(upper) == 0).any()):
        raise ExecutionError(problem, code)
    z = y[rows]
    for k in range(len(x)):
        z[k + 1 :] -= lower[k + 1 :, k : k + 1] * z[k : k + 1]
    for k in reversed(range(len(x))):
        z[k] /= upper[k, k]
        z[:k] -= upper[:k, k : k + 1] * z[k : k + 1]
    return z


def factored(xp: Any, x: Any, code: str, problem: str) -> Any:
    """The lower triangular L with ``L @ L.T = x`` for one matrix x. Raises ExecutionError with `code` and `problem` for
    a pivot that is not positive.
    """
    out = xp.zeros_like(x)
    for k in range(len(x)):
        column = x[k:, k] - (out[k:, :k] * out[k, :k]).sum(-1)
        if bool(column[0] <= 0):
            raise ExecutionError(problem, code)
        column[0] = xp.sqrt(column[0])
        column[1:] /= column[0]
        out[k:, k] = column
    return out
