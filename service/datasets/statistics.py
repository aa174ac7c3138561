"""Statistics of a column, computed block by block."""

from __future__ import annotations

import math

import numpy as np

from service.datasets.scratch import row_blocks

__all__ = ["statistics_of"]

Statistics = dict[str, float | int | None]


def statistics_of(array: np.ndarray) -> Statistics:
    """nan and infinite (counts), and min, max and mean of the finite elements (None if there are none)."""
    nan = infinite = count = 0
    low: float | int | None = None
    high: float | int | None = None
    sums: list[float] = []
    for rows in row_blocks(array):
        block = array[rows]
        if block.dtype.itemsize == 2 and block.dtype.kind not in "iu":  # float16 and bfloat16
            block = block.astype(np.float32)
        if block.dtype.kind == "f":
            finite = np.isfinite(block)
            if not finite.all():
                is_nan = np.isnan(block)
                nan += int(is_nan.sum())
                infinite += int((~finite & ~is_nan).sum())
                block = block[finite]
        elif block.dtype.kind == "b":
            block = block.view(np.uint8)
        if not block.size:
            continue
        count += block.size
        least, most = block.min().item(), block.max().item()
        low = least if low is None else min(low, least)
        high = most if high is None else max(high, most)
        with np.errstate(over="ignore"):
            sums.append(float(block.sum(dtype=np.float64)))
    mean = math.fsum(sums) / count if count and all(map(math.isfinite, sums)) else None
    return {"nan": nan, "infinite": infinite, "min": low, "max": high, "mean": mean}
