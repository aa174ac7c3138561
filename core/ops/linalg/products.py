"""Products of vectors, matrices and tensors, composed of `matmul` and `einsum`."""

from __future__ import annotations

from functools import reduce
from itertools import islice
from string import ascii_letters
from typing import Annotated

import numpy as np

from core.ir.bounds import Bounds
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.common.ranges import Count
from core.ops.common.types import axis_of, same_size
from core.ops.elementwise.arithmetic import cast
from core.ops.indexing.gather import slice_
from core.ops.linalg.einsum import einsum
from core.ops.linalg.matmul import matmul
from core.ops.linalg.solve import inverse
from core.ops.reduction.sums import diagonal_mask_like, reduce_sum
from core.ops.shape.agreeing import agreed, squared
from core.ops.shape.concat_split import concat
from core.ops.shape.diagonals import diagonal
from core.ops.shape.reshape import divided, merged, reshape, unsqueeze

__all__: list[str] = []

A = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
B = np.cos(np.arange(12.0)).reshape(3, 4)
SQUARE = np.sin(np.arange(9.0)).reshape(3, 3)
CUBE = np.cos(np.arange(12.0) * 3).reshape(2, 3, 2)


def _ranks(what: str, *wanted: tuple[object, int]) -> None:
    for value, rank in wanted:
        if value.rank != rank:  # type: ignore[attr-defined]
            raise ProgramError(f"{what} needs an operand with {rank} axes, not {value.type}", "shape_mismatch")  # type: ignore[attr-defined]


@composite
def mul_flattened(x, y, *, x_num_col_dims: Count = 1, y_num_col_dims: Count = 1):
    """Matrix product ``x @ y`` of two arrays flattened to matrices: the first `num_col_dims` axes are rows, the others
    columns.

    The result has the row axes of x and the column axes of y. Fluid calls this op `mul`; here, `mul` is the elementwise
    product.
    """
    for value, n in ((x, x_num_col_dims), (y, y_num_col_dims)):
        if n >= value.rank:
            raise ProgramError(
                f"{n} row axes of {value.type} must leave at least one row axis and one column axis", "bad_attr"
            )
    rows, columns = x.rank - x_num_col_dims, y.rank - y_num_col_dims
    inner, other = x.shape[x_num_col_dims:], y.shape[:y_num_col_dims]
    if len(inner) == len(other) and all(m == n or -1 in (m, n) for m, n in zip(inner, other, strict=True)):
        # the flattened axes match one to one, so unknown sizes are allowed
        letters = iter(ascii_letters)
        a, k, b = ("".join(islice(letters, n)) for n in (x_num_col_dims, rows, columns))
        return einsum(x, y, equation=f"{a}{k},{k}{b}->{a}{b}")
    height, width = x.shape[:x_num_col_dims], y.shape[y_num_col_dims:]
    for sizes in (height, width):
        if sizes.count(-1) > 1 or (-1 in sizes and 0 in sizes):
            raise ProgramError(f"at most one size of {list(sizes)} may be unknown", "shape_mismatch")
    a = merged(merged(x, x_num_col_dims, x.rank), 0, x_num_col_dims)
    b = merged(merged(y, y_num_col_dims, y.rank), 0, y_num_col_dims)
    return divided(divided(matmul(a, b), 1, width), 0, height)


mul_flattened.example(
    lambda: [
        Example((A, B), (A @ B,)),
        Example((CUBE, np.ones((3, 2, 4))), (np.tensordot(CUBE, np.ones((3, 2, 4))),), {"y_num_col_dims": 2}),
        Example((CUBE, B[:2]), (CUBE @ B[:2],), {"x_num_col_dims": 2}),
        Example((CUBE, np.vstack([B, B])), (CUBE.reshape(2, 6) @ np.vstack([B, B]),)),
        Example((A[:0], B), (np.zeros((0, 4)),)),
    ]
)


@composite
def mm(x, y):
    """Product of two matrices [m, k] and [k, n]: ``out[i, j] = sum over k of x[i, k] * y[k, j]``."""
    _ranks("mm", (x, 2), (y, 2))
    return matmul(x, y)


@composite
def bmm(x, y):
    """Product of two batches of matrices, [b, m, k] and [b, k, n]: ``out[b] = x[b] @ y[b]``."""
    _ranks("bmm", (x, 3), (y, 3))
    same_size(x.shape[0], y.shape[0], f"the batches of {x.type} and {y.type} differ")
    return matmul(*agreed(x, y, (0, 0)))


@composite
def mv(x, y):
    """Product of a matrix [m, n] and a vector [n]: ``out[i] = sum over j of x[i, j] * y[j]``."""
    _ranks("mv", (x, 2), (y, 1))
    return matmul(x, y)


@composite
def dot(x, y):
    """Inner product along the last axis: ``sum(x * y)``. For two vectors the result is a 0-d array."""
    if x.rank == 0 or x.rank != y.rank:
        raise ProgramError(f"dot takes vectors or batches of vectors, not {x.type} and {y.type}", "shape_mismatch")
    return reduce_sum(x * y, axes=(x.rank - 1,))


