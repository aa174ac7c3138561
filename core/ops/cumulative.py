"""Running sums, products, maxima and recurrences along an axis.

What numpy and cupy cannot both accumulate is computed in log2(n) rounds: in round k, each element takes in what the
rounds before found 2 ** k places in front of it (Hillis and Steele 1986).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from core.errors import ExecutionError, ProgramError
from core.ir import TensorType
from core.ops.types import axis_of, matches, same_dtype, working_dtype
from core.registry import Example, composite, lookup, op

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0, 0.5], [0.75, 4.0, -1.5, 2.0]])
CUBE = np.sin(np.arange(12.0) * 7).reshape(2, 3, 2)
Z = np.array([2.0, 0.0, 3.0, 0.5, 0.0])


def _along(x: TensorType, *, axis: int, **attrs: object) -> TensorType:
    axis_of(axis, x.rank)
    if x.dtype == "bool":
        raise ProgramError(f"needs numbers, not {x}", "dtype_mismatch")
    return x


def _running(
    xp: Any, x: Any, axis: int, accumulate: Callable[[Any], Any], start: float, exclusive: bool, reverse: bool
) -> Any:
    """`accumulate` along the first axis of x, once `axis` of x is made that and turned round as `reverse` asks."""
    moved = xp.moveaxis(x, axis, 0)
    moved = moved[::-1] if reverse else moved
    out = accumulate(moved).astype(x.dtype, copy=False)
    if exclusive:
        out = xp.concatenate([xp.full(moved[:1].shape, start, x.dtype), out[:-1]])
    return xp.moveaxis(out[::-1] if reverse else out, 0, axis)


# --- sums ------------------------------------------------------------------------------------------------------


@op
def cumsum(xp, x, *, axis: int = -1, exclusive: bool = False, reverse: bool = False):
    """``out[i] = x[0] + ... + x[i]`` along `axis`; `exclusive` leaves out the element itself, `reverse` runs from the
    end.
    """
    return _running(xp, x, axis, lambda v: xp.cumsum(v, axis=0, dtype=working_dtype(x)), 0, exclusive, reverse)


cumsum.infer(_along)
cumsum.vjp(
    lambda ct, out, x, *, axis, exclusive, reverse: lookup("cumsum")(
        ct, axis=axis, exclusive=exclusive, reverse=not reverse
    )
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
    """x moved by `steps` places along `axis`, towards the front if negative; zeros fill the places left."""
    moved = xp.moveaxis(x, axis, 0)
    out = xp.zeros(moved.shape, x.dtype)
    if 0 <= steps < len(out):
        out[steps:] = moved[: len(out) - steps]
    elif -len(out) < steps < 0:
        out[:steps] = moved[-steps:]
    return xp.moveaxis(out, 0, axis)


@shift.infer
def shift_infer(x, *, axis, steps):
    axis_of(axis, x.rank)
    return x


shift.vjp(lambda ct, out, x, *, axis, steps: lookup("shift")(ct, axis=axis, steps=-steps))
shift.example(
    lambda: [
        Example((X,), (np.pad(X[:, :-1], ((0, 0), (1, 0))),)),
        Example((X,), (np.pad(X[:, 3:], ((0, 0), (0, 3))),), {"steps": -3}),
        Example((CUBE,), (0 * CUBE,), {"axis": 1, "steps": 7}),
        Example((X[:0],), (X[:0],), {"axis": 0}),
    ]
)


@op
def linear_scan(xp, a, b, *, axis: int = -1, reverse: bool = False):
    """The recurrence ``out[t] = a[t] * out[t - 1] + b[t]`` along `axis`, from 0; with `reverse`, over t + 1 instead.

    a and b have one shape. Its gradient is a linear scan the other way. Martin and Cundy 2018, section 2.
    """
    if a.shape != b.shape:
        raise ExecutionError(f"a and b must have one shape: {list(a.shape)} and {list(b.shape)}", "shape_mismatch")
    a, b = (xp.moveaxis(v, axis, 0) for v in (a, b))
    a, out = ((v[::-1] if reverse else v).copy() for v in (a, b))
    step = 1
    while step < len(out):
        out[step:] = out[step:] + a[step:] * out[:-step]
        a[step:] = a[step:] * a[:-step]
        step *= 2
    return xp.moveaxis(out[::-1] if reverse else out, 0, axis)


@linear_scan.infer
def linear_scan_infer(a, b, *, axis, reverse):
    same_dtype(a, b)
    if not matches(a, b):
        raise ProgramError(f"a and b must have one shape: {a} and {b}", "shape_mismatch")
    both = tuple(m if n == -1 else n for m, n in zip(a.shape, b.shape, strict=True))
    return _along(TensorType(both, a.dtype), axis=axis)


@linear_scan.vjp
def linear_scan_vjp(ct, out, a, b, *, axis, reverse):
    step = -1 if reverse else 1
    shift_ = lookup("shift")
    back = lookup("linear_scan")(shift_(a, axis=axis, steps=-step), ct, axis=axis, reverse=not reverse)
    return back * shift_(out, axis=axis, steps=step), back


def _scanned(a, b):
    out = [b[0]]
    for x, y in zip(a[1:], b[1:], strict=True):
        out.append(x * out[-1] + y)
    return np.stack(out)


linear_scan.example(
    lambda: [
        Example((Z, Z + 1), (_scanned(Z, Z + 1),)),
        Example((X, X[::-1]), (_scanned(X.T[::-1], X[::-1].T[::-1])[::-1].T,), {"reverse": True}),
        Example((CUBE, CUBE + 1), (np.stack([_scanned(c, c + 1) for c in CUBE]),), {"axis": 1}),
        Example((X[:0], X[:0]), (X[:0],), {"axis": 0}),
    ]
)


# --- products --------------------------------------------------------------------------------------------------


@op
def cumprod(xp, x, *, axis: int = -1, exclusive: bool = False, reverse: bool = False):
    """``out[i] = x[0] * ... * x[i]`` along `axis`, `exclusive` and `reverse` as with `cumsum`.

    Nothing is divided, forwards or backwards: zeros are no exception.
    """
    return _running(xp, x, axis, lambda v: xp.cumprod(v, axis=0, dtype=x.dtype), 1, exclusive, reverse)


cumprod.infer(_along)


@cumprod.vjp
def cumprod_vjp(ct, out, x, *, axis, exclusive, reverse):
    # of element j: what stands before it, times the sum of ct[t] times all between j and t, over the t it is part of
    ahead = 1 if reverse else -1
    move = lookup("shift")
    before = out if exclusive else lookup("cumprod")(x, axis=axis, exclusive=True, reverse=reverse)
    factors = x if exclusive else move(x, axis=axis, steps=ahead)
    after = lookup("linear_scan")(factors, ct, axis=axis, reverse=not reverse)
    return before * (move(after, axis=axis, steps=ahead) if exclusive else after)


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
    """``log(cumsum(exp(x)))`` along `axis`, without overflow.

    It is -inf as long as only -inf has come; the gradient of elements that are -inf is 0.
    """
    moved = xp.moveaxis(x, axis, 0)
    out, step = moved.copy(), 1
    while step < len(out):
        out[step:] = xp.logaddexp(out[step:], out[:-step])
        step *= 2
    return xp.moveaxis(out, 0, axis)


@logcumsumexp.infer
def logcumsumexp_infer(x, *, axis):
    if not x.is_float:
        raise ProgramError(f"needs a floating-point input, not {x}", "dtype_mismatch")
    return _along(x, axis=axis)


@logcumsumexp.vjp
def logcumsumexp_vjp(ct, out, x, *, axis):
    # d out[t] / d x[j] = exp(x[j] - out[t]): share of j when it came, times how all shares shrank since. Each factor
    # is an exponential of at most 0; where the sum was still 0, which exp would not stand, shares are 0.
    where, exp, move = lookup("where"), lookup("exp"), lookup("shift")
    zero = lookup("fill_zeros_like")(out)
    some = lookup("isfinite")(out)
    share = exp(x - where(some, out, zero))
    following = move(where(some, out - move(where(some, out, zero), axis=axis), zero), axis=axis, steps=-1)
    growth = where(some, following, zero)
    return share * lookup("linear_scan")(exp(-growth), ct, axis=axis, reverse=True)


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
    """The position, int64, of the largest (or smallest) element so far along `axis`; of equal ones the first.

    From the first NaN on it is the position of that.
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
    """``out[i] = max(x[0], ..., x[i])`` along `axis`, and where it stands. Of equal ones the first has the gradient."""
    index = lookup("running_argmax")(x, axis=axis)
    return lookup("take_along_axis")(x, index, axis=axis), index


@composite(outputs=("out", "index"))
def cummin(x, *, axis: int = -1):
    """``out[i] = min(x[0], ..., x[i])`` along `axis`, and where it stands. Of equal ones the first has the gradient."""
    index = lookup("running_argmax")(x, axis=axis, sign="min")
    return lookup("take_along_axis")(x, index, axis=axis), index


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
