"""Cumulative sums, products, maxima and linear recurrences along an axis.

Ops that numpy and cupy cannot both accumulate run in log2(n) rounds. In round k, each element is combined with the
result of the rounds before, taken 2 ** k positions earlier (Hillis and Steele 1986). Its rounding error grows with the
number of rounds. Sums and products of floats are accumulated in float64: a million equal float32 numbers added one by
one in float32 err by one percent.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.types import axis_of, matches, same_dtype, widened
from core.ops.elementwise.logic import equal, logical_not, where, where_or_zero
from core.ops.elementwise.math import exp
from core.ops.indexing.scatter_gather import take_along_axis
from core.ops.shape.broadcast import expand_to
from core.ops.shape.creation import fill_zeros_like, full_like
from core.ops.shape.reshape import unsqueeze

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0, 0.5], [0.75, 4.0, -1.5, 2.0]])
CUBE = np.sin(np.arange(12.0) * 7).reshape(2, 3, 2)
Z = np.array([2.0, 0.0, 3.0, 0.5, 0.0])
FIRST = np.array([False, True, False, True, False])

WIDE = 256
"""Elements of a row from which on adding row by row takes less time than numpy's running sum."""


def _along(x: TensorType, *, axis: int, **attrs: object) -> TensorType:
    axis_of(axis, x.rank)
    if x.dtype == "bool":
        raise ProgramError(f"needs numbers, not {x}", "dtype_mismatch")
    return x


def _running(xp: Any, x: Any, name: str) -> Any:
    """The function `name` of xp, "cumsum" or "cumprod", along the first axis of x; that of floats in float64."""
    dtype = x.dtype if x.dtype.kind in "iu" else np.dtype("float64")
    if xp is not np or dtype == x.dtype or math.prod(x.shape[1:]) < WIDE:
        return getattr(xp, name)(x, axis=0, dtype=dtype).astype(x.dtype, copy=False)
    combine = np.add if name == "cumsum" else np.multiply
    out, state = np.empty(x.shape, x.dtype), np.full(x.shape[1:], combine.identity, dtype)
    for t in range(len(x)):
        combine(state, x[t], out=state)
        out[t] = state
    return out


def _accumulated(xp: Any, x: Any, axis: int, name: str, start: float, exclusive: bool, reverse: bool) -> Any:
    """The function `name` of xp, "cumsum" or "cumprod", along `axis` of x, from the end if `reverse` is set.

    With `exclusive` the result is moved by one position and begins with `start`.
    """
    leading = xp.moveaxis(x, axis, 0)
    leading = leading[::-1] if reverse else leading
    out = _running(xp, leading, name)
    if exclusive:
        out = xp.concatenate([xp.full(leading[:1].shape, start, x.dtype), out[:-1]])
    return xp.moveaxis(out[::-1] if reverse else out, 0, axis)


# --- sums ------------------------------------------------------------------------------------------------------


@op
def cumsum(xp, x, *, axis: int = -1, exclusive: bool = False, reverse: bool = False):
    """Cumulative sum along `axis`: ``out[i] = x[0] + ... + x[i]``.

    - `exclusive`: leave out x[i] itself, so the first result is 0.
    - `reverse`: accumulate from the end.
    """
    return _accumulated(xp, x, axis, "cumsum", 0, exclusive, reverse)


cumsum.infer(_along)
cumsum.vjp(
    lambda ct, out, x, *, axis, exclusive, reverse: cumsum(ct, axis=axis, exclusive=exclusive, reverse=not reverse)
)
cumsum.example(
    lambda: [
        Example((X,), (X.cumsum(-1),)),
        Example((X,), (X[:, ::-1].cumsum(1)[:, ::-1],), {"axis": 1, "reverse": True}),
        Example((CUBE,), (CUBE.cumsum(1) - CUBE,), {"axis": 1, "exclusive": True}),
        Example((X,), (X.sum(0) - X.cumsum(0),), {"axis": 0, "exclusive": True, "reverse": True}),
        Example((X[:0],), (X[:0],), {"axis": 0, "exclusive": True}),
    ]
)


