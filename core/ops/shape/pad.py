"""Padding: constant, reflected, replicated or circular."""

from __future__ import annotations

from typing import Literal

import numpy as np

from core.ir import TensorType
from core.ir.attr_values import Extended
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.ranges import Size
from core.ops.common.types import axis_of
from core.ops.indexing.gather import gather, slice_
from core.ops.shape.broadcast import expand
from core.ops.shape.concat_split import concat
from core.ops.shape.creation import check_fits

__all__ = ["bordered"]

Border = Literal["reflect", "replicate", "circular"]

X = np.arange(6.0).reshape(2, 3)
EMPTY = X[:0]


@op
def pad_constant(xp, x, *, paddings: tuple[Size, ...], value: Extended = 0.0):
    """x with a border of `value`: ``out[before + i] = x[i]`` along each axis.

    - `paddings`: for each axis the number of elements before and after it.
    """
    pairs = tuple(zip(paddings[::2], paddings[1::2], strict=True))
    return xp.pad(x, pairs, constant_values=x.dtype.type(value)) if pairs else x


@pad_constant.infer
def pad_constant_infer(x, *, paddings, value):
    _check_paddings(x, paddings)
    check_fits(value, x.dtype)
    sizes = zip(x.shape, paddings[::2], paddings[1::2], strict=True)
    return TensorType(tuple(-1 if n == -1 else n + a + b for n, a, b in sizes), x.dtype)


def _check_paddings(x: TensorType, paddings: tuple[int, ...]) -> None:
    if len(paddings) != 2 * x.rank:
        raise ProgramError(f"paddings of {x} must be {2 * x.rank} sizes, not {list(paddings)}", "bad_attr")


@pad_constant.vjp
def pad_constant_vjp(ct, out, x, *, paddings, value):
    axes = tuple(range(x.rank))
    ends = tuple(-after if after else 2**31 for after in paddings[1::2])
    return slice_(ct, axes=axes, starts=paddings[::2], ends=ends)


pad_constant.example(
    lambda: [
        Example((X,), (np.pad(X, ((1, 0), (0, 2)), constant_values=7.0),), {"paddings": (1, 0, 0, 2), "value": 7.0}),
        Example((X[0],), (np.pad(X[0], (2, 1)),), {"paddings": (2, 1)}),
        Example((X[:0],), (np.zeros((1, X.shape[1])),), {"paddings": (1, 0, 0, 0)}),
    ]
)


@op(no_gradient="its result is an integer")
def border_positions(xp, x, *, axis: int, before: Size, after: Size, mode: Border):
    """Position along `axis` of x of each element of the padded axis, as int64. x gives only its shape."""
    n = x.shape[axis]
    _check_border(n, before, after, mode, f"axis {axis}")
    at = xp.arange(-before, n + after, dtype="int64")
    if mode == "replicate":
        return xp.clip(at, 0, n - 1)
    if mode == "circular":
        return at % n if n else at
    period = max(2 * n - 2, 1)
    return n - 1 - abs(n - 1 - at % period)


def _check_border(n: int, before: int, after: int, mode: str, what: str) -> None:
    """Raises ProgramError (shape_mismatch) if an axis of `n` elements is too short for this padding mode."""
    if max(before, after) > 0 and (n == 0 or (mode == "reflect" and n == 1)):
        raise ProgramError(f"{what} of size {n} is too short to pad in mode {mode}", "shape_mismatch")


@border_positions.infer
def border_positions_infer(x, *, axis, before, after, mode):
    n = x.shape[axis_of(axis, x.rank)]
    _check_border(n, before, after, mode, f"axis {axis} of {x}")
    return TensorType((-1 if n == -1 else n + before + after,), "int64")


border_positions.example(
    lambda: [
        Example(
            (np.zeros(3),), (np.array([2, 1, 0, 1, 2, 1]),), {"axis": 0, "before": 2, "after": 1, "mode": "reflect"}
        ),
        Example((np.zeros(3),), (np.array([0, 0, 1, 2]),), {"axis": 0, "before": 1, "after": 0, "mode": "replicate"}),
        Example((X,), (np.array([1, 0, 1, 0, 1, 0]),), {"axis": 0, "before": 3, "after": 1, "mode": "reflect"}),
        Example((X,), (np.array([1, 2, 0, 1, 2]),), {"axis": -1, "before": 2, "after": 0, "mode": "circular"}),
        Example((EMPTY,), (np.zeros(0, int),), {"axis": 0, "before": 0, "after": 0, "mode": "reflect"}),
    ]
)


@composite
def pad(
    x,
    *,
    paddings: tuple[Size, ...],
    value: Extended = 0.0,
    mode: Literal["constant", "reflect", "replicate", "circular"] = "constant",
):
    """x with a border around it: ``out[before + i] = x[i]`` along each axis.

    - `paddings`: for each axis the number of elements before and after it.
    - `mode`: content of the border. `constant`: `value`. `reflect`: x mirrored at its first and last element.
      `replicate`: copies of the first and last element. `circular`: x repeated.

    The gradient of a border element is added to the gradient of the element it copies.
    """
    if mode == "constant":
        return pad_constant(x, paddings=paddings, value=value)
    _check_paddings(x.type, paddings)
    for axis, (before, after) in enumerate(zip(paddings[::2], paddings[1::2], strict=True)):
        x = bordered(x, axis, before, after, mode)
    return x


def bordered(x, axis: int, before: int, after: int, mode: Border):
    """x with a border along one axis. Slices of it where they suffice, which are read in order."""
    if not (before or after):
        return x
    size = x.shape[axis]
    most = {"replicate": 2**31, "reflect": size - 1, "circular": size}[mode]
    if size < 1 or max(before, after) > most:
        return gather(x, border_positions(x, axis=axis, before=before, after=after, mode=mode), axis=axis)

    def part(start: int, end: int):
        return slice_(x, axes=(axis,), starts=(start,), ends=(end,))

    def copies(at: int, count: int):
        return expand(part(at, at + 1), shape=tuple(count if i == axis else -1 for i in range(x.rank)))

    def mirrored(start: int, end: int):
        return slice_(x, axes=(axis,), starts=(end - 1,), ends=(start - 1 if start else -(2**62),), steps=(-1,))

    match mode:
        case "replicate":
            first, last = copies(0, before), copies(size - 1, after)
        case "reflect":
            first, last = mirrored(1, before + 1), mirrored(size - 1 - after, size - 1)
        case "circular":
            first, last = part(size - before, size), part(0, after)
    return concat(*([first] if before else []), x, *([last] if after else []), axis=axis)


pad.example(
    lambda: [
        Example((X,), (np.pad(X, ((1, 0), (0, 2)), constant_values=7.0),), {"paddings": (1, 0, 0, 2), "value": 7.0}),
        Example((X,), (np.pad(X, ((1, 1), (2, 0)), mode="edge"),), {"paddings": (1, 1, 2, 0), "mode": "replicate"}),
        Example((X,), (np.pad(X, ((1, 1), (0, 2)), mode="wrap"),), {"paddings": (1, 1, 0, 2), "mode": "circular"}),
        Example((X[0],), (np.pad(X[0], (1, 1), mode="reflect"),), {"paddings": (1, 1), "mode": "reflect"}),
        Example((X,), (np.pad(X, ((3, 1), (1, 4)), mode="reflect"),), {"paddings": (3, 1, 1, 4), "mode": "reflect"}),
        Example(
            (EMPTY,), (np.pad(EMPTY, ((0, 0), (1, 1)), mode="edge"),), {"paddings": (0, 0, 1, 1), "mode": "replicate"}
        ),
    ]
)
