"""The memory that one op needs while it runs: its outputs, and the temporary arrays of its kernel.

The temporary arrays are bounded by the sizes of operands and outputs. The bounds were measured with tracemalloc on
large operands; `tests/laws/test_scratch.py` holds every kernel to its bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from core.cost.views import VIEWS
from core.ir import StackType, TensorType, Type
from core.ir.builder import output_types
from core.ir.errors import ProgramError
from core.ir.registry import lookup
from core.ops.common.types import byte_size

__all__ = ["actual_type", "drawn_bytes", "needed_bytes", "scratch_bytes", "sizes_of_run"]

DEFAULT = (1.0, 1.0)
"""Temporary bytes for each byte of the operands, and for each byte of the outputs."""

_IN_PLACE = """
abs acos acosh add asin asinh assert assign atan atan2 atanh barrier bitwise_and bitwise_not bitwise_or bitwise_xor
cast ceil check_finite check_shape class_index concat cos cosh create_array diagonal diagonal_into diagonal_mask_like
div embedding empty_stack equal erf erfc erfinv exp expand expand_as expm1 fill_constant fill_constant_batch_size_like
fill_zeros_like floor floor_div fmod full_like greater_equal greater_than hypot increment inverse_count isfinite isinf
isnan less_equal less_than lgamma log log10 log1p log2 logical_and logical_not logical_or logical_xor matmul maximum
meshgrid minimum mod mul neg not_equal one_hot pad_constant padded_like pow print rank reduce_all reduce_any
reduce_max reduce_min reduce_prod reduce_sum relu reshape reshape_as round segment_sum select_input select_output
sequence_reset_lengths shape shift sign sin sinh size slice slice_into split split_like sqrt square squeeze
stop_gradient sub sum_tiles_like sum_to sum_to_like tan tanh transpose trunc unsqueeze unstack where
"""

IN_PLACE = frozenset(_IN_PLACE.split())
"""Ops whose kernels write their outputs without temporary arrays."""

BYTES: Mapping[str, tuple[float, float]] = {
    "crf_decoding": (3.0, 8.0),
    "expanded_rows": (4.0, 2.0),
    "gather": (0.5, 1.0),
    "interleaved_rows": (2.0, 3.0),
    "is_padding": (2.5, 2.5),
    "logsumexp": (2.5, 2.0),
    "pinv": (3.0, 3.0),
    "qr_factor": (2.5, 2.5),
    "read_rows": (2.0, 2.0),
    "roi_fractions": (3.0, 3.0),
    "roi_positions": (3.0, 3.0),
    "segment_max": (2.0, 2.0),
    "segment_prod": (4.0, 4.0),
    "slogdet": (2.5, 2.5),
    "det": (2.5, 2.5),
    "cofactors": (8.0, 2.0),
    "cofactors_adjoint": (9.5, 2.0),
    "solve": (2.0, 3.0),
    "svd": (2.0, 2.0),
    "eigh_factor": (2.5, 2.0),
    "eigvalsh_factor": (2.5, 2.0),
    "inverse": (2.0, 2.0),
    "cholesky_factor": (2.0, 2.0),
    "softplus": (1.0, 3.0),
    "window_sizes": (1.0, 2.0),
    "lu": (3.0, 2.0),
    "matrix_exp": (12.0, 3.0),
    "dft": (5.0, 5.0),
    "real_dft": (5.0, 5.0),
    "real_from_dft": (5.0, 5.0),
    "triangular_solve": (3.0, 4.0),
    "correlate": (3.0, 3.0),
    "correlate_filter_adjoint": (3.0, 3.0),
    "correlate_input_adjoint": (3.0, 3.0),
}
"""Temporary bytes for each byte of the operands, and for each byte of the outputs, where they exceed the default."""

WORDS: Mapping[str, tuple[float, float]] = {
    "accuracy": (2, 2),
    "adaptive_positions": (1, 5),
    "argmax": (1, 1),
    "argmin": (1, 1),
    "argsort": (1, 3),
    "auc": (4, 1),
    "bernoulli": (10, 2),
    "border_positions": (2, 3),
    "exponential": (1, 10),
    "first_true": (3, 3),
    "gaussian_random": (1, 17),
    "is_last": (4, 4),
    "merge_rows": (4, 2),
    "merge_rows_padded": (5, 3),
    "non_max_suppression": (24, 3),
    "mode_position": (8, 2),
    "multinomial": (12, 10),
    "next_key": (1, 64),
    "randint": (1, 10),
    "randperm": (1, 11),
    "truncated_gaussian": (1, 10),
    "uniform_random": (1, 10),
    "unique_positions": (4, 3),
    "unique_slices": (6, 3),
}
"""Temporary words of eight bytes for each element of the operands, and for each element of the outputs, of kernels that
compute in 64 bits whatever the dtype: they draw random numbers, sort, or find positions."""

WORD = 8

LIKE_LAST = frozenset({"array_take", "array_paste"})
"""Ops of a tensor array whose result has the type of their last operand: an empty array does not show its elements."""

RESHAPES = frozenset({"reshape", "reshape_as"})
"""Views of dense arrays, and copies of others."""


def scratch_bytes(op: str, inputs: Iterable[Type | None], outputs: Sequence[Type]) -> int:
    """Bytes of the temporary arrays of the kernel of `op`; unknown sizes count as 1."""
    if op in VIEWS:
        return 0
    operands = [type for type in inputs if type is not None]
    read, written = sum(map(byte_size, operands)), sum(map(byte_size, outputs))
    # kernels widen 16-bit floats to float32
    halves = 2 * sum(byte_size(type) for type in (*operands, *outputs) if _is_half(type))
    words = WORDS.get(op) or WORDS.get(op.removesuffix("_like"))  # random numbers in the shape of an operand
    if words is not None:
        each, out = words
        return round(WORD * (each * sum(map(_elements, operands)) + out * sum(map(_elements, outputs))))
    each, out = (0.0, 0.0) if op in IN_PLACE else BYTES.get(op, DEFAULT)
    return round(each * read + out * written) + halves


def needed_bytes(op: str, inputs: Sequence[Type | None], outputs: Sequence[Type]) -> int:
    """Bytes that a call of the kernel allocates at its peak: outputs and temporary arrays."""
    if op in VIEWS:
        return 0
    return sum(map(byte_size, outputs)) + scratch_bytes(op, inputs, outputs)


def sizes_of_run(op: str, operands: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[int, int]:
    """(bytes that a call allocates, bytes of its largest output) for these operands, if sizes decide about them.

    If values decide about the sizes, as in a selection by a mask, the result has as many bytes as the operands.
    """
    types = tuple([None if each is None else actual_type(each) for each in operands])
    held = sum([_bytes_of(each) for each in operands if each is not None])
    try:
        like_last = op in LIKE_LAST
        outputs = (actual_type(operands[-1]),) if like_last else output_types(lookup(op), types, attrs)
    except ProgramError:  # the kernel reports operands that do not fit
        return 0, 0
    if op in VIEWS and not (op in RESHAPES and not operands[0].flags.c_contiguous):
        return 0, 0
    if all(isinstance(type, TensorType) and type.is_static for type in outputs):
        return needed_bytes(op, types, outputs), max(map(byte_size, outputs), default=0)
    return (0, 0) if any(isinstance(type, StackType) for type in outputs) else (held, 0)


def drawn_bytes(types: Iterable[TensorType]) -> int:
    """Bytes that drawing random arrays of these types takes at its peak: each is drawn in float64 before it is cast."""
    types = list(types)
    return sum(map(byte_size, types)) + WORD * max(map(_elements, types), default=0)


def actual_type(value: Any) -> Type:
    """The type of a value: sizes are known, except of a recorded stack. A stack may lack elements (None)."""
    if isinstance(value, list | tuple):
        element = next((each for each in value if each is not None), None)
        return StackType(TensorType(()) if element is None else actual_type(element))
    return TensorType(tuple(value.shape), str(value.dtype))


def _bytes_of(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_bytes_of, value))
    return 0 if value is None else int(value.nbytes)


def _elements(type: Type) -> int:
    while isinstance(type, StackType):
        type = type.element
    size = 1
    for n in type.shape:
        size *= n if n >= 0 else 1
    return size


def _is_half(type: Type) -> bool:
    return isinstance(type, TensorType) and type.dtype in ("float16", "bfloat16")
