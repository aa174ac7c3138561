"""Products, solutions and decompositions of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.beside_torch.installed import F, torch
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def symmetric(x: Any) -> Any:
    return (x + x.mT) / 2


def lower(x: Any) -> Any:
    """The symmetric matrix with the lower triangle of x."""
    return torch.tril(x) + torch.tril(x, -1).mT


def signs(vectors: Any) -> Any:
    """+-1 for each column: it makes the first component positive whose size is close to the largest."""
    if not vectors.numel():
        return torch.ones(*vectors.shape[:-2], 1, vectors.shape[-1], dtype=vectors.dtype)
    size = vectors.detach().abs()
    first = (size >= 0.9 * size.amax(-2, keepdim=True)).to(torch.int8).argmax(-2, keepdim=True)
    return torch.sign(vectors.detach().gather(-2, first))


def eigh(x: Any) -> Any:
    values, vectors = torch.linalg.eigh(x)
    return values, vectors * signs(vectors)


def svd(x: Any) -> Any:
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    way = signs(u)
    return u * way, s, vh.mT * way


def qr(x: Any) -> Any:
    q, r = torch.linalg.qr(x)
    way = torch.sign(torch.diagonal(r.detach(), dim1=-2, dim2=-1)).unsqueeze(-2)
    return q * way, r * way.mT


def expanded(x: Any) -> Any:
    """The determinant by Laplace's expansion along the first row, which has gradients at singular matrices."""
    n = x.shape[-1]
    if n == 0:
        return torch.ones(x.shape[:-2], dtype=x.dtype)
    rest = [torch.cat([x[..., 1:, :j], x[..., 1:, j + 1 :]], -1) for j in range(n)]
    return sum((-1) ** j * x[..., 0, j] * expanded(rest[j]) for j in range(n))


def cofactors(x: Any) -> Any:
    n = x.shape[-1]
    kept = [[k for k in range(n) if k != i] for i in range(n)]
    if n < 2:  # none, or the determinant of no element
        return torch.ones_like(x) + 0 * x
    rows = [[(-1) ** (i + j) * expanded(x[..., kept[i], :][..., kept[j]]) for j in range(n)] for i in range(n)]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def cofactors_adjoint(x: Any, y: Any) -> Any:
    if not x.requires_grad:
        x = x.clone().requires_grad_()
    (out,) = torch.autograd.grad((y * cofactors(x)).sum(), x, create_graph=True)
    return out


def matmul(x: Any, y: Any, transpose_x: bool, transpose_y: bool) -> Any:
    x = x.mT if transpose_x and x.ndim > 1 else x
    return torch.matmul(x, y.mT if transpose_y and y.ndim > 1 else y)


def column(y: Any) -> Any:
    return y.unsqueeze(-1) if y.ndim == 1 else y


def solve(x: Any, y: Any) -> Any:
    out = torch.linalg.solve(x, column(y))
    return out.squeeze(-1) if y.ndim == 1 else out


def triangular_solve(x: Any, y: Any, upper: bool, transpose: bool, unitriangular: bool) -> Any:
    x, up = (x.mT, not upper) if transpose else (x, upper)
    out = torch.linalg.solve_triangular(x, column(y), upper=up, unitriangular=unitriangular)
    return out.squeeze(-1) if y.ndim == 1 else out


def mul_flattened(x: Any, y: Any, x_num_col_dims: int, y_num_col_dims: int) -> Any:
    rows, columns = x.shape[:x_num_col_dims], y.shape[y_num_col_dims:]
    inner = y.shape[:y_num_col_dims].numel()
    return (x.reshape(rows.numel(), inner) @ y.reshape(inner, columns.numel())).reshape(*rows, *columns)


def bilinear(x: Any, y: Any, weight: Any, bias: Any) -> Any:
    return F.bilinear(x, y, weight, bias) if x.numel() else torch.einsum("np,kpq,nq->nk", x, weight, y)


def gap_quotient(x: Any, gap: Any, values: Any) -> Any:
    none = (x == 0) & (gap == 0)
    return torch.where(none, 0.0, x / torch.where(none, 1.0, gap))


def lu(x: Any) -> Any:
    p, low, up = torch.linalg.lu(x)
    rows = p.argmax(-2) if p.numel() else torch.zeros(x.shape[:-1], dtype=torch.int64)
    return low, up, rows


