"""Types of products and decompositions of matrices."""

from __future__ import annotations

from typing import Any

from backpass_client.builder.inference.rules import rule
from backpass_client.builder.inference.sizes import (
    as_axis,
    broadcast,
    broadcast_sizes,
    product,
    same_dtype,
    same_size,
)
from backpass_client.builder.types import InvalidOp, NotKnown, Size, Type

__all__: list[str] = []


@rule("matmul")
def matmul(x: Type, y: Type, transpose_x: bool = False, transpose_y: bool = False, **attrs: Any) -> Type:
    dtype = same_dtype(x, y)
    if not x.dims or not y.dims:
        raise InvalidOp("cannot multiply a scalar; * does")
    a = (*x.dims[:-2], x.dims[-1], x.dims[-2]) if transpose_x and x.rank > 1 else x.dims
    b = (*y.dims[:-2], y.dims[-1], y.dims[-2]) if transpose_y and y.rank > 1 else y.dims
    same_size(a[-1], b[-2] if len(b) > 1 else b[-1], "inner sizes differ")
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    return Type(dtype, (*broadcast_sizes(a[:-2], b[:-2]), *rows, *columns))


@rule("mm", "bmm", "mv")
def product_of_two(x: Type, y: Type, **attrs: Any) -> Type:
    return matmul(x, y)


@rule("addmm", "baddbmm")
def added_product(x: Type, a: Type, b: Type, **attrs: Any) -> Type:
    return broadcast(x, matmul(a, b))


@rule("multi_dot")
def multi_dot(x: list[Type], **attrs: Any) -> Type:
    found = x[0]
    for each in x[1:]:
        found = matmul(found, each)
    return found


@rule("mul_flattened")
def mul_flattened(x: Type, y: Type, x_num_col_dims: int, y_num_col_dims: int, **attrs: Any) -> Type:
    same_size(product(x.dims[x_num_col_dims:]), product(y.dims[:y_num_col_dims]), "inner sizes differ")
    return Type(same_dtype(x, y), (*x.dims[:x_num_col_dims], *y.dims[y_num_col_dims:]))


@rule("dot")
def dot(x: Type, y: Type, **attrs: Any) -> Type:
    return Type(same_dtype(x, y), broadcast_sizes(x.dims, y.dims)[:-1])


@rule("outer")
def outer(x: Type, y: Type, **attrs: Any) -> Type:
    return Type(same_dtype(x, y), (product(x.dims), product(y.dims)))


@rule("cross", "kron")
def paired(x: Type, y: Type, axis: int | None = None, **attrs: Any) -> Type:
    if axis is not None:
        return broadcast(x, y)
    rank = max(x.rank, y.rank)
    a, b = ((*(1,) * (rank - t.rank), *t.dims) for t in (x, y))
    return Type(same_dtype(x, y), tuple(product(pair) for pair in zip(a, b, strict=True)))


@rule("einsum")
def einsum(x: list[Type], equation: str, **attrs: Any) -> Type:
    text = equation.replace(" ", "")
    if "." in text:
        raise NotKnown
    inputs, arrow, out = text.partition("->")
    if not arrow:
        out = "".join(sorted(letter for letter in set(inputs) - {","} if inputs.count(letter) == 1))
    sizes: dict[str, Size] = {}
    terms = inputs.split(",")
    if len(terms) != len(x):
        raise InvalidOp(f"{equation!r} has {len(terms)} operands, not {len(x)}")
    for term, each in zip(terms, x, strict=True):
        if len(term) != each.rank:
            raise InvalidOp(f"{term!r} in {equation!r} needs {len(term)} axes, not those of {each}")
        for letter, n in zip(term, each.dims, strict=True):
            if sizes.get(letter) in (None, 1):
                sizes[letter] = n
            elif n != 1:
                sizes[letter] = same_size(sizes[letter], n, f"sizes of {letter!r} differ")
    for letter in out:
        if letter not in sizes:
            raise InvalidOp(f"{letter!r} in the result of {equation!r} is in no operand")
    return Type(same_dtype(*x), tuple(sizes[letter] for letter in out))


def _square(x: Type) -> None:
    if x.rank < 2:
        raise InvalidOp(f"needs matrices, not {x}")
    same_size(x.dims[-2], x.dims[-1], "the matrices must be square")


@rule("inverse", "cofactors", "cholesky", "cholesky_factor", "matrix_power", "matrix_exp")
def of_square(x: Type, **attrs: Any) -> Type:
    _square(x)
    return x


@rule("det", "logdet")
def number_of_square(x: Type, **attrs: Any) -> Type:
    _square(x)
    return Type(x.kind, x.dims[:-2])


