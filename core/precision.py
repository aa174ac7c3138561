"""16-bit floats: a value that needs several operations is computed in float32 and rounded once.

float16 and bfloat16 are dtypes to keep numbers in. A kernel takes and gives them, and computes in float32 inside. What
is written in other ops, a composite or the gradient of an op, would round after every one of them, lose what a
difference leaves, and overflow where only something in between is too large: ``sqrt(x * x)`` of 300 in float16. So such
a block is written in float32 where that makes a difference, with casts at its ends. Products of matrices stay as they
are: they add up in float32 anyway, and devices multiply 16-bit numbers several times faster.
"""

from __future__ import annotations

from collections.abc import Iterable

import ml_dtypes
import numpy as np

from core.ir import Block, Op, StackType, Type

__all__ = ["EXACT", "HALVES", "can_widen", "is_half", "largest", "rounds_often"]

KINDS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
HALVES = tuple(KINDS)

# fmt: off
EXACT = frozenset((
    "abs", "array_chunks", "array_concat", "array_cut", "array_erase", "array_fill", "array_flatten",
    "array_join", "array_paste", "array_place", "array_read", "array_regroup", "array_split_as", "array_take",
    "array_unstack", "array_write", "assign", "barrier", "cast", "ceil", "check_finite", "check_shape", "concat",
    "diagonal", "diagonal_into", "diagonals_into", "empty_stack", "expand", "expand_as", "fill_zeros_like", "floor",
    "gather", "index_select", "mask_gradient", "max_pool", "maximum", "merge_by_mask", "meshgrid", "minimum",
    "neg", "one_hot", "pad_constant", "padded_like", "pick", "reduce_max", "reduce_min", "relu", "reshape",
    "read_rows", "reshape_as", "round", "segment_max", "select_input", "select_output", "shift", "sign", "slice",
    "slice_into", "split", "split_by_mask", "split_like", "squeeze", "stop_gradient", "tile", "transpose",
    "trunc", "unpool_like", "unsqueeze", "unstack", "where"
))
# fmt: on
"""Ops that give numbers they were given, or whole ones: nothing is rounded."""

CONTRACTIONS = frozenset({"matmul", "einsum", "correlate", "correlate_input_adjoint", "correlate_filter_adjoint"})


def largest(dtype: str) -> float:
    """The largest finite number of a floating-point dtype."""
    return float(ml_dtypes.finfo(KINDS.get(dtype, dtype)).max)


def is_half(type: Type | None) -> bool:
    """Whether it is an array of 16-bit floats."""
    return type is not None and not isinstance(type, StackType) and type.dtype in HALVES


def can_widen(types: Iterable[Type | None]) -> bool:
    """Whether some of `types` are 16-bit floats, and all of those are arrays, which can be cast."""
    known = [t for t in types if t is not None]
    return any(map(is_half, known)) and not any(isinstance(t, StackType) and t.is_float for t in known)


def rounds_often(block: Block) -> bool:
    """Whether some 16-bit result of `block` is rounded more than once on its way, and float32 would help."""
    if any(op.type in CONTRACTIONS for op in block.ops):
        return False
    depth = dict.fromkeys(block.params, 0)
    for op in block.ops:
        own = 0 if op.type in EXACT else _roundings(op, block)
        longest = own + max((depth.get(name, 0) for name in op.inputs), default=0)
        depth.update(dict.fromkeys(op.outputs, longest))
    return any(depth[name] > 1 for name in block.results if is_half(block.types[name]))


def _roundings(op: Op, block: Block) -> int:
    """How often an op rounds what goes through it; a loop does it on every trip, and that may be many times."""
    if any(isinstance(value, Block) for value in op.attrs.values()):
        return 2
    if not any(is_half(block.types[name]) for name in op.outputs):
        return 0
    if op.type in ("full_like", "fill_constant"):  # a limit or a factor that 16 bits hold only nearly
        kind, value = KINDS[block.types[op.outputs[0]].dtype], op.attrs["value"]  # type: ignore[union-attr]
        with np.errstate(over="ignore"):
            return 0 if float(kind(value)) == value else 2
    return 1