def lu_solve(low: Any, up: Any, rows: Any, y: Any) -> Any:
    unit = torch.tril(low, -1) + torch.eye(low.shape[-1], dtype=low.dtype)
    right = column(y).gather(-2, rows.unsqueeze(-1).expand_as(column(y)))
    out = torch.linalg.solve(torch.triu(up), torch.linalg.solve(unit, right))
    return out.squeeze(-1) if y.ndim == 1 else out


OPS: dict[str, Callable[..., Any]] = {
    "addmm": lambda x, a, b, alpha, beta: torch.addmm(x, a, b, beta=beta, alpha=alpha),
    "baddbmm": lambda x, a, b, alpha, beta: torch.baddbmm(x, a, b, beta=beta, alpha=alpha),
    "bilinear_tensor_product": bilinear,
    "bmm": lambda x, y: torch.bmm(x, y),
    "cdist": lambda x, y, p: torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1),
    "cholesky": lambda x, upper: torch.linalg.cholesky(symmetric(x), upper=upper),
    "cholesky_factor": lambda x: torch.linalg.cholesky(lower(x)),
    "cofactors": cofactors,
    "cofactors_adjoint": cofactors_adjoint,
    "cross": lambda x, y, axis: torch.linalg.cross(x, y, dim=axis),
    "det": lambda x: torch.linalg.det(x),
    "dot": lambda x, y: torch.linalg.vecdot(x, y),
    "eigh": lambda x: eigh(symmetric(x)),
    "eigh_factor": lambda x: eigh(lower(x)),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(symmetric(x)),
    "eigvalsh_factor": lambda x: torch.linalg.eigvalsh(lower(x)),
    "einsum": lambda *x, equation: torch.einsum(equation, *x),
    "gap_quotient": gap_quotient,
    "inverse": lambda x: torch.linalg.inv(x),
    "kron": lambda x, y: torch.kron(x, y),
    "logdet": lambda x: torch.logdet(x),
    "lstsq": lambda x, y, rcond: torch.linalg.pinv(x, rtol=rcond) @ y,
    "lu": lu,
    "lu_solve": lu_solve,
    "matmul": matmul,
    "matrix_exp": lambda x: torch.linalg.matrix_exp(x),
    "matrix_power": lambda x, n: torch.linalg.matrix_power(x, n),
    "mm": lambda x, y: torch.mm(x, y),
    "mul_flattened": mul_flattened,
    "multi_dot": lambda *x: torch.linalg.multi_dot(x),
    "mv": lambda x, y: torch.mv(x, y),
    "outer": lambda x, y: torch.outer(x.reshape(-1), y.reshape(-1)),
    "pairwise_distance": lambda x, y, p, epsilon, keepdims: F.pairwise_distance(x, y, p, epsilon, keepdims),
    "pinv": lambda x, rcond: torch.linalg.pinv(x, rtol=rcond),
    "qr": qr,
    "qr_factor": qr,
    "slogdet": lambda x: tuple(torch.linalg.slogdet(x)),
    "solve": solve,
    "svd": svd,
    "triangular_solve": triangular_solve,
}


def matrices(*shape: int, seed: int = 0) -> np.ndarray:
    """Well-conditioned square matrices."""
    r = np.random.default_rng([*shape, seed])
    return r.uniform(-1, 1, shape) + 2.0 * np.eye(shape[-1])


def definite(*shape: int) -> np.ndarray:
    half = matrices(*shape)
    return half @ half.swapaxes(-1, -2)


def symmetrical(*shape: int) -> np.ndarray:
    """Symmetric matrices with well separated eigenvalues."""
    half = matrices(*shape)
    return half + half.swapaxes(-1, -2) + np.diag(3.0 * np.arange(shape[-1]))


SQUARE = [case(matrices(n, n)) for n in (1, 2, 4)] + [case(matrices(2, 3, 4, 4)), case(-matrices(3, 3, 3))]

