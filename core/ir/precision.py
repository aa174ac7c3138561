"""16-bit floats: compute a value that needs several operations in float32, and round it once.

float16 and bfloat16 are storage dtypes. A kernel reads and writes them and computes in float32. A composite, or the
gradient of an op, consists of several ops. In 16 bits it would round after each of them, lose the small results of
differences, and overflow where only an intermediate value is too large: ``sqrt(x * x)`` of 300 in float16. Such a block
is written in float32 with casts at its ends, if that changes its results. A block with a matrix product or convolution
stays in 16 bits as a whole: the product accumulates in float32 already, and devices multiply 16-bit numbers several
times faster. It rounds the product, and each later op again.
"""

from __future__ import annotations

from collections.abc import Iterable

import ml_dtypes
import numpy as np

from core.ir.program import Block, Op, StackType, Type

__all__ = ["EXACT", "HALVES", "can_widen", "is_half", "largest", "rounds_often", "smallest"]

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
"""Ops that do not round: their results are copies of input elements, or whole numbers."""

CONTRACTIONS = frozenset({"matmul", "einsum", "correlate", "correlate_input_adjoint", "correlate_filter_adjoint"})


def largest(dtype: str) -> float:
    """The largest finite number of a floating-point dtype."""
    return float(ml_dtypes.finfo(KINDS.get(dtype, dtype)).max)


def smallest(dtype: str) -> float:
    """The smallest positive number of a floating-point dtype that has all its digits."""
    return float(ml_dtypes.finfo(KINDS.get(dtype, dtype)).smallest_normal)


def is_half(type: Type | None) -> bool:
    """Whether `type` is an array of 16-bit floats."""
    return type is not None and not isinstance(type, StackType) and type.dtype in HALVES


def can_widen(types: Iterable[Type | None]) -> bool:
    """Whether `types` contain 16-bit floats and no stacks of floats, which cannot be cast."""
    known = [t for t in types if t is not None]
    return any(map(is_half, known)) and not any(isinstance(t, StackType) and t.is_float for t in known)


def rounds_often(block: Block) -> bool:
    """Whether a chain of ops to a 16-bit result of `block` rounds more than once, and float32 would avoid that."""
    if any(op.type in CONTRACTIONS for op in block.ops):
        return False
    depth = dict.fromkeys(block.params, 0)
    for op in block.ops:
        own = 0 if op.type in EXACT else _roundings(op, block)
        longest = own + max((depth.get(name, 0) for name in op.inputs), default=0)
        depth.update(dict.fromkeys(op.outputs, longest))
    return any(depth[name] > 1 for name in block.results if is_half(block.types[name]))


def _roundings(op: Op, block: Block) -> int:
    """How often an op rounds a value, at most 2. An op with inner blocks counts 2: a loop rounds on every trip."""
    if any(isinstance(value, Block) for value in op.attrs.values()):
        return 2
    if not any(is_half(block.types[name]) for name in op.outputs):
        return 0
    if op.type in ("full_like", "fill_constant"):  # a constant that 16 bits cannot hold exactly
        kind, value = KINDS[block.types[op.outputs[0]].dtype], op.attrs["value"]  # type: ignore[union-attr]
        with np.errstate(over="ignore"):
            return 0 if float(kind(value)) == value else 2
    return 1
