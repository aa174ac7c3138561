"""Ops whose sizes or positions are operands, so that the run can compute them."""

from __future__ import annotations

import math

import numpy as np

from core.ir import FLOATS, INTEGERS, TensorType
from core.ir.attr_values import Extended
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Dtype, Example, op
from core.ops.common.ranges import OpenSize
from core.ops.common.types import as_dtype, axis_of, product, same_dtype, same_size
from core.ops.shape.broadcast import sum_to_like
from core.ops.shape.creation import check_count, check_fits
from core.ops.shape.reshape import reshape_to

__all__: list[str] = []

X = np.arange(6.0).reshape(2, 3)
CUBE = np.arange(8.0).reshape(2, 2, 2) - 3


def _check_vector(sizes: TensorType, count: int, what: str) -> None:
    if sizes.dtype != "int64" or sizes.rank != 1 or sizes.shape[0] not in (-1, count):
        raise ProgramError(f"{what} must be int64[{count}], not {sizes}", "shape_mismatch")


def _checked(shape: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """`shape`, if it has the known sizes of `wanted`. Raises ExecutionError (shape_mismatch)."""
    if len(shape) != len(wanted) or any(n not in (-1, m) for m, n in zip(shape, wanted, strict=True)):
        raise ExecutionError(f"the sizes are {list(shape)}, not {list(wanted)}", "shape_mismatch")
    return shape


def _sizes(xp, sizes) -> tuple[int, ...]:
    return tuple(int(n) for n in (sizes.tolist() if hasattr(sizes, "tolist") else sizes))


@op
def dynamic_reshape(xp, x, sizes, *, shape: tuple[OpenSize, ...]):
    """x with the shape in `sizes`, int64 [rank]; the elements keep their row-major order. One size may be -1 and is
    computed from the others.

    - `shape`: the sizes known before the run, -1 for the others.
    """
    wanted = list(_sizes(xp, sizes))
    rest = math.prod(n for n in wanted if n != -1)
    if wanted.count(-1) == 1 and rest and x.size % rest == 0:
        wanted[wanted.index(-1)] = x.size // rest
    if min(wanted, default=0) < 0 or math.prod(wanted) != x.size:
        raise ExecutionError(f"cannot reshape {list(x.shape)} to {list(wanted)}", "shape_mismatch")
    return x.reshape(_checked(tuple(wanted), shape))


@dynamic_reshape.infer
def dynamic_reshape_infer(x, sizes, *, shape):
    _check_vector(sizes, len(shape), "the sizes")
    m, n = product(x.shape), product(shape)
    if m != n and -1 not in (m, n):
        raise ProgramError(f"cannot reshape {x} to {list(shape)}: {m} elements, not {n}", "shape_mismatch")
    return TensorType(shape, x.dtype)


dynamic_reshape.vjp(lambda ct, out, x, sizes, *, shape: (reshape_to(ct, x), None))
dynamic_reshape.example(
    lambda: [
        Example((X, np.array([3, 2])), (X.reshape(3, 2),), {"shape": (3, -1)}),
        Example((X, np.array([-1, 1, 6])), (X.reshape(1, 1, 6),), {"shape": (-1, -1, -1)}),
        Example((X[0, 0], np.array([1])), (np.zeros(1),), {"shape": (-1,)}),
        Example((X[:0], np.array([4, 0])), (np.zeros((4, 0)),), {"shape": (4, -1)}),
    ]
)


@op
def dynamic_expand(xp, x, sizes, *, shape: tuple[OpenSize, ...]):
    """x broadcast with the shape in `sizes`, int64 [rank]: a size of 1 keeps the size of x.

    - `shape`: the sizes of the result known before the run, -1 for the others.
    """
    wanted = _sizes(xp, sizes)
    own = (1,) * (len(wanted) - x.ndim) + x.shape
    if any(m not in (1, n) and n != 1 for m, n in zip(own, wanted, strict=True)) or min(wanted, default=0) < 0:
        raise ExecutionError(f"cannot broadcast {list(x.shape)} with {list(wanted)}", "shape_mismatch")
    found = _checked(tuple(m if n == 1 else n for m, n in zip(own, wanted, strict=True)), shape)
    check_count(math.prod(found), "the result")
    return xp.broadcast_to(x, found)


@dynamic_expand.infer
def dynamic_expand_infer(x, sizes, *, shape):
    _check_vector(sizes, len(shape), "the sizes")
    if len(shape) < x.rank:
        raise ProgramError(f"cannot expand {x} to {list(shape)}: it has more axes", "shape_mismatch")
    if any(m not in (-1, 1) and n not in (-1, m) for m, n in zip(x.shape[::-1], shape[::-1], strict=False)):
        raise ProgramError(f"cannot expand {x} to {list(shape)}", "shape_mismatch")
    return TensorType(shape, x.dtype)


dynamic_expand.vjp(lambda ct, out, x, sizes, *, shape: (sum_to_like(ct, x), None))
dynamic_expand.example(
    lambda: [
        Example((X[:1], np.array([4, 1])), (np.broadcast_to(X[:1], (4, 3)),), {"shape": (-1, 3)}),
        Example((X[0], np.array([2, 2, 3])), (np.broadcast_to(X[0], (2, 2, 3)),), {"shape": (-1, -1, -1)}),
        Example((X[0, 1], np.array([2])), (np.ones(2),), {"shape": (-1,)}),
        Example((X[:1], np.array([0, 3])), (X[:0],), {"shape": (-1, 3)}),
    ]
)


@op(no_gradient="its result is a constant")
def dynamic_fill(xp, sizes, *, shape: tuple[OpenSize, ...], value: Extended = 0.0, dtype: Dtype = "float32"):
    """Array of the shape in `sizes`, int64 [rank], with `value` in every element.

    - `shape`: the sizes known before the run, -1 for the others.
    """
    wanted = _sizes(xp, sizes)
    if min(wanted, default=0) < 0:
        raise ExecutionError(f"the sizes {list(wanted)} must not be negative", "shape_mismatch")
    check_count(math.prod(wanted), "the result")
    return xp.full(_checked(wanted, shape), value, dtype=as_dtype(dtype))


@dynamic_fill.infer
def dynamic_fill_infer(sizes, *, shape, value, dtype):
    _check_vector(sizes, len(shape), "the sizes")
    check_fits(value, dtype)
    return TensorType(shape, dtype)


dynamic_fill.example(
    lambda: [
        Example((np.array([2, 3]),), (np.full((2, 3), 1.5),), {"shape": (-1, 3), "value": 1.5, "dtype": "float64"}),
        Example((np.zeros(0, "int64"),), (np.zeros((), "int64"),), {"shape": (), "dtype": "int64"}),
    ]
)


@op(no_gradient="its operands are the ends of a range")
def dynamic_range(xp, start, end, step):
    """Vector of equally spaced numbers ``start, start + step, ...``, excluding `end`: three scalars of one dtype."""
    first, last, by = (np.asarray(each.get() if hasattr(each, "get") else each) for each in (start, end, step))
    if by == 0:
        raise ExecutionError("the step of a range must not be 0", "division_by_zero")
    length = np.ceil((last.astype("float64") - first.astype("float64")) / by.astype("float64"))
    if not np.isfinite(length):
        raise ExecutionError("the ends of a range must be finite", "too_large")
    check_count(max(int(length), 0), "the range")
    numbers = xp.arange(max(int(length), 0)).astype(start.dtype)
    return (start + numbers * step).astype(start.dtype)


@dynamic_range.infer
def dynamic_range_infer(start, end, step):
    dtype = same_dtype(start, end, step)
    if dtype not in FLOATS + INTEGERS or start.rank or end.rank or step.rank:
        raise ProgramError(f"a range needs three scalars, not {start}, {end} and {step}", "shape_mismatch")
    return TensorType((-1,), dtype)


dynamic_range.example(
    lambda: [
        Example((np.array(2), np.array(7), np.array(2)), (np.array([2, 4, 6]),)),
        Example((np.array(1.0), np.array(-1.0), np.array(-0.5)), (np.array([1.0, 0.5, 0.0, -0.5]),)),
        Example((np.array(2), np.array(2), np.array(1)), (np.zeros(0, "int64"),)),
    ]
)


# --- slices ----------------------------------------------------------------------------------------------------


def _parts(xp, sizes: tuple[int, ...], axes: tuple[int, ...], starts, ends, steps) -> tuple[slice, ...]:
    """One slice for each axis. Ends beyond an axis are clamped, negative positions count from the end."""
    found = [slice(None)] * len(sizes)
    places = [_sizes(xp, each) for each in (starts, ends, steps)]
    for axis, start, end, step in zip(axes, *places, strict=True):
        if step == 0:
            raise ExecutionError("a step must not be 0", "division_by_zero")
        n = sizes[axis]
        start = min(max(start + n if start < 0 else start, 0), n if step > 0 else n - 1)
        end = end + n if end < 0 else end
        end = min(max(end, 0 if step > 0 else -1), n)
        found[axis] = slice(start, None if end < 0 else end, step) if n else slice(0, 0, 1)
    return tuple(found)


def _sliced(x: TensorType, starts: TensorType, ends: TensorType, steps: TensorType, axes, shape) -> TensorType:
    places = [axis_of(a, x.rank) for a in axes]
    if len(set(places)) < len(places):
        raise ProgramError(f"axes must differ, not {list(axes)}", "bad_attr")
    for vector, what in ((starts, "starts"), (ends, "ends"), (steps, "steps")):
        _check_vector(vector, len(axes), what)
    if len(shape) != x.rank:
        raise ProgramError(f"the shape {list(shape)} does not have the rank of {x}", "bad_attr")
    sizes = [
        n if i in places else same_size(m, n, "the shape differs from x outside of the axes")
        for i, (m, n) in enumerate(zip(x.shape, shape, strict=True))
    ]
    if any(x.shape[i] != -1 and shape[i] > x.shape[i] for i in places):
        raise ProgramError(f"a slice of {x} cannot have the shape {list(shape)}", "shape_mismatch")
    return TensorType(tuple(sizes), x.dtype)


@op
def dynamic_slice(xp, x, starts, ends, steps, *, axes: tuple[int, ...], shape: tuple[OpenSize, ...]):
    """``x[start:end:step]`` along each of `axes`, with starts, ends and steps as operands, int64 [axes].

    A negative position counts from the end, and a position beyond an end of the axis is moved to that end.

    - `shape`: the sizes of the result known before the run, -1 for the others.
    """
    out = x[_parts(xp, x.shape, tuple(a % x.ndim for a in axes), starts, ends, steps)]
    _checked(out.shape, shape)
    return out


@dynamic_slice.infer
def dynamic_slice_infer(x, starts, ends, steps, *, axes, shape):
    return _sliced(x, starts, ends, steps, axes, shape)


dynamic_slice.vjp(
    lambda ct, out, x, starts, ends, steps, *, axes, shape: (
        dynamic_slice_into(ct, x, starts, ends, steps, axes=axes),
        None,
        None,
        None,
    )
)


def _along(*place: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([n]) for n in place)


_AT = (np.array([1, 0]), np.array([9, 4]), np.array([1, 2]))
dynamic_slice.example(
    lambda: [
        Example((X, *_AT), (X[1:, ::2],), {"axes": (0, 1), "shape": (-1, -1)}),
        Example((X, *_along(-1, -9, -2)), (X[:, ::-2],), {"axes": (1,), "shape": (2, -1)}),
        Example((X[0], *_along(1, 3, 1)), (X[0, 1:],), {"axes": (0,), "shape": (-1,)}),
        Example((CUBE, *_along(-2, 9, 1)), (CUBE,), {"axes": (-1,), "shape": (2, 2, 2)}),
        Example((X, *_along(2, 2, 1)), (X[:, :0],), {"axes": (1,), "shape": (2, -1)}),
        Example((X[:0], *_along(0, -1, 1)), (X[:0],), {"axes": (0,), "shape": (-1, 3)}),
    ]
)


@op
def dynamic_slice_into(xp, x, like, starts, ends, steps, *, axes: tuple[int, ...]):
    """Zeros shaped like `like`, with x at the positions that `dynamic_slice` reads: ``dynamic_slice(out) = x``."""
    out = xp.zeros(like.shape, x.dtype)
    part = _parts(xp, like.shape, tuple(a % like.ndim for a in axes), starts, ends, steps)
    if out[part].shape != x.shape:
        raise ExecutionError(f"the slice has the shape {list(out[part].shape)}, not {list(x.shape)}", "shape_mismatch")
    out[part] = x
    return out


@dynamic_slice_into.infer
def dynamic_slice_into_infer(x, like, starts, ends, steps, *, axes):
    _sliced(TensorType(like.shape, x.dtype), starts, ends, steps, axes, x.shape)
    return TensorType(like.shape, x.dtype)


dynamic_slice_into.vjp(
    lambda ct, out, x, like, starts, ends, steps, *, axes: (
        dynamic_slice(ct, starts, ends, steps, axes=axes, shape=x.shape),
        None,
        None,
        None,
        None,
    )
)


dynamic_slice_into.example(
    lambda: [
        Example((np.ones((1, 2)), X, *_AT), (np.array([[0.0, 0, 0], [1, 0, 1]]),), {"axes": (0, 1)}),
        Example((np.array([1.0, 2]), X[0], *_along(1, 3, 1)), (np.array([0.0, 1, 2]),), {"axes": (0,)}),
        Example((CUBE, CUBE, *_along(1, -9, -1)), (CUBE[:, :, ::-1],), {"axes": (2,)}),
        Example((X[:, :0], X, *_along(2, 2, 1)), (0 * X,), {"axes": (1,)}),
    ]
)