MORE: dict[str, list[Inputs]] = {
    "addmm": [case((2, 4), (2, 3), (3, 4), alpha=0.5, beta=-1.5), case((2, 1), (2, 3), (3, 4))],
    "baddbmm": [case((2, 4, 5), (2, 4, 3), (2, 3, 5), alpha=0.5, beta=-1.5), case((4, 1), (2, 4, 3), (2, 3, 5))],
    "bilinear_tensor_product": [case((4, 3), (4, 2), (5, 3, 2), (5,))],
    "bmm": [case((3, 4, 2), (3, 2, 5))],
    "cdist": [case((4, 3), (5, 3), p=p) for p in (1.0, 2.0, 2.5, float("inf"))] + [case((2, 1, 4, 3), (3, 5, 3))],
    "cholesky": [case(definite(n, n), upper=u) for n in (1, 2, 4) for u in (True, False)] + [case(definite(2, 3, 3))],
    "cholesky_factor": [case(definite(4, 4)), case(definite(2, 3, 3))],
    "cofactors": SQUARE,
    "cofactors_adjoint": [case(matrices(2, 3, n, n), matrices(2, 3, n, n, seed=1)) for n in (1, 2, 3, 4)],
    "cross": [case((2, 3, 4), (2, 3, 4), axis=1), case((4, 1, 3), (1, 5, 3))],
    "det": SQUARE,
    "dot": [case((4, 3), (4, 3)), case((2, 4, 3), (2, 4, 3))],
    "eigh": [case(symmetrical(n, n)) for n in (1, 2, 4)] + [case(symmetrical(2, 2, 3, 3))],
    "eigh_factor": [case(symmetrical(4, 4)), case(symmetrical(2, 3, 3))],
    "eigvalsh": [case(symmetrical(n, n)) for n in (1, 2, 4)] + [case(symmetrical(2, 2, 3, 3))],
    "eigvalsh_factor": [case(symmetrical(4, 4))],
    "einsum": [
        case((2, 3, 4), (4, 5), equation="bij,jk->bik"),
        case((2, 3, 4), (2, 4, 3), equation="bij,bji->b"),
        case((3, 4), (4, 5), (5, 2), equation="ij,jk,kl->il"),
        case((3, 3, 2), equation="iij->j"),
        case((2, 3, 4), equation="...ij->...ji"),
        case((2, 3), (4,), equation="ij,k->kji"),
        case((4, 4), (4,), equation="ii,i->"),
        case((2, 3, 4), (3,), (4, 5), equation="aij,i,jk->ak"),
    ],
    "inverse": SQUARE,
    "kron": [case((2, 3), (4, 2)), case((2, 3, 2), (2, 1, 3)), case((3,), (2,))],
    "logdet": [case(definite(n, n)) for n in (1, 2, 4)] + [case(definite(2, 3, 3))],
    "lstsq": [case((4, 3), (4, 2)), case((3, 4), (3,)), case((2, 4, 2), (2, 4, 3))],
    "lu": SQUARE,
    "matrix_exp": SQUARE,
    "matmul": [
        case((2, 3, 4), (4, 5)),
        case((2, 1, 3, 4), (5, 4, 2)),
        case((2, 4, 3), (2, 5, 4), transpose_x=True, transpose_y=True),
        case((4,), (2, 4, 3)),
        case((2, 3, 4), (4,)),
        case((4,), (4,)),
    ],
    "matrix_power": [case(matrices(3, 3), n=n) for n in (-3, -1, 0, 1, 2, 5)],
    "mm": [case((4, 2), (2, 5))],
    "mul_flattened": [case((2, 3, 4), (4, 3, 2), x_num_col_dims=1, y_num_col_dims=2)],
    "multi_dot": [case((2, 5), (5, 3), (3, 4), (4, 2)), case((5,), (5, 3), (3,))],
    "mv": [case((4, 5), (5,))],
    "outer": [case((4,), (5,)), case((2, 3), (2, 2))],
    "pairwise_distance": [case((4, 3), (4, 3), p=p, keepdims=k) for p in (1.0, 2.0, 3.0) for k in (False, True)],
    "pinv": [case((4, 3)), case((3, 4)), case((2, 3, 2)), case(matrices(3, 3))],
    "qr": [case((4, 3)), case((3, 4)), case((2, 3, 3)), case((5, 1)), case((1, 4))],
    "qr_factor": [case((4, 3)), case((2, 3, 3))],
    "slogdet": SQUARE,
    "solve": [case(matrices(4, 4), (4, 3)), case(matrices(2, 1, 3, 3), (4, 3, 2)), case(matrices(4, 4), (4,))],
    "svd": [case((4, 3)), case((3, 4)), case((2, 3, 3)), case((2, 4, 2))],
    "triangular_solve": [
        case(matrices(3, 3), (3, 2), upper=u, transpose=t, unitriangular=one)
        for u in (True, False)
        for t in (True, False)
        for one in (True, False)
    ],
}
