"""Lowerings of ops on arrays of known sizes, and of those that take 16-bit floats in float32."""

from __future__ import annotations

from collections.abc import Callable

from core.ir import HOLE, Op
from core.ir.precision import is_half
from core.plan.halves import lower_wide
from core.plan.lowering import Lowering
from core.plan.paired_convolution import lower_paired
from core.plan.patches import PATCHED

__all__ = ["lower_known"]

WIDE = frozenset(
    (
        "argmax",
        "argmin",
        "argsort",
        "correlate",
        "correlate_filter_adjoint",
        "correlate_input_adjoint",
        "cumprod",
        "cumsum",
        "dft",
        "is_last",
        "linear_scan",
        "logcumsumexp",
        "logsumexp",
        "max_pool",
        "mode_position",
        "pick",
        "real_dft",
        "real_from_dft",
        "running_argmax",
        "segment_max",
        "segment_prod",
        "segment_sum",
        "unpool_like",
        "window_sum",
        "window_sum_adjoint",
    )
)
"""Ops whose lowering takes 16-bit floats in float32."""


def lower_known(low: Lowering, op: Op, lowering: Callable[[Lowering, Op], None]) -> None:
    """Lower an op by its lowering, in float32 if that takes no 16-bit floats."""
    if not _is_wide(low, op):
        lowering(low, op)
    elif not lower_paired(low, op):
        lower_wide(low, op, lowering)


def _is_wide(low: Lowering, op: Op) -> bool:
    if op.type not in WIDE or not any(is_half(low.types[n]) for n in (*op.inputs, *op.outputs) if n != HOLE):
        return False
    if op.type == "segment_sum":
        return not low.target.scatters_halves
    return op.type not in PATCHED or not low.target.convolutions.patches
