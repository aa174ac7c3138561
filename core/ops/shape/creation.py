"""Ops that make arrays from constants or from another array's shape."""

from __future__ import annotations

import math

import numpy as np

from core.ir import FLOATS, StackType, TensorType, Type
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Dtype, Example, Extended, composite, op
from core.ops.common.types import as_dtype, product

__all__ = ["LARGEST", "check_count", "check_fits"]

LARGEST = 2**31
"""The most elements of an array whose size only a run can tell."""

_CONSTANT = "its result is a constant"


def check_count(count: int, what: str) -> None:
    """Raises ExecutionError (too_large) if an array of `count` elements is more than a run may make."""
    if count > LARGEST:
        raise ExecutionError(f"{what} would give {count} elements, more than {LARGEST}", "too_large")


@op(no_gradient=_CONSTANT)
def fill_constant(xp, *, shape: tuple[int, ...] = (), value: Extended = 0.0, dtype: Dtype = "float32"):
    """``out[...] = value``: an array of `shape` holding it everywhere."""
    return xp.full(shape, value, dtype=as_dtype(dtype))


@fill_constant.infer
def fill_constant_infer(*, shape, value, dtype):
    if any(n < 0 for n in shape):
        raise ProgramError(f"a constant needs known sizes, not {list(shape)}", "bad_attr")
    check_fits(value, dtype)
    return TensorType(shape, dtype)


def check_fits(value: float, dtype: str) -> None:
    """Raises ProgramError (bad_attr) if `value` is no number of that dtype."""
    kind = as_dtype(dtype).kind
    if kind in "iu":
        info = np.iinfo(dtype)
        if not (float(value).is_integer() and info.min <= value <= info.max):
            raise ProgramError(f"{value} is no {dtype}", "bad_attr")
    elif kind == "b" and value not in (0, 1):
        raise ProgramError(f"{value} is no bool: use 0 or 1", "bad_attr")


fill_constant.example(
    lambda: [Example((), (np.full((2, 3), 1.5),), {"shape": (2, 3), "value": 1.5, "dtype": "float64"})]
)


@op(stacks=True, no_gradient=_CONSTANT)
def fill_zeros_like(xp, x):
    """``out[...] = 0``, in the shape and dtype of x (of what a loop recorded: of each element)."""
    if isinstance(x, list):
        return [None if each is None else fill_zeros_like.body(xp, each) for each in x]
    return xp.zeros(x.shape, x.dtype)


fill_zeros_like.infer(lambda x: x)
fill_zeros_like.example(lambda: [Example((np.ones((2, 3)),), (np.zeros((2, 3)),))])


@op(no_gradient=_CONSTANT)
def full_like(xp, x, *, value: Extended):
    """``out[...] = value``, in the shape and dtype of x."""
    return xp.full(x.shape, value, dtype=x.dtype)


@full_like.infer
def full_like_infer(x, *, value):
    check_fits(value, x.dtype)
    return x


full_like.example(lambda: [Example((np.ones((2, 3)),), (np.full((2, 3), 7.0),), {"value": 7.0})])


@op(no_gradient=_CONSTANT)
def empty_stack(xp, *, depth: int = 1, shape: tuple[int, ...] = (), dtype: Dtype = "float32"):
    """What a loop that never ran recorded: a stack (`depth` times nested) of no arrays of that shape."""
    return []


@empty_stack.infer
def empty_stack_infer(*, depth, shape, dtype):
    if not 1 <= depth <= 1000:
        raise ProgramError(f"depth {depth} is not within 1 to 1000", "bad_attr")
    out: Type = TensorType(shape, dtype)
    for _ in range(depth):
        out = StackType(out)
    return out


empty_stack.example(lambda: [Example((), ([],), {"shape": (2,)})])


# --- sequences and shapes --------------------------------------------------------------------------------------


@composite(no_gradient=_CONSTANT)
def zeros_like(x):
    """Zeros of the shape and dtype of x; another name for `fill_zeros_like`."""
    return fill_zeros_like(x)


@composite(no_gradient=_CONSTANT)
def ones_like(x):
    """``out[...] = 1``, in the shape and dtype of x."""
    return full_like(x, value=1.0)


zeros_like.example(lambda: [Example((np.ones((2, 3)),), (np.zeros((2, 3)),))])
ones_like.example(lambda: [Example((np.zeros((2, 3)),), (np.ones((2, 3)),))])


@op(no_gradient=_CONSTANT)
def assign_value(xp, *, values: tuple[float, ...], shape: tuple[int, ...], dtype: Dtype = "float32"):
    """A constant array that holds `values` in row-major order."""
    return xp.asarray(np.asarray(values).astype(as_dtype(dtype)).reshape(shape))


@assign_value.infer
def assign_value_infer(*, values, shape, dtype):
    if any(n < 0 for n in shape) or product(shape) != len(values):
        raise ProgramError(f"{len(values)} values do not fill {list(shape)}", "shape_mismatch")
    for value in values:
        check_fits(value, dtype)
    return TensorType(shape, dtype)


assign_value.example(
    lambda: [
        Example((), (np.array([[1, 2], [3, 4]]),), {"values": (1.0, 2.0, 3.0, 4.0), "shape": (2, 2), "dtype": "int64"}),
        Example((), (np.array(0.5, "float32"),), {"values": (0.5,), "shape": ()}),
    ]
)


@op(no_gradient=_CONSTANT)
def eye(xp, *, num_rows: int, num_columns: int | None = None, dtype: Dtype = "float32"):
    """``out[i, j] = 1`` where ``i == j``, else 0: a matrix, square if `num_columns` is left out."""
    return xp.eye(num_rows, num_columns, dtype=as_dtype(dtype))