mm.example(lambda: [Example((a, b), (a @ b,)) for a, b in ((A, B), (B, B.T), (A[:0], B))])
bmm.example(
    lambda: [
        Example((a, b), (a @ b,))
        for a, b in ((CUBE, CUBE.transpose(0, 2, 1)), (CUBE[:1], CUBE[:1, :2]), (CUBE[:0], CUBE[:0, :2]))
    ]
)
mv.example(lambda: [Example((a, b), (a @ b,)) for a, b in ((A, A[0]), (B, B[1]), (A[:0], A[1]))])
dot.example(lambda: [Example((a, b), ((a * b).sum(-1),)) for a, b in ((A, A + 1), (A[0], A[1]), (A[:0], A[:0]))])


@composite
def addmm(x, a, b, *, alpha: float = 1.0, beta: float = 1.0):
    """Weighted sum of x and a matrix product: ``beta * x + alpha * (a @ b)`` for matrices a [m, k] and b [k, n].

    x broadcasts to the shape of the product, [m, n].
    """
    _ranks("addmm", (a, 2), (b, 2))
    return x * beta + matmul(a, b) * alpha


@composite
def baddbmm(x, a, b, *, alpha: float = 1.0, beta: float = 1.0):
    """Weighted sum of x and a batched matrix product: ``beta * x + alpha * (a @ b)``.

    x broadcasts to the shape of the product.
    """
    _ranks("baddbmm", (a, 3), (b, 3))
    return x * beta + matmul(a, b) * alpha


addmm.example(
    lambda: [
        Example((B[:2], A, B), (B[:2] + A @ B,)),
        Example((B[0], A, B), (3 * B[0] + 2 * (A @ B),), {"alpha": 2.0, "beta": 3.0}),
        Example((B[0], A[:0], B), (np.zeros((0, 4)),)),
    ]
)
_S = CUBE @ CUBE.transpose(0, 2, 1)
baddbmm.example(
    lambda: [
        Example((_S, CUBE, CUBE.transpose(0, 2, 1)), (2 * _S,)),
        Example((_S[0, 0], CUBE, CUBE.transpose(0, 2, 1)), (3 * _S[0, 0] + 2 * _S,), {"alpha": 2.0, "beta": 3.0}),
        Example((_S[:0], CUBE[:0], CUBE[:0].transpose(0, 2, 1)), (_S[:0],)),
    ]
)


@composite
def outer(x, y):
    """Outer product of the elements of x and y in row-major order: ``out[i, j] = x[i] * y[j]``."""
    return unsqueeze(reshape(x, shape=(-1,)), axes=(1,)) * unsqueeze(reshape(y, shape=(-1,)), axes=(0,))


outer.example(lambda: [Example((x, y), (np.outer(x, y),)) for x, y in ((A[0], B[0]), (A, B[1]), (A[0, :0], B[0]))])


@composite
def bilinear_tensor_product(x, y, weight, bias=None):
    """Bilinear form: ``out[n, k] = x[n] @ weight[k] @ y[n] + bias[k]``.

    x is [n, p], y [n, q], weight [k, p, q] and bias [k].
    """
    _ranks("bilinear_tensor_product", (x, 2), (y, 2), (weight, 3))
    out = einsum(x, weight, y, equation="np,kpq,nq->nk")
    return out if bias is None else out + bias


_K = np.sin(np.arange(24.0)).reshape(2, 3, 4)
bilinear_tensor_product.example(
    lambda: [
        Example((A, B[:2], _K), (np.einsum("np,kpq,nq->nk", A, _K, B[:2]),)),
        Example((A, B[:2], _K, A[:, 0]), (np.einsum("np,kpq,nq->nk", A, _K, B[:2]) + A[:, 0],)),
        Example((A[:0], B[:0], _K), (np.zeros((0, 2)),)),
    ]
)


@composite
def kron(x, y):
    """Kronecker product of two arrays of the same rank: ``out[i * p + k, j * q + l] = x[i, j] * y[k, l]``.

    For two matrices [m, n] and [p, q] the result is [m p, n q].
    """
    if x.rank != y.rank:
        raise ProgramError(f"kron takes two arrays of the same rank, not {x.type} and {y.type}", "shape_mismatch")
    odd, even = tuple(range(1, 2 * x.rank, 2)), tuple(range(0, 2 * x.rank, 2))
    interleaved = unsqueeze(x, axes=odd) * unsqueeze(y, axes=even)
    if x.type.is_static and y.type.is_static:
        return reshape(interleaved, shape=tuple(m * n for m, n in zip(x.shape, y.shape, strict=True)))
    for axis in range(x.rank):
        interleaved = merged(interleaved, axis, axis + 2)
    return interleaved


kron.example(
    lambda: [
        Example((x, y), (np.kron(x, y),)) for x, y in ((A, SQUARE[:2]), (A[0], B[0]), (CUBE, CUBE[:1]), (A[:0], A))
    ]
)


