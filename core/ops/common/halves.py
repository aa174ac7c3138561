"""Products of 16-bit floats, computed in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["with_halves_widened"]


def with_halves_widened(function: Callable[..., Any], *x: Any) -> Any:
    """`function` of arrays of one dtype, computed in float32 for 16-bit floats.

    NumPy multiplies these slowly, and cupy has no batched product of bfloat16. The result has the dtype of the arrays,
    rounded once.
    """
    dtype = x[0].dtype
    if dtype.itemsize != 2 or dtype.kind in "iu":
        return function(*x)
    return function(*(v.astype(np.float32) for v in x)).astype(dtype)
