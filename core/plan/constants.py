"""Ops whose result depends on no data: it is computed once, when the plan is made.

A small result becomes part of the machine code, and one number in all elements needs no memory. Masks and long ranges
are patterns: they are computed from positions, wherever they are read.
"""

from __future__ import annotations

import numpy as np

from core.ir import HOLE, Op
from core.ir.errors import ExecutionError
from core.ir.registry import lookup
from core.ops.common.types import as_dtype
from core.plan.entries import Pattern, Uniform, positions
from core.plan.lowering import Lowering, lowers
from core.plan.memory import Root, View, bytes_of, contiguous
from core.plan.unsupported import Unsupported

__all__ = ["lower_constant"]

MOST_BYTES = 1 << 17
"""Bytes of the largest array that becomes part of the machine code."""


@lowers("border_positions", "inverse_count", "rank", "roll_positions", "shape", "size", "window_sizes")
def lower_of_shape(low: Lowering, op: Op) -> None:
    """An op that reads only the shapes and dtypes of its operands."""
    lower_constant(low, op)


def lower_constant(low: Lowering, op: Op) -> None:
    """Run the op now, on arrays of zeros. Raises Unsupported if its results are long, or if it fails."""
    types = [low.type(n) for n in op.outputs]
    if any(bytes_of(t.shape, t.dtype) > MOST_BYTES for t in types):
        raise Unsupported(f"a constant array of more than {MOST_BYTES} bytes")
    given = [None if n == HOLE else _zeros(low, n) for n in op.inputs]
    try:
        with np.errstate(all="ignore"):
            made = lookup(op.type).body(np, *given, **op.attrs)
    except ExecutionError as error:  # the error belongs to the run, and only if the op is reached
        raise Unsupported(str(error)) from None
    values = made if isinstance(made, tuple) else (made,)
    for name, type, value in zip(op.outputs, types, values, strict=True):
        array = np.ascontiguousarray(value, as_dtype(type.dtype)).reshape(type.shape)
        one = array.reshape(-1)[:1]
        if array.tobytes() == one.tobytes() * array.size:
            low.define(name, Uniform(one[0], type.dtype, type.shape))
        else:
            root = Root(array.nbytes, "constant", name, array.tobytes())
            low.define(name, View(root, type.dtype, type.shape, contiguous(type.shape)))


def _zeros(low: Lowering, name: str) -> np.ndarray:
    type = low.type(name)
    return np.broadcast_to(np.zeros((), as_dtype(type.dtype)), type.shape)


@lowers("assign_value")
def lower_value(low: Lowering, op: Op) -> None:
    lower_constant(low, op)


@lowers("range")
def lower_range(low: Lowering, op: Op) -> None:
    """Whole numbers are counted; other steps are rounded as the reference rounds them."""
    type = low.type(op.outputs[0])
    start, step = op.attrs["start"], op.attrs["step"]
    count = type.shape[0]
    whole = all(float(n).is_integer() and abs(n) < 2**53 for n in (start, step, start + step * count))
    if not whole or bytes_of(type.shape, type.dtype) <= 64:
        lower_constant(low, op)
        return
    counted = positions((count,), (int(step),), int(start))
    low.define(op.outputs[0], counted.as_dtype(type.dtype))


@lowers("triangle_mask_like")
def lower_triangle(low: Lowering, op: Op) -> None:
    diagonal = max(min(op.attrs["diagonal"], 2**62), -(2**62))
    low.define(op.outputs[0], _beyond(low, op).then("less_equal", diagonal, "bool"))


@lowers("diagonal_mask_like")
def lower_diagonal_mask(low: Lowering, op: Op) -> None:
    low.define(op.outputs[0], _beyond(low, op).then("equal", 0, "bool"))


@lowers("eye", "eye_like")
def lower_eye(low: Lowering, op: Op) -> None:
    dtype = low.type(op.outputs[0]).dtype
    offset = max(min(op.attrs.get("offset", 0), 2**62), -(2**62))
    mask = _beyond(low, op).then("equal", offset, "bool")
    low.define(op.outputs[0], mask.as_dtype(dtype))


def _beyond(low: Lowering, op: Op) -> Pattern:
    """The number of the column minus that of the row, for each element of the op's result."""
    shape = low.type(op.outputs[0]).shape
    return positions(shape, (*(0 for _ in shape[2:]), -1, 1))
