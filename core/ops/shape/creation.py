"""Constant arrays, and arrays made from the shape of another array."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np

from core.ir import FLOATS, StackType, TensorType, Type
from core.ir.attr_values import Extended
from core.ir.bounds import Bounds
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Dtype, Example, composite, op
from core.ops.common.ranges import Nonzero, OpenSize, Size
from core.ops.common.types import as_dtype, product

__all__ = ["LARGEST", "check_count", "check_fits"]

LARGEST = 2**31
"""Most elements of an array whose size is known only during the run."""

_CONSTANT = "its result is a constant"


def check_count(count: int, what: str) -> None:
    """Raises ExecutionError (too_large) if `what`, an array of `count` elements, exceeds LARGEST."""
    if count > LARGEST:
        raise ExecutionError(f"{what} would have {count} elements, more than the limit of {LARGEST}", "too_large")


@op(no_gradient=_CONSTANT)
def fill_constant(xp, *, shape: tuple[Size, ...] = (), value: Extended = 0.0, dtype: Dtype = "float32"):
    """Array of `shape` with `value` in every element: ``out[...] = value``."""
    return xp.full(shape, value, dtype=as_dtype(dtype))


@fill_constant.infer
def fill_constant_infer(*, shape, value, dtype):
    check_fits(value, dtype)
    return TensorType(shape, dtype)


def check_fits(value: float, dtype: str) -> None:
    """Raises ProgramError (bad_attr) if `value` is not a value of `dtype`."""
    kind = as_dtype(dtype).kind
    if kind in "iu":
        info = np.iinfo(dtype)
        if not (float(value).is_integer() and info.min <= value <= info.max):
            raise ProgramError(f"{value} is not a value of dtype {dtype}", "bad_attr")
    elif kind == "b" and value not in (0, 1):
        raise ProgramError(f"{value} is not a bool: use 0 or 1", "bad_attr")


fill_constant.example(
    lambda: [Example((), (np.full((2, 3), 1.5),), {"shape": (2, 3), "value": 1.5, "dtype": "float64"})]
)


@op(stacks=True, no_gradient=_CONSTANT)
def fill_zeros_like(xp, x):
    """Zeros with the shape and dtype of x: ``out[...] = 0``. For a stack, zeros for each of its elements."""
    if isinstance(x, list):
        return [None if each is None else fill_zeros_like.body(xp, each) for each in x]
    return xp.zeros(x.shape, x.dtype)


fill_zeros_like.infer(lambda x: x)
fill_zeros_like.example(lambda: [Example((np.ones((2, 3)),), (np.zeros((2, 3)),))])


@op(no_gradient=_CONSTANT)
def full_like(xp, x, *, value: Extended):
    """`value` in every element, with the shape and dtype of x: ``out[...] = value``."""
    return xp.full(x.shape, value, dtype=x.dtype)


@full_like.infer
def full_like_infer(x, *, value):
    check_fits(value, x.dtype)
    return x


full_like.example(lambda: [Example((np.ones((2, 3)),), (np.full((2, 3), 7.0),), {"value": 7.0})])


@op(no_gradient=_CONSTANT)
def empty_stack(
    xp, *, depth: Annotated[int, Bounds(ge=1, le=1000)] = 1, shape: tuple[int, ...] = (), dtype: Dtype = "float32"
):
    """Empty stack, nested `depth` times, of arrays of `shape`: the record of a loop that never ran."""
    return []


@empty_stack.infer
def empty_stack_infer(*, depth, shape, dtype):
    out: Type = TensorType(shape, dtype)
    for _ in range(depth):
        out = StackType(out)
    return out


empty_stack.example(lambda: [Example((), ([],), {"shape": (2,)})])


# --- sequences and shapes --------------------------------------------------------------------------------------


@composite(no_gradient=_CONSTANT)
def zeros_like(x):
    """Zeros with the shape and dtype of x. Another name for `fill_zeros_like`."""
    return fill_zeros_like(x)


@composite(no_gradient=_CONSTANT)
def ones_like(x):
    """Ones with the shape and dtype of x: ``out[...] = 1``."""
    return full_like(x, value=1.0)


zeros_like.example(lambda: [Example((np.ones((2, 3)),), (np.zeros((2, 3)),))])
ones_like.example(lambda: [Example((np.zeros((2, 3)),), (np.ones((2, 3)),))])


@op(no_gradient=_CONSTANT)
def assign_value(xp, *, values: tuple[float, ...], shape: tuple[Size, ...], dtype: Dtype = "float32"):
    """Constant array of `shape` with the elements `values` in row-major order."""
    return xp.asarray(np.asarray(values).astype(as_dtype(dtype)).reshape(shape))


@assign_value.infer
def assign_value_infer(*, values, shape, dtype):
    if product(shape) != len(values):
        raise ProgramError(f"{len(values)} values do not fill the shape {list(shape)}", "shape_mismatch")
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
def eye(xp, *, num_rows: Size, num_columns: Size | None = None, dtype: Dtype = "float32"):
    """Identity matrix: ``out[i, j] = 1`` where ``i == j``, else 0. Without `num_columns` the matrix is square."""
    return xp.eye(num_rows, num_columns, dtype=as_dtype(dtype))


@eye.infer
def eye_infer(*, num_rows, num_columns, dtype):
    shape = (num_rows, num_rows if num_columns is None else num_columns)
    return TensorType(shape, dtype)


eye.example(
    lambda: [
        Example((), (np.eye(2, dtype="float32"),), {"num_rows": 2}),
        Example((), (np.eye(2, 3, dtype=int),), {"num_rows": 2, "num_columns": 3, "dtype": "int64"}),
    ]
)


def _range_length(start: float, end: float, step: float) -> int:
    length = math.ceil((end - start) / step) if abs((end - start) / step) < 2**62 else 2**62
    return max(length, 0)


@op(no_gradient=_CONSTANT)
def range_(xp, *, start: float = 0.0, end: float, step: Nonzero = 1.0, dtype: Dtype = "int64"):
    """Vector of equally spaced numbers ``start, start + step, start + 2 step, ...``, excluding `end`."""
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
def linspace(xp, *, start: float, stop: float, num: Size, dtype: Dtype = "float32"):
    """`num` equally spaced numbers, both ends included: ``out[i] = start + i * (stop - start) / (num - 1)``."""
    return xp.linspace(start, stop, num).astype(as_dtype(dtype))


@linspace.infer
def linspace_infer(*, start, stop, num, dtype):
    if dtype not in FLOATS:
        raise ProgramError(f"linspace needs a float dtype, not {dtype}", "bad_attr")
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
    """Sizes of the axes of x, as int64 [rank]."""
    return xp.asarray(x.shape, dtype="int64")


shape.infer(lambda x: TensorType((x.rank,), "int64"))
shape.example(lambda: [Example((np.ones((2, 3)),), (np.array([2, 3]),)), Example((np.ones(()),), (np.zeros(0, int),))])


@op(no_gradient=_SHAPE)
def size(xp, x):
    """Number of elements of x, as a 0-d int64 array."""
    return xp.asarray(x.size, dtype="int64")


size.infer(lambda x: TensorType((), "int64"))
size.example(lambda: [Example((np.ones((2, 3)),), (np.array(6),)), Example((np.ones((2, 0)),), (np.array(0),))])


@composite(no_gradient=_SHAPE)
def numel(x):
    """Number of elements of x, as a 0-d int64 array. Another name for `size`."""
    return size(x)


numel.example(lambda: [Example((np.ones((2, 3)),), (np.array(6),)), Example((np.ones(()),), (np.array(1),))])


@op(no_gradient=_SHAPE)
def rank(xp, x):
    """Number of axes of x, as a 0-d int64 array."""
    return xp.asarray(x.ndim, dtype="int64")


rank.infer(lambda x: TensorType((), "int64"))
rank.example(lambda: [Example((np.ones((2, 3)),), (np.array(2),))])


@op(no_gradient=_CONSTANT)
def fill_constant_batch_size_like(
    xp,
    x,
    *,
    shape: tuple[OpenSize, ...],
    value: Extended = 0.0,
    dtype: Dtype = "float32",
    input_dim: Size = 0,
    output_dim: Size = 0,
):
    """Array filled with `value`, whose shape is `shape` with the size of axis `input_dim` of x at axis `output_dim`."""
    sizes = list(shape)
    sizes[output_dim] = x.shape[input_dim]
    check_count(math.prod(sizes), f"the shape {sizes}")
    return xp.full(tuple(sizes), value, dtype=as_dtype(dtype))


@fill_constant_batch_size_like.infer
def fill_constant_batch_size_like_infer(x, *, shape, value, dtype, input_dim, output_dim):
    if not (output_dim < len(shape) and input_dim < x.rank):
        raise ProgramError(f"axis {input_dim} of {x} or axis {output_dim} of {list(shape)} does not exist", "bad_attr")
    sizes = (*shape[:output_dim], x.shape[input_dim], *shape[output_dim + 1 :])
    if any(n < 0 for i, n in enumerate(sizes) if i != output_dim):
        raise ProgramError(f"all sizes but axis {output_dim} must be known, not {list(shape)}", "bad_attr")
    check_fits(value, dtype)
    return TensorType(sizes, dtype)


fill_constant_batch_size_like.example(
    lambda: [Example((np.ones((4, 3)),), (np.full((4, 2), 1.5),), {"shape": (-1, 2), "value": 1.5, "dtype": "float64"})]
)