@op
def shift(xp, x, *, axis: int = -1, steps: int = 1):
    """x moved by `steps` positions along `axis`, towards the front if negative. The free positions hold 0."""
    leading = xp.moveaxis(x, axis, 0)
    out = xp.zeros(leading.shape, x.dtype)
    if 0 <= steps < len(out):
        out[steps:] = leading[: len(out) - steps]
    elif -len(out) < steps < 0:
        out[:steps] = leading[-steps:]
    return xp.moveaxis(out, 0, axis)


@shift.infer
def shift_infer(x, *, axis, steps):
    axis_of(axis, x.rank)
    return x


shift.vjp(lambda ct, out, x, *, axis, steps: shift(ct, axis=axis, steps=-steps))
shift.example(
    lambda: [
        Example((X,), (np.pad(X[:, :-1], ((0, 0), (1, 0))),)),
        Example((X,), (np.pad(X[:, 3:], ((0, 0), (0, 3))),), {"steps": -3}),
        Example((CUBE,), (0 * CUBE,), {"axis": 1, "steps": 7}),
        Example((X[:0],), (X[:0],), {"axis": 0}),
    ]
)


@op
def linear_scan(xp, a, b, begins=None, *, axis: int = -1, reverse: bool = False):
    """Linear recurrence along `axis`: ``out[t] = a[t] * out[t - 1] + b[t]``, starting from 0.

    With `reverse` the recurrence reads out[t + 1] instead. a and b have the same shape. `begins` is a bool for each
    position along `axis`: where it is set, the recurrence begins again with ``out[t] = b[t]``, even after an infinity.
    The gradient is a linear scan in the opposite direction (Martin and Cundy 2018, section 2).
    """
    if a.shape != b.shape:
        raise ExecutionError(f"a and b must have one shape: {list(a.shape)} and {list(b.shape)}", "shape_mismatch")
    dtype = b.dtype
    a, b = (xp.moveaxis(widened(v), axis, 0) for v in (a, b))
    if begins is not None and begins.shape != a.shape[:1]:
        raise ExecutionError(f"begins must have {len(a)} elements, not {len(begins)}", "shape_mismatch")
    if reverse:
        a, b, begins = a[::-1], b[::-1], begins if begins is None else begins[::-1]
    out = _by_doubling(_factors(xp, a, begins), b)
    if not xp.isfinite(out).all():  # a product of many a may overflow where no single step does
        out = _one_by_one(xp, a, b, begins)
    return xp.moveaxis(out[::-1] if reverse else out, 0, axis).astype(dtype, copy=False)


def _factors(xp, a, begins):
    """A copy of a with 0 where the recurrence begins again."""
    if begins is None:
        return a.copy()
    return xp.where(begins.reshape(-1, *(1 for _ in a.shape[1:])), a.dtype.type(0), a)


def _by_doubling(a, b):
    """The linear recurrence along the first axis, in as many passes as the number of steps has bits. a is overwritten.

    The first step multiplies 0 by a[0], as every later one multiplies the result before it.
    """
    out = b.copy()
    out[:1] += a[:1] * a.dtype.type(0)
    step = 1
    while step < len(out):
        out[step:] = out[step:] + a[step:] * out[:-step]
        a[step:] = a[step:] * a[:-step]
        step *= 2
    return out


def _one_by_one(xp, a, b, begins):
    """The linear recurrence along the first axis, step by step in float64."""
    out, state = b.copy(), xp.zeros(b.shape[1:], "float64")
    restarts = [False] * len(b) if begins is None else begins.tolist()
    for t, restart in enumerate(restarts):
        state = b[t].astype("float64") if restart else b[t] + a[t] * state
        out[t] = state
    return out


@linear_scan.infer
def linear_scan_infer(a, b, begins, *, axis, reverse):
    same_dtype(a, b)
    if not matches(a, b):
        raise ProgramError(f"a and b must have the same shape, not {a} and {b}", "shape_mismatch")
    both = tuple(m if n == -1 else n for m, n in zip(a.shape, b.shape, strict=True))
    out = _along(TensorType(both, a.dtype), axis=axis)
    if begins is not None and not matches(begins, TensorType((out.shape[axis],), "bool")):
        raise ProgramError(f"begins must be bool[{out.shape[axis]}], not {begins}", "shape_mismatch")
    return out