@rule("cofactors_adjoint")
def alike_squares(x: Type, y: Type, **attrs: Any) -> Type:
    same_dtype(x, y)
    _square(y)
    return of_square(x)


@rule("slogdet")
def slogdet(x: Type, **attrs: Any) -> tuple[Type, Type]:
    one = number_of_square(x)
    return one, one


@rule("eigh", "eigh_factor")
def eigh(x: Type, **attrs: Any) -> tuple[Type, Type]:
    _square(x)
    return Type(x.kind, x.dims[:-1]), x


@rule("eigvalsh", "eigvalsh_factor")
def eigvalsh(x: Type, **attrs: Any) -> Type:
    _square(x)
    return Type(x.kind, x.dims[:-1])


@rule("solve", "triangular_solve")
def solve(x: Type, y: Type, **attrs: Any) -> Type:
    _square(x)
    if y.rank == 1:
        same_size(x.dims[-1], y.dims[0], "rows differ")
        return Type(same_dtype(x, y), x.dims[:-1])
    same_size(x.dims[-1], y.dims[-2], "rows differ")
    return Type(same_dtype(x, y), (*broadcast_sizes(x.dims[:-2], y.dims[:-2]), *y.dims[-2:]))


@rule("lu")
def lu(x: Type, **attrs: Any) -> tuple[Type, Type, Type]:
    _square(x)
    return x, x, Type("int64", x.dims[:-1])


@rule("lu_solve")
def lu_solve(lower: Type, upper: Type, rows: Type, y: Type, **attrs: Any) -> Type:
    _square(upper)
    same_size(upper.dims[-1], y.dims[-2] if y.rank > 1 else y.dims[0], "rows differ")
    return Type(same_dtype(lower, upper, y), y.dims)


@rule("lstsq")
def lstsq(x: Type, y: Type, **attrs: Any) -> Type:
    m, n = x.dims[-2:]
    if y.rank == 1:
        same_size(m, y.dims[0], "rows differ")
        return Type(same_dtype(x, y), (*x.dims[:-2], n))
    same_size(m, y.dims[-2], "rows differ")
    return Type(same_dtype(x, y), (*broadcast_sizes(x.dims[:-2], y.dims[:-2]), n, y.dims[-1]))


@rule("pinv")
def pinv(x: Type, **attrs: Any) -> Type:
    return Type(x.kind, (*x.dims[:-2], x.dims[-1], x.dims[-2]))


@rule("qr", "qr_factor")
def qr(x: Type, **attrs: Any) -> tuple[Type, Type]:
    m, n = x.dims[-2:]
    k = min(m, n) if isinstance(m, int) and isinstance(n, int) else None
    return Type(x.kind, (*x.dims[:-1], k)), Type(x.kind, (*x.dims[:-2], k, n))


@rule("svd")
def svd(x: Type, **attrs: Any) -> tuple[Type, Type, Type]:
    m, n = x.dims[-2:]
    k = min(m, n) if isinstance(m, int) and isinstance(n, int) else None
    batch = x.dims[:-2]
    return Type(x.kind, (*batch, m, k)), Type(x.kind, (*batch, k)), Type(x.kind, (*batch, n, k))


@rule("trace")
def trace(x: Type, axis1: int, axis2: int, **attrs: Any) -> Type:
    gone = {as_axis(axis1, x.rank), as_axis(axis2, x.rank)}
    return Type(x.kind, tuple(n for i, n in enumerate(x.dims) if i not in gone))


@rule("dist")
def dist(x: Type, y: Type, **attrs: Any) -> Type:
    broadcast(x, y)
    return Type(x.dtype, ())


@rule("cdist")
def cdist(x: Type, y: Type, **attrs: Any) -> Type:
    same_size(x.dims[-1], y.dims[-1], "points differ in their number of coordinates")
    batch = broadcast_sizes(x.dims[:-2], y.dims[:-2])
    return Type(same_dtype(x, y), (*batch, x.dims[-2], y.dims[-2]))


@rule("pairwise_distance")
def pairwise_distance(x: Type, y: Type, keepdims: bool, **attrs: Any) -> Type:
    both = broadcast(x, y)
    return Type(both.dtype, (*both.dims[:-1], 1) if keepdims else both.dims[:-1])


@rule("bilinear_tensor_product")
def bilinear(x: Type, y: Type, weight: Type, bias: Type | None, **attrs: Any) -> Type:
    return Type(same_dtype(x, y, weight), (x.dims[0], weight.dims[0]))


@rule("weight_norm")
def weight_norm(v: Type, g: Type, **attrs: Any) -> Type:
    return v


@rule("spectral_norm")
def spectral_norm(weight: Type, u: Type, v: Type, **attrs: Any) -> tuple[Type, Type, Type]:
    return weight, u, v
