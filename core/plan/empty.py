"""Empty arrays: sizes of 0. They need no memory and no instructions, and neither do results that depend on them alone.

A reduction of nothing is its identity, a product over no terms is zero: the reference executor computes such a result
once, when the plan is made. An op that fails on an empty array stays in the step, which then raises its error.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from core.ir import HOLE, Op, TensorType
from core.ir.errors import ExecutionError
from core.ir.registry import lookup
from core.ops.common.types import as_dtype
from core.plan.entries import Uniform
from core.plan.indexing import in_range
from core.plan.lowering import LOWERINGS, Lowering
from core.plan.memory import Root, View, bytes_of, contiguous
from core.plan.unsupported import Unsupported

__all__ = ["has_empty", "lower_empty"]

MOST_BYTES = 1 << 24
"""Bytes of the largest result that is computed when the plan is made, to see that all its elements are equal."""

MOST_DATA = 1 << 17
"""Bytes of the largest array that becomes part of the machine code."""

MOVES = frozenset(
    (
        "concat", "correlate", "correlate_filter_adjoint", "correlate_input_adjoint", "einsum", "expand",
        "expand_as", "matmul", "max_pool", "merge_axes", "meshgrid", "pad_constant", "reduce_max", "reduce_min",
        "reduce_prod", "reduce_sum", "repeat", "reshape", "reshape_as", "shift", "slice", "slice_into", "split",
        "split_like", "squeeze", "sum_tiles_like", "sum_to", "sum_to_like", "tile", "transpose", "unflatten",
        "unsqueeze", "unstack", "window_sum", "window_sum_adjoint",
    )
)  # fmt: skip
"""Ops that move or add elements and never fail because of their values: an empty result needs no work."""

POSITIONS = {
    "gather": 1, "index_select": 1, "is_padding": 0, "label_rows": 0, "positions_along": 0, "positions_nd": 0,
    "scatter_add_like": 1, "segment_max": 1, "segment_prod": 1, "segment_sum": 1, "wrapped_index": 0,
}  # fmt: skip
"""Ops that do nothing if they have no positions -> the slot of the positions. Without positions they fail on nothing,
and their result is empty, or the neutral element everywhere."""

OWN = frozenset(
    (
        "array_join", "array_unstack", "assign", "barrier", "clip_by_global_norm", "if_else", "loop", "split",
        "split_like", "stop_gradient", "unscale",
    )
)  # fmt: skip
"""Ops whose own lowering takes empty arrays."""

FROM_SHAPES = frozenset({"class_index", "positions_nd"})
"""Ops whose own lowering reads positions or labels, and of the other operand, which may be empty, only the shape."""

LINEAR = {
    "correlate": 2, "correlate_filter_adjoint": 2, "correlate_input_adjoint": 2,
}  # fmt: skip
"""Ops whose result is zero if one of so many first operands is empty; the others give only their shapes."""

SHAPES = {"rank", "shape", "size"}
"""Ops that read only shapes."""

FAILURES = (
    ExecutionError, MemoryError, ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError,
    np.linalg.LinAlgError,
)  # fmt: skip
"""Exceptions of a kernel that become an error of the run."""

LIKE = {
    "class_index",
    "expand_as",
    "positions_along",
    "reshape_as",
    "slice_into",
    "split_like",
    "sum_tiles_like",
    "sum_to_like",
}
"""Ops that read only the shape of their second operand."""


def has_empty(low: Lowering, op: Op) -> bool:
    """Whether an array that `op` reads or makes is empty."""
    types = [low.types[n] for n in (*op.inputs, *op.outputs) if n != HOLE]
    return any(isinstance(t, TensorType) and 0 in t.shape for t in types)


def lower_empty(low: Lowering, op: Op) -> bool:
    """Lower an op of empty arrays, if that needs no instructions of its own.

    False for an op whose own lowering takes empty arrays. Raises Unsupported for any other one, among them an op that
    fails: its error belongs to the run.
    """
    spec = lookup(op.type)
    if op.type in OWN or (op.type in FROM_SHAPES and 0 not in low.type(op.inputs[0]).shape):
        return False
    if spec.reports:
        raise Unsupported(f"{op.type} has no machine code")
    for name in op.outputs:
        low.type(name)
    empty = all(0 in low.type(n).shape for n in op.outputs)
    if empty and (spec.elementwise or spec.takes_key or op.type in MOVES or op.type in LIKE):
        for name in op.outputs:
            _define_empty(low, name)
        return True
    if op.type == "concat":
        _concat(low, op)
        return True
    if op.type in ("gather", "index_select", "scatter_add_like") and 0 not in low.type(op.inputs[1]).shape:
        size = low.type(op.outputs[0] if op.type == "scatter_add_like" else op.inputs[0]).shape[op.attrs["axis"]]
        if not empty or not size:
            raise Unsupported(f"{op.type} of empty and other arrays")
        in_range(low, op, low.entry(op.inputs[1]), size)
        _define_empty(low, op.outputs[0])
        return True
    positions = POSITIONS.get(op.type)
    nothing = positions is not None and 0 in low.type(op.inputs[positions]).shape
    nothing |= any(0 in low.type(n).shape for n in op.inputs[: LINEAR.get(op.type, 0)])
    nothing |= op.type in SHAPES
    given = [_known(low, n, nothing or (op.type in LIKE and i == 1)) for i, n in enumerate(op.inputs)]
    if any(known is None and n != HOLE for known, n in zip(given, op.inputs, strict=True)):
        raise Unsupported(f"{op.type} of empty and other arrays")
    _compute(low, op, given)
    return True


def _define_empty(low: Lowering, name: str) -> None:
    type = low.type(name)
    low.define(name, Uniform(as_dtype(type.dtype).type(0), type.dtype, type.shape))


def _concat(low: Lowering, op: Op) -> None:
    """Leave out the empty operands."""
    names = tuple(n for n in op.inputs if 0 not in low.type(n).shape)
    if len(names) == 1:
        low.define(op.outputs[0], low.entry(names[0]))
    else:
        LOWERINGS["concat"](low, replace(op, inputs=names))


def _known(low: Lowering, name: str, any_value: bool) -> np.ndarray | None:
    """The value of an operand, if the plan knows it. any_value: the op does not depend on it."""
    if name == HOLE:
        return None
    type, entry = low.type(name), low.entry(name)
    if 0 in type.shape or any_value:
        return np.broadcast_to(np.zeros((), as_dtype(type.dtype)), type.shape)
    if isinstance(entry, Uniform):
        return np.broadcast_to(np.asarray(entry.number, as_dtype(entry.dtype)), type.shape)
    return None


def _compute(low: Lowering, op: Op, given: list[np.ndarray | None]) -> None:
    """Run the op now. Raises Unsupported if it fails or if its results are long."""
    types = [low.type(n) for n in op.outputs]
    if any(bytes_of(t.shape, t.dtype) > MOST_BYTES for t in types):
        raise Unsupported(f"a constant array of more than {MOST_BYTES} bytes")
    try:
        with np.errstate(all="ignore"):
            made = lookup(op.type).body(np, *given, **op.attrs)
    except FAILURES as error:  # the error belongs to the run
        raise Unsupported(str(error)) from None
    values = made if isinstance(made, tuple) else (made,)
    for name, type, value in zip(op.outputs, types, values, strict=True):
        if 0 in type.shape:
            _define_empty(low, name)
            continue
        array = np.ascontiguousarray(value, as_dtype(type.dtype)).reshape(type.shape)
        one = array.reshape(-1)[:1]
        if array.tobytes() == one.tobytes() * array.size:
            low.define(name, Uniform(one[0], type.dtype, type.shape))
        elif array.nbytes <= MOST_DATA:
            root = Root(array.nbytes, "constant", name, array.tobytes())
            low.define(name, View(root, type.dtype, type.shape, contiguous(type.shape)))
        else:
            raise Unsupported(f"a constant array of more than {MOST_DATA} bytes")