@linear_scan.vjp
def linear_scan_vjp(ct, out, a, b, begins, *, axis, reverse):
    step = -1 if reverse else 1
    ends = None if begins is None else shift(begins, axis=0, steps=-step)
    adjoint = linear_scan(shift(a, axis=axis, steps=-step), ct, ends, axis=axis, reverse=not reverse)
    factor = adjoint * shift(out, axis=axis, steps=step)
    if begins is not None:
        others = tuple(i for i in range(a.rank) if i != axis % a.rank)
        factor = where_or_zero(logical_not(expand_to(unsqueeze(begins, axes=others), a)), factor)
    return factor, adjoint, None


def _scan_by_loop(a, b, begins=()):
    out = [b[0]]
    for t in range(1, len(b)):
        out.append(b[t] if t in begins else a[t] * out[-1] + b[t])
    return np.stack(out)


linear_scan.example(
    lambda: [
        Example((Z, Z + 1), (_scan_by_loop(Z, Z + 1),)),
        Example((X, X[::-1]), (_scan_by_loop(X.T[::-1], X[::-1].T[::-1])[::-1].T,), {"reverse": True}),
        Example((CUBE, CUBE + 1), (np.stack([_scan_by_loop(c, c + 1) for c in CUBE]),), {"axis": 1}),
        Example((X[:0], X[:0]), (X[:0],), {"axis": 0}),
        Example((Z, Z + 1, FIRST), (_scan_by_loop(Z, Z + 1, (1, 3)),)),
        Example((X, X + 1, FIRST[:4]), (_scan_by_loop(X.T[::-1], X.T[::-1] + 1, (0, 2))[::-1].T,), {"reverse": True}),
        Example((CUBE, CUBE + 1, FIRST[:2]), (_scan_by_loop(CUBE, CUBE + 1, (1,)),), {"axis": 0}),
    ]
)


# --- products --------------------------------------------------------------------------------------------------


@op
def cumprod(xp, x, *, axis: int = -1, exclusive: bool = False, reverse: bool = False):
    """Cumulative product along `axis`: ``out[i] = x[0] * ... * x[i]``.

    `exclusive` and `reverse` work as in `cumsum`; the first exclusive result is 1. The gradient uses no division, so it
    is exact for zeros.
    """
    return _accumulated(xp, x, axis, "cumprod", 1, exclusive, reverse)


cumprod.infer(_along)


@cumprod.vjp
def cumprod_vjp(ct, out, x, *, axis, exclusive, reverse):
    # dx[j] = (product of x before j) * sum over t >= j of ct[t] * (product of x between j and t)
    ahead = 1 if reverse else -1
    before = out if exclusive else cumprod(x, axis=axis, exclusive=True, reverse=reverse)
    factors = x if exclusive else shift(x, axis=axis, steps=ahead)
    after = linear_scan(factors, ct, axis=axis, reverse=not reverse)
    return before * (shift(after, axis=axis, steps=ahead) if exclusive else after)


cumprod.example(
    lambda: [
        Example((X,), (X.cumprod(-1),)),
        Example((Z,), (Z.cumprod(),)),
        Example((CUBE,), (CUBE[:, ::-1].cumprod(1)[:, ::-1],), {"axis": 1, "reverse": True}),
        Example((X,), (np.concatenate([np.ones((2, 1)), X.cumprod(1)[:, :-1]], 1),), {"exclusive": True}),
        Example((Z,), (np.array([0.0, 0, 0, 0, 1]),), {"exclusive": True, "reverse": True}),
        Example((X[:0],), (X[:0],), {"axis": 0, "exclusive": True}),
    ]
)


# --- exponentials ----------------------------------------------------------------------------------------------


@op
def logcumsumexp(xp, x, *, axis: int = -1):
    """Logarithm of the cumulative sum of exponentials along `axis`: ``log(cumsum(exp(x)))``, without overflow.

    The result is -inf while all elements so far are -inf. An element that is -inf has gradient 0.
    """
    out, step = xp.moveaxis(widened(x), axis, 0).copy(), 1
    while step < len(out):
        out[step:] = xp.logaddexp(out[step:], out[:-step])
        step *= 2
    return xp.moveaxis(out, 0, axis).astype(x.dtype, copy=False)


