"""Factorisations of matrices, and the systems that triangular factors solve."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from core.ir import Op
from core.ops.common.types import broadcast_shapes
from core.ops.linalg.spectral import EQUAL_VALUES, ROUNDING
from core.plan.compose import Maker
from core.plan.entries import Entry, positions
from core.plan.geometry import Transposition
from core.plan.instructions import Kernel
from core.plan.lowering import Lowering, lowers
from core.plan.memory import View, contiguous
from core.plan.shapes import expanded, order_of_axes, reshaped, reshaped_view
from core.plan.systems import Cholesky, Elimination, Exponential, Orthogonalization, Steps, Triangle

__all__ = ["dense_matrices"]

SINGULAR = "singular_matrix"


@lowers("cholesky_factor")
def lower_cholesky(low: Lowering, op: Op) -> None:
    x, batch = _matrices(low, low.entry(op.inputs[0]))
    out = low.destination(op.outputs[0])
    number = low.shared.check(SINGULAR, _not_definite(), op.location)
    spec = Cholesky(x.dtype, batch, x.shape[-1], _steps(x))
    low.add(Kernel("cholesky", spec, (x, out), check=number, location=op.location))
    low.define(op.outputs[0], out)


def _not_definite() -> str:
    return "the matrix is not positive definite (Matrix is not positive definite)"


@lowers("qr_factor")
def lower_qr(low: Lowering, op: Op) -> None:
    x, batch = _matrices(low, low.entry(op.inputs[0]))
    q, r = (low.destination(name) for name in op.outputs)
    spec = Orthogonalization(x.dtype, batch, x.shape[-2], x.shape[-1], _steps(x))
    low.add(Kernel("orthogonalize", spec, (x, q, r), written=2, location=op.location))
    for name, view in zip(op.outputs, (q, r), strict=True):
        low.define(name, view)


@lowers("triangular_solve")
def lower_triangular_solve(low: Lowering, op: Op) -> None:
    t, y = _system(low, *(low.stored(low.entry(n)) for n in op.inputs))
    if op.attrs["transpose"]:
        t = _transposed(t)
    upper = op.attrs["upper"] != op.attrs["transpose"]
    out = low.destination(op.outputs[0])
    message = "the triangular matrix is singular: it has a zero on its diagonal"
    _substitute(low, op, t, y, out, upper, op.attrs["unitriangular"], message)
    low.define(op.outputs[0], out)


def _system(low: Lowering, x: View, y: View) -> tuple[View, View]:
    """The matrices and right-hand sides of a system, as one batch each: [batch, n, n] and [batch, n, k]."""
    if len(y.shape) == 1:
        y = replace(y, shape=(*y.shape, 1), strides=(*y.strides, 0))
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (_expanded(v, (*batch, *v.shape[-2:])) for v in (x, y))
    return _flat(low, x), _flat(low, y)


def _expanded(view: View, shape: tuple[int, ...]) -> View:
    found = expanded(view, shape)
    assert isinstance(found, View)
    return found


def _flat(low: Lowering, view: View) -> View:
    """`view` with its leading axes as one; a copy if strides cannot describe it."""
    shape = (math.prod(view.shape[:-2]), *view.shape[-2:])
    found = reshaped_view(view, shape)
    if found is None:
        found = reshaped_view(low.dense(view), shape)
    assert found is not None
    return found


def _transposed(view: View) -> View:
    shape, strides = view.shape, view.strides
    return replace(view, shape=(*shape[:-2], shape[-1], shape[-2]), strides=(*strides[:-2], strides[-1], strides[-2]))


def _with_rows(low: Lowering, view: View) -> View:
    """`view` [batch, m, n] if the elements of its rows follow each other, else a copy."""
    if view.shape[-1] == 1 or view.strides[-1] == 1:
        return view
    if view.shape[0] == 1 and view.strides[-2] == 1 and view.strides[-1] >= view.shape[-2]:
        return _turned(low, view)
    return low.dense(view)


def _turned(low: Lowering, view: View) -> View:
    """A row-major copy of one matrix that is stored by columns."""
    _, rows, columns = view.shape
    target = low.allocate(view.shape, view.dtype)
    low.add(Kernel("turn", Transposition(columns, rows, view.strides[-1], view.dtype), (view, target)))
    return target


def dense_matrices(low: Lowering, entry: Entry) -> View:
    """An operand as one batch of dense matrices [batch, m, n]."""
    view, _ = _matrices(low, entry)
    return low.dense(view)


def _matrices(low: Lowering, entry: Entry) -> tuple[View, int]:
    """An operand as one batch of matrices whose rows have no gaps, and the number of matrices."""
    view = _with_rows(low, _flat(low, low.stored(entry)))
    return view, view.shape[0]


def _steps(view: View) -> Steps:
    batch, rows, columns = view.strides
    return batch, rows, columns


def _substitute(
    low: Lowering, op: Op, t: View, y: View | None, out: View, upper: bool, unit: bool, message: str = "",
    order: View | None = None, ordered: Literal["", "y", "z"] = "",
) -> None:  # fmt: skip
    """Append the solution of ``t z = y`` to `out`.

    y: None for the identity. order: [batch, n], of the rows of y or of the solution, as `ordered` says.
    """
    y = None if y is None else _with_rows(low, y)
    number = 0 if unit else low.shared.check(SINGULAR, message, op.location)
    n, k = t.shape[-1], t.shape[-1] if y is None else y.shape[-1]
    steps = (0, 0, 0) if y is None else _steps(y)
    apart = order.strides[0] if order is not None else 0
    spec = Triangle(t.dtype, t.shape[0], n, k, _steps(t), steps, upper, unit, ordered, apart, y is None)
    views = tuple(v for v in (t, y, order, out) if v is not None)
    kind = "substitute" if order is None else "substitute_identity" if y is None else "substitute_ordered"
    low.add(Kernel(kind, spec, views, check=number, location=op.location))


# --- LU factors ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Factored:
    """LU factors of matrices x: ``x[order] = lower @ upper``.

    factors: [..., n, n], both in one array. order: [..., n]. sign: [...], that of the permutation.
    flipped: whether they are the factors of the transposed variable.
    """

    factors: View
    order: View
    sign: View
    flipped: bool


def _factored(low: Lowering, op: Op, name: str) -> tuple[Factored, bool]:
    """The LU factors of the variable `name`, or of its transpose, and whether it is the latter.

    Factors are computed once: an adjoint solves the transposed system by the factors of the system itself.
    """
    base, flipped = name, False
    while (producer := low.uses.producers.get(base)) is not None and _transposes(low, producer):
        base, flipped = producer.inputs[0], not flipped
    if base not in low.factored:
        low.factored[base] = _eliminated(low, op, name, flipped)
    found: Factored = low.factored[base]
    return found, found.flipped != flipped


def _eliminated(low: Lowering, op: Op, name: str, flipped: bool = False) -> Factored:
    """Append the LU decomposition of the variable `name`."""
    view = low.stored(low.entry(name))
    shape, batch = view.shape, math.prod(view.shape[:-2])
    x = _with_rows(low, _flat(low, view))
    factors = low.allocate((batch, *shape[-2:]), x.dtype)
    order, sign = low.allocate((batch, shape[-1]), "int64"), low.allocate((batch,), x.dtype)
    spec = Elimination(x.dtype, batch, shape[-1], _steps(x))
    low.add(Kernel("eliminate", spec, (x, factors, order, sign), written=3, location=op.location))
    views = (factors, shape), (order, shape[:-1]), (sign, shape[:-2])
    made = [replace(v, shape=s, strides=contiguous(s)) for v, s in views]
    return Factored(made[0], made[1], made[2], flipped)


def _transposes(low: Lowering, op: Op) -> bool:
    """Whether `op` exchanges the last two axes."""
    if op.type != "transpose":
        return False
    rank = low.type(op.inputs[0]).rank
    return rank >= 2 and order_of_axes(op, rank) == (*range(rank - 2), rank - 1, rank - 2)


@lowers("lu")
def lower_lu(low: Lowering, op: Op) -> None:
    made, flipped = _factored(low, op, op.inputs[0])
    made = _eliminated(low, op, op.inputs[0]) if flipped else made
    of, both, shape = Maker(low), made.factors, made.factors.shape
    zero = of.number(0.0, both.dtype)
    apart = positions(shape, (*(0 for _ in shape[:-2]), 1, -1))  # row minus column
    below, diagonal = (of(kind, apart, of.integer(0)) for kind in ("greater_than", "equal"))
    low.define(op.outputs[0], of.where(below, both, of.cast(diagonal, both.dtype)))
    low.define(op.outputs[1], of.where(below, zero, both))
    low.define(op.outputs[2], made.order)


@lowers("solve")
def lower_solve(low: Lowering, op: Op) -> None:
    out = low.destination(op.outputs[0])
    made, flipped = _factored(low, op, op.inputs[0])
    t, y = _system(low, made.factors, low.stored(low.entry(op.inputs[1])))
    order = _orders(low, made, low.type(op.outputs[0]).shape, len(low.type(op.inputs[1]).shape) == 1)
    between = low.allocate(y.shape, y.dtype)
    message = "the matrix of the linear system is singular (Singular matrix)"
    if flipped:  # x.T = (P.T L U).T = U.T L.T P
        t = _transposed(t)
        _substitute(low, op, t, y, between, False, False, message)
        _substitute(low, op, t, between, out, True, True, order=order, ordered="z")
    else:
        _substitute(low, op, t, y, between, False, True, order=order, ordered="y")
        _substitute(low, op, t, between, out, True, False, message)
    low.define(op.outputs[0], out)


def _orders(low: Lowering, made: Factored, shape: tuple[int, ...], vector: bool) -> View:
    """The orders of the rows of all systems, [batch, n]. shape: of the solutions."""
    batch = shape[:-1] if vector else shape[:-2]
    found = _expanded(made.order, (*batch, made.order.shape[-1]))
    flat = (math.prod(batch), made.order.shape[-1])
    return reshaped_view(found, flat) or replace(low.dense(found), shape=flat, strides=contiguous(flat))


@lowers("inverse")
def lower_inverse(low: Lowering, op: Op) -> None:
    out = low.destination(op.outputs[0])
    made, flipped = _factored(low, op, op.inputs[0])
    t, order = _flat(low, made.factors), _orders(low, made, made.factors.shape, False)
    between = low.allocate(t.shape, t.dtype)
    message = "the matrix is singular and has no inverse (Singular matrix)"
    _substitute(low, op, t, None, between, False, True, order=order, ordered="y")
    target = low.allocate(out.shape, out.dtype) if flipped else out
    _substitute(low, op, t, between, target, True, False, message)
    if flipped:
        low.write(_transposed(target), out)
    low.define(op.outputs[0], out)


@lowers("cofactors")
def lower_cofactors(low: Lowering, op: Op) -> None:
    """The determinant times the transposed inverse, of a matrix with the smallest relevant number as each pivot of 0.

    That number is a rounding error of the largest element of x.
    """
    made, flipped = _factored(low, op, op.inputs[0])
    of, x, type = Maker(low), low.entry(op.inputs[0]), low.type(op.outputs[0])
    rank, info = len(type.shape), np.finfo(type.dtype)
    largest = of.reduce("max", of("abs", x), frozenset({rank - 2, rank - 1}))
    least = of(
        "maximum", of.mul(largest, of.number(float(info.eps), type.dtype)), of.number(float(info.tiny), type.dtype)
    )
    zero, pivots = of.number(0.0, type.dtype), _diagonal(made.factors)
    pivots = low.dense(of.where(of("equal", pivots, zero), reshaped(low, least, (*type.shape[:-2], 1)), pivots))
    apart = positions(type.shape, (*(0 for _ in type.shape[:-2]), 1, -1))  # row minus column
    spread = reshaped(low, pivots, (*type.shape[:-1], 1))
    whole = low.dense(of.where(of("equal", apart, of.integer(0)), spread, made.factors))
    t, order = _flat(low, whole), _orders(low, made, made.factors.shape, False)
    between, inverse = (low.allocate(t.shape, t.dtype) for _ in range(2))
    _substitute(low, op, t, None, between, False, True, order=order, ordered="y")
    _substitute(low, op, t, between, inverse, True, False, "the matrix has a pivot of 0")
    det = reshaped(low, _determinant(low, pivots, made), (*type.shape[:-2], 1, 1))
    inverse = replace(inverse, shape=type.shape, strides=contiguous(type.shape))
    turned = inverse if flipped else _transposed(inverse)
    low.define(op.outputs[0], of.cast(of.mul(det, of.cast(turned, "float64")), type.dtype))


@lowers("det")
def lower_det(low: Lowering, op: Op) -> None:
    made, _ = _factored(low, op, op.inputs[0])
    low.define(op.outputs[0], Maker(low).cast(_determinant(low, _diagonal(made.factors), made), made.factors.dtype))


def _determinant(low: Lowering, pivots: View, made: Factored) -> Entry:
    """In float64: the product of many numbers of the diagonal may leave float32 before the last one."""
    of, batch = Maker(low), made.sign.shape
    whole = reshaped(low, of.reduce("prod", of.cast(pivots, "float64"), frozenset({len(batch)})), batch)
    return of.mul(whole, of.cast(made.sign, "float64"))


@lowers("slogdet")
def lower_slogdet(low: Lowering, op: Op) -> None:
    made, _ = _factored(low, op, op.inputs[0])
    of, type = Maker(low), low.type(op.outputs[0])
    diagonal, over = _diagonal(made.factors), frozenset({len(type.shape)})
    sign = reshaped(low, of.reduce("prod", of("sign", diagonal), over), type.shape)
    logs = of.reduce("sum", of("log", of("abs", diagonal)), over)
    logs = reshaped(low, logs, type.shape)
    low.define(op.outputs[0], of.where(of("isnan", logs), logs, of.mul(sign, made.sign)))
    low.define(op.outputs[1], logs)


def _diagonal(view: View) -> View:
    """The diagonals of square matrices."""
    shape, strides = view.shape, view.strides
    return replace(view, shape=shape[:-1], strides=(*strides[:-2], strides[-2] + strides[-1]))


@lowers("matrix_exp")
def lower_matrix_exp(low: Lowering, op: Op) -> None:
    x, out = dense_matrices(low, low.entry(op.inputs[0])), low.destination(op.outputs[0])
    spec = Exponential(x.dtype, x.shape[0], x.shape[-1])
    low.add(Kernel("exponential", spec, (x, out), location=op.location))
    low.define(op.outputs[0], out)


# --- gaps between eigenvalues --------------------------------------------------------------------------------------


@lowers("gap_quotient")
def lower_gap_quotient(low: Lowering, op: Op) -> None:
    of, (x, gap, values) = Maker(low), (low.entry(n) for n in op.inputs)
    unit = np.dtype(x.dtype).type(ROUNDING * np.finfo(x.dtype).eps)
    top = of.reduce("max", of("abs", values), frozenset({len(values.shape) - 1}))
    top = reshaped(low, top, (*values.shape[:-1], 1, 1))
    zero, one = of.number(0.0, x.dtype), of.number(1.0, x.dtype)
    equal = of("less_equal", of("abs", gap), of.mul(top, of.number(unit, x.dtype)))
    fine = of("logical_or", of("logical_not", equal), of("equal", x, zero))
    of.check(fine, "degenerate_spectrum", EQUAL_VALUES, op.location)
    low.define(op.outputs[0], of.where(equal, zero, of("div", x, of.where(equal, one, gap))))