@composite
def cross(x, y, *, axis: int = -1):
    """Vector product ``(x1 y2 - x2 y1, x2 y0 - x0 y2, x0 y1 - x1 y0)`` along `axis`.

    The size of `axis` is 3. The other axes broadcast.
    """
    at = axis_of(axis, x.rank)
    if y.rank != x.rank or {x.shape[at], y.shape[at]} - {3, -1}:
        raise ProgramError(f"cross needs axes of size 3, not {x.type} and {y.type}", "shape_mismatch")
    x, y = (
        v.builder.emit("check_shape", v, shape=(*(-1,) * at, 3, *(-1,) * (v.rank - at - 1))) if v.shape[at] == -1 else v
        for v in (x, y)
    )

    def rotated(v, first):
        return concat(
            slice_(v, axes=(at,), starts=(first,), ends=(3,)),
            slice_(v, axes=(at,), starts=(0,), ends=(first,)),
            axis=at,
        )

    return rotated(x, 1) * rotated(y, 2) - rotated(x, 2) * rotated(y, 1)


cross.example(
    lambda: [
        Example((A, A[::-1]), (np.cross(A, A[::-1]),)),
        Example((CUBE, CUBE[::-1]), (np.cross(CUBE, CUBE[::-1], axis=1),), {"axis": 1}),
        Example((A[:0], A[:0]), (A[:0],)),
    ]
)


@composite
def trace(x, *, offset: int = 0, axis1: int = 0, axis2: int = 1):
    """Sum of a diagonal of two axes: ``sum over i of x[i, i + offset]``."""
    entries = diagonal(x, offset=offset, axis1=axis1, axis2=axis2)
    return reduce_sum(entries, axes=(entries.rank - 1,))


trace.example(
    lambda: [
        Example((SQUARE,), (np.trace(SQUARE),)),
        Example((CUBE,), (np.trace(CUBE, 1, 1, 2),), {"offset": 1, "axis1": 1, "axis2": 2}),
        Example((A[:0],), (np.array(0.0),)),
    ]
)


@composite
def matrix_power(x, *, n: Annotated[int, Bounds(ge=-10_000, le=10_000)]):
    """Power of a square matrix: ``x @ x @ ... @ x``, `n` times.

    n = 0 gives the identity. A negative n gives the power of the inverse.
    """
    if x.rank < 2 or (-1 not in x.shape[-2:] and x.shape[-1] != x.shape[-2]):
        raise ProgramError(f"matrix_power needs square matrices, not {x.type}", "shape_mismatch")
    x = squared(x)
    if n == 0:
        mask = diagonal_mask_like(x)
        return cast(mask, dtype=x.dtype)
    base = inverse(x) if n < 0 else x
    out, left = None, abs(n)
    while left:
        if left & 1:
            out = base if out is None else matmul(out, base)
        left >>= 1
        if left:
            base = matmul(base, base)
    return out


_D = SQUARE + 2 * np.eye(3)
matrix_power.example(
    lambda: [
        Example((_D,), (_D @ _D @ _D,), {"n": 3}),
        Example((_D,), (np.linalg.inv(_D) @ np.linalg.inv(_D),), {"n": -2}),
        Example((np.stack([_D, _D.T]),), (np.stack([np.eye(3)] * 2),), {"n": 0}),
        Example((np.zeros((0, 2, 2)),), (np.zeros((0, 2, 2)),), {"n": 2}),
    ]
)


@composite
def multi_dot(*x):
    """Product of two or more matrices ``x[0] @ x[1] @ ...`` in the order that needs the fewest operations.

    The first operand may be a vector (a row) and so may the last (a column). With unknown sizes, or more than 64
    operands, the order is from left to right.
    """
    ends = {0, len(x) - 1}
    if len(x) < 2 or any(v.rank != 2 and not (v.rank == 1 and i in ends) for i, v in enumerate(x)):
        raise ProgramError(
            "multi_dot takes two or more matrices; only the first and the last may be vectors", "shape_mismatch"
        )
    sizes = [
        1 if x[0].rank == 1 else x[0].shape[0],
        *(v.shape[0] for v in x[1:]),
        1 if x[-1].rank == 1 else x[-1].shape[1],
    ]
    if -1 in sizes or len(x) > 64:
        return reduce(matmul, x)
    cuts = _best_splits(sizes)

    def chain(i, j):
        return x[i] if i == j else matmul(chain(i, cuts[i, j]), chain(cuts[i, j] + 1, j))

    return chain(0, len(x) - 1)


def _best_splits(sizes: list[int]) -> dict[tuple[int, int], int]:
    """Where to split each range of operands, when operand i is sizes[i] x sizes[i + 1] (Godbole 1973)."""
    cost = {(i, i): 0 for i in range(len(sizes) - 1)}
    cuts = {}
    for length in range(1, len(sizes) - 1):
        for i in range(len(sizes) - 1 - length):
            j = i + length
            cost[i, j], cuts[i, j] = min(
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )
    return cuts


multi_dot.example(
    lambda: [
        Example((A, B, B.T), (A @ B @ B.T,)),
        Example((A[0], SQUARE, B, B[0]), (A[0] @ SQUARE @ B @ B[0],)),
        Example((A[:0], B), (np.zeros((0, 4)),)),
    ]
)