@logcumsumexp.infer
def logcumsumexp_infer(x, *, axis):
    if not x.is_float:
        raise ProgramError(f"needs a floating-point input, not {x}", "dtype_mismatch")
    return _along(x, axis=axis)


@logcumsumexp.vjp
def logcumsumexp_vjp(ct, out, x, *, axis):
    # d out[t] / d x[j] = exp(x[j] - out[t]) = exp(x[j] - out[j]) * exp(out[j] - out[t]): the share of j at step j,
    # times the decay of all shares since. Both exponents are at most 0. Where out is still -inf, shares are set to 0.
    zero, before = fill_zeros_like(out), shift(out, axis=axis)
    share = exp(x - where(equal(out, full_like(out, value=-math.inf)), zero, out))
    growth = shift(where(equal(out, before), zero, out - before), axis=axis, steps=-1)  # of inf to inf: 0
    return share * linear_scan(exp(-growth), ct, axis=axis, reverse=True)


LATE = np.array([-np.inf, -np.inf, 1.0, -np.inf, 800.0, 801.0])
logcumsumexp.example(
    lambda: [
        Example((X,), (np.log(np.exp(X).cumsum(1)),)),
        Example((CUBE,), (np.log(np.exp(CUBE).cumsum(1)),), {"axis": 1}),
        Example((X[:0],), (X[:0],), {"axis": 0}),
        Example((LATE,), (np.logaddexp.accumulate(LATE),), smooth=False),
    ]
)


# --- extremes --------------------------------------------------------------------------------------------------


@op(no_gradient="its result is an integer")
def running_argmax(xp, x, *, axis: int = -1, sign: Literal["max", "min"] = "max"):
    """Position of the largest (or smallest) element so far along `axis`, as int64. Ties give the first position.

    From the first NaN on, the result is the position of that NaN.
    """
    best = xp.moveaxis(x, axis, 0).copy()
    n, step = len(best), 1
    at = xp.broadcast_to(xp.arange(n).reshape(n, *(1 for _ in best.shape[1:])), best.shape).astype("int64")
    while step < n:
        old, new = best[:-step], best[step:]
        stays = (old >= new if sign == "max" else old <= new) | (old != old)
        at[step:] = xp.where(stays, at[:-step], at[step:])
        best[step:] = xp.where(stays, old, new)
        step *= 2
    return xp.moveaxis(at, 0, axis)


@running_argmax.infer
def running_argmax_infer(x, *, axis, sign):
    axis_of(axis, x.rank)
    return TensorType(x.shape, "int64")


running_argmax.example(
    lambda: [
        Example((np.array([1.0, 1.0, 3.0, 2.0, 3.0]),), (np.array([0, 0, 2, 2, 2]),)),
        Example((X,), (np.array([[0, 1, 1, 1], [0, 0, 2, 2]]),), {"sign": "min"}),
        Example((np.array([1.0, np.nan, 3.0, np.nan]),), (np.array([0, 1, 1, 1]),)),
    ]
)


@composite(outputs=("out", "index"))
def cummax(x, *, axis: int = -1):
    """Cumulative maximum along `axis`: ``out[i] = max(x[0], ..., x[i])``, and its position.

    If several elements are equal, the first one gets the gradient.
    """
    index = running_argmax(x, axis=axis)
    return take_along_axis(x, index, axis=axis), index


@composite(outputs=("out", "index"))
def cummin(x, *, axis: int = -1):
    """Cumulative minimum along `axis`: ``out[i] = min(x[0], ..., x[i])``, and its position.

    If several elements are equal, the first one gets the gradient.
    """
    index = running_argmax(x, axis=axis, sign="min")
    return take_along_axis(x, index, axis=axis), index


cummax.example(
    lambda: [
        Example((X,), (np.maximum.accumulate(X, 1),)),
        Example((CUBE,), (np.maximum.accumulate(CUBE, 1),), {"axis": 1}),
        Example((X[:0],), (X[:0],)),
    ]
)
cummin.example(
    lambda: [
        Example((X,), (np.minimum.accumulate(X, 1),)),
        Example((CUBE,), (np.minimum.accumulate(CUBE, 1),), {"axis": 1}),
        Example((X[:0],), (X[:0],)),
    ]
)