@eye.infer
def eye_infer(*, num_rows, num_columns, dtype):
    shape = (num_rows, num_rows if num_columns is None else num_columns)
    if min(shape) < 0:
        raise ProgramError(f"sizes are at least 0, not {list(shape)}", "bad_attr")
    return TensorType(shape, dtype)


eye.example(
    lambda: [
        Example((), (np.eye(2, dtype="float32"),), {"num_rows": 2}),
        Example((), (np.eye(2, 3, dtype=int),), {"num_rows": 2, "num_columns": 3, "dtype": "int64"}),
    ]
)


def _range_length(start: float, end: float, step: float) -> int:
    if step == 0 or not all(map(math.isfinite, (start, end, step))):
        raise ProgramError(f"there is no range from {start} to {end} by {step}", "bad_attr")
    length = math.ceil((end - start) / step) if abs((end - start) / step) < 2**62 else 2**62
    return max(length, 0)


@op(no_gradient=_CONSTANT)
def range_(xp, *, start: float = 0.0, end: float, step: float = 1.0, dtype: Dtype = "int64"):
    """``start, start + step, start + 2 step, ...`` up to but without `end`."""
    return (start + xp.arange(_range_length(start, end, step)) * step).astype(as_dtype(dtype))


@range_.infer
def range_infer(*, start, end, step, dtype):
    length = _range_length(start, end, step)
    for value in (start, start + step, start + (length - 1) * step)[:length]:
        check_fits(value, dtype)
    return TensorType((length,), dtype)


range_.example(
    lambda: [
        Example((), (np.arange(3),), {"end": 3.0}),
        Example((), (np.array([1.0, 0.5, 0.0, -0.5]),), {"start": 1.0, "end": -0.75, "step": -0.5, "dtype": "float64"}),
        Example((), (np.arange(0),), {"end": -1.0}),
    ]
)


@op(no_gradient=_CONSTANT)
def linspace(xp, *, start: float, stop: float, num: int, dtype: Dtype = "float32"):
    """``out[i] = start + i * (stop - start) / (num - 1)``: `num` numbers, both ends included."""
    return xp.linspace(start, stop, num).astype(as_dtype(dtype))


@linspace.infer
def linspace_infer(*, start, stop, num, dtype):
    if num < 0 or dtype not in FLOATS or not (math.isfinite(start) and math.isfinite(stop)):
        raise ProgramError("linspace takes finite ends, at least 0 numbers, and a float dtype", "bad_attr")
    return TensorType((num,), dtype)


linspace.example(
    lambda: [
        Example((), (np.linspace(0, 1, 5),), {"start": 0.0, "stop": 1.0, "num": 5, "dtype": "float64"}),
        Example((), (np.array([2.0], "float32"),), {"start": 2.0, "stop": 9.0, "num": 1}),
    ]
)

_SHAPE = "its result is an integer"


@op(no_gradient=_SHAPE)
def shape(xp, x):
    """The sizes of the axes of x, as int64 [rank]."""
    return xp.asarray(x.shape, dtype="int64")


shape.infer(lambda x: TensorType((x.rank,), "int64"))
shape.example(lambda: [Example((np.ones((2, 3)),), (np.array([2, 3]),)), Example((np.ones(()),), (np.zeros(0, int),))])


@op(no_gradient=_SHAPE)
def size(xp, x):
    """The number of elements of x, as int64."""
    return xp.asarray(x.size, dtype="int64")


size.infer(lambda x: TensorType((), "int64"))
size.example(lambda: [Example((np.ones((2, 3)),), (np.array(6),)), Example((np.ones((2, 0)),), (np.array(0),))])


@composite(no_gradient=_SHAPE)
def numel(x):
    """The number of elements of x, as int64; another name for `size`."""
    return size(x)


numel.example(lambda: [Example((np.ones((2, 3)),), (np.array(6),)), Example((np.ones(()),), (np.array(1),))])


@op(no_gradient=_SHAPE)
def rank(xp, x):
    """The number of axes of x, as int64."""
    return xp.asarray(x.ndim, dtype="int64")


rank.infer(lambda x: TensorType((), "int64"))
rank.example(lambda: [Example((np.ones((2, 3)),), (np.array(2),))])


@op(no_gradient=_CONSTANT)
def fill_constant_batch_size_like(
    xp,
    x,
    *,
    shape: tuple[int, ...],
    value: Extended = 0.0,
    dtype: Dtype = "float32",
    input_dim: int = 0,
    output_dim: int = 0,
):
    """An array of `shape` holding `value`, but with the size of axis `input_dim` of x as its axis `output_dim`."""
    sizes = list(shape)
    sizes[output_dim] = x.shape[input_dim]
    check_count(math.prod(sizes), f"the shape {sizes}")
    return xp.full(tuple(sizes), value, dtype=as_dtype(dtype))


@fill_constant_batch_size_like.infer
def fill_constant_batch_size_like_infer(x, *, shape, value, dtype, input_dim, output_dim):
    if not (0 <= output_dim < len(shape) and 0 <= input_dim < x.rank):
        raise ProgramError(f"there is no axis {input_dim} of {x}, or {output_dim} of {list(shape)}", "bad_attr")
    sizes = (*shape[:output_dim], x.shape[input_dim], *shape[output_dim + 1 :])
    if any(n < 0 for i, n in enumerate(sizes) if i != output_dim):
        raise ProgramError(f"all other sizes must be known, not {list(shape)}", "bad_attr")
    check_fits(value, dtype)
    return TensorType(sizes, dtype)


fill_constant_batch_size_like.example(
    lambda: [Example((np.ones((4, 3)),), (np.full((4, 2), 1.5),), {"shape": (-1, 2), "value": 1.5, "dtype": "float64"})]
)
