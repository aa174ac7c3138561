"""An upper estimate of the time of one op in the reference executor, from its types.

The rates are those of slow cases: they decide which ops must be stoppable from outside, so an estimate that is too long
costs a few milliseconds and one that is too short costs a worker. A test measures all ops and compares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from core.cost.work import RULES, elements_of
from core.ir import Op, TensorType, Type
from core.ir.builder import output_types
from core.ir.errors import CoreError
from core.ir.registry import lookup

__all__ = ["seconds_of", "seconds_of_call"]

ELEMENT = 3e-8
"""Seconds for one element read or written: special functions, gathers, random numbers."""

SIMPLE = 4e-9
"""Seconds for one element read or written by an op that takes little longer than moving it, or has vector code."""

HALF = 8
"""Factor for 16-bit floats, which are converted to float32 and back one by one."""

PRODUCT, INTEGER_PRODUCT, EINSUM, SPECTRAL = 1.5e-10, 4e-9, 5e-10, 1e-9
"""Seconds for one operation of a product or a factorisation, of a product of integers (which no BLAS computes), of
einsum, and of an eigenvalue or singular value decomposition."""

TRIP = 5e-5
"""Seconds of one trip of a loop that a kernel makes in Python."""

FREE = frozenset([
    "array_length", "array_read", "assign", "barrier", "check_shape", "diagonal", "expand", "expand_as", "rank",
    "reshape", "reshape_as", "shape", "size", "slice", "split", "split_like", "squeeze", "stop_gradient", "transpose",
    "unsqueeze",
])  # fmt: skip
"""Ops that give views of their inputs, or sizes."""

CHEAP = frozenset([
    "abs", "add", "argmax", "argmin", "assign_value", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor",
    "cast", "ceil", "clip", "concat", "cos", "div", "equal", "exp", "fill_constant", "fill_constant_batch_size_like",
    "fill_zeros_like", "floor", "full_like", "greater_equal", "greater_than", "increment", "isfinite", "isinf",
    "isnan", "less_equal", "less_than", "log", "log10", "log2", "logical_and", "logical_not", "logical_or",
    "logical_xor", "mask_gradient", "maximum", "minimum", "mul", "neg", "not_equal", "pad_constant", "reduce_all",
    "reduce_any", "reduce_max", "reduce_mean", "reduce_min", "reduce_sum", "relu", "round", "rsqrt", "scale", "shift",
    "sigmoid", "sign", "sin", "slice_into", "sqrt", "square", "sub", "sum", "sum_to", "sum_to_like", "tanh", "tile",
    "trunc", "where",
])  # fmt: skip
"""Ops that count `SIMPLE` for each element."""

COSTLY = {
    "accuracy": 5, "bernoulli": 5, "crf_decoding": 10, "erf": 2, "erfc": 2, "erfinv": 3, "exponential": 6,
    "gaussian_random": 8, "lgamma": 3, "logcumsumexp": 15, "mode_position": 10, "multinomial": 20, "polygamma": 20,
    "pow": 2, "randint": 5, "randperm": 5, "scatter_add_like": 3, "segment_max": 3, "segment_prod": 4, "tree_path": 2,
    "truncated_gaussian": 8, "uniform_random": 5, "uniform_random_like": 5,
}  # fmt: skip
"""Multiples of `ELEMENT`."""

SORTS = frozenset([
    "accuracy", "argsort", "auc", "linear_scan", "mode_position", "randperm", "rank_table", "searchsorted",
    "unique_positions", "unique_slices",
])  # fmt: skip
"""Ops that take `ELEMENT` / 4 for each element and each bit of the number of elements."""

LOOPS = frozenset([
    "crf_decoding", "non_max_suppression", "qr_factor", "rank_table", "step_rows", "tree_path", "unstack",
])  # fmt: skip
"""Ops whose kernels loop over an axis in Python."""


COUNTED = frozenset([
    "expanded_rows", "padded_like", "padded_rows", "repeat_positions", "sequence_mask", "sequence_slice_rows",
])  # fmt: skip
"""Ops with an input of counts, whose sum or maximum is a size of the result."""


def seconds_of(op: Op, ins: Sequence[Type | None], outs: Sequence[Type]) -> float | None:
    """Seconds that `op` takes at most on a usual machine; None if a type leaves a size open or is a tensor array."""
    types = [type for type in (*ins, *outs) if type is not None]
    if not all(isinstance(type, TensorType) and type.is_static for type in types):
        return None
    if op.type in FREE:
        return 0.0
    arrays = [type for type in types if isinstance(type, TensorType)]
    count = sum(map(elements_of, types))
    each = SIMPLE if op.type in CHEAP else ELEMENT * COSTLY.get(op.type, 1)
    if any(type.dtype in ("float16", "bfloat16") for type in arrays):
        each *= HALF
    seconds = count * each
    if op.type in SORTS:
        seconds += count * ELEMENT / 4 * count.bit_length()
    if op.type in LOOPS:
        seconds += TRIP * max((n for type in arrays for n in type.shape), default=0)
    if "kernel_size" in op.attrs:
        seconds *= math.prod(op.attrs["kernel_size"])
    if op.type in RULES:
        seconds += RULES[op.type](op, list(ins), list(outs)) * _operation(op, arrays)
    return seconds


def seconds_of_call(op: Op, inputs: Sequence[Any]) -> float:
    """Seconds that `op` takes at most on these arrays; None stands for an empty optional slot.

    0.0 for an op on tensor arrays, and for arrays that its kernel will refuse.
    """
    arrays = [value for value in inputs if value is not None]
    if not all(isinstance(value, np.ndarray | np.generic) for value in arrays):
        return 0.0
    ins = tuple(None if value is None else TensorType(value.shape, str(value.dtype)) for value in inputs)
    try:
        outs = output_types(lookup(op.type), ins, op.attrs)
    except CoreError:
        return 0.0
    return seconds_of(op, ins, [_sized(op, type, arrays) for type in outs]) or 0.0


def _sized(op: Op, type: Type, arrays: Sequence[Any]) -> Type:
    """`type` with a size in place of one that only the call knows: at least that size, as far as the inputs tell."""
    if not isinstance(type, TensorType) or type.is_static:
        return type
    known = math.prod(n for n in type.shape if n > 0)
    most = max((value.size for value in arrays), default=0) // known + 1
    if op.type in COUNTED:
        counts = [value for value in arrays if value.dtype.kind == "i" and value.size]
        each = max((int(value.max()) for value in counts), default=0)
        most = max(most, each if type.shape[0] > 0 else each * max((value.size for value in counts), default=0))
    return TensorType(tuple(most if n < 0 else n for n in type.shape), type.dtype)


def _operation(op: Op, arrays: Sequence[TensorType]) -> float:
    """Seconds for one of the operations that `work` counts."""
    if not arrays[0].is_float:
        return INTEGER_PRODUCT
    if op.type in ("svd", "pinv", "cofactors_adjoint", "eigh_factor", "eigvalsh_factor"):
        return SPECTRAL
    return EINSUM if op.type == "einsum" else PRODUCT
