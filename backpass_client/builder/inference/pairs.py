"""A warning for losses whose two operands are both stretched: predictions [n, 1] and labels [n] make [n, n] errors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from backpass_client.builder.blocks import line_of_caller
from backpass_client.builder.inference.sizes import broadcast_sizes
from backpass_client.builder.signatures import OpSignature
from backpass_client.builder.types import Type

__all__ = ["PAIRED", "warn_of_stretched"]

PAIRED = frozenset(
    {
        "bce_loss", "gaussian_nll_loss", "hinge_embedding_loss", "hinge_loss", "huber_loss", "kldiv_loss", "l1_loss",
        "log_loss", "mse_loss", "poisson_nll_loss", "sigmoid_cross_entropy_with_logits", "sigmoid_focal_loss",
        "smooth_l1_loss", "soft_margin_loss", "square_error_cost",
    }
)  # fmt: skip
"""Losses that compare an element of the first operand with the element of the second one at the same place."""


def warn_of_stretched(signature: OpSignature, given: Mapping[str, Any]) -> None:
    """Warn if broadcasting stretches both operands of such a loss. given: slot -> type, as of `output_types`."""
    if signature.type not in PAIRED:
        return
    x, y = (given.get(slot) for slot in signature.slots[:2])
    if not (isinstance(x, Type) and isinstance(y, Type) and x.shape is not None and y.shape is not None):
        return
    both = broadcast_sizes(x.shape, y.shape)
    if both in (tuple(x.shape), tuple(y.shape)):
        return
    names = signature.slots[:2]
    warnings.warn(
        f"{line_of_caller()}: {signature.type}({names[0]}={x}, {names[1]}={y}) compares each element with each, in the "
        f"shape {Type(x.dtype, both)}: give both operands one shape, such as x[:, 0] for [n, 1] beside [n]",
        stacklevel=2,
    )
