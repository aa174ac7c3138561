"""Where a peer computes: on the processor, or on the first GPU if the bench was started with ``--device cuda``."""

from __future__ import annotations

import os

__all__ = ["VARIABLE", "on_gpu"]

VARIABLE = "BENCH_DEVICE"


def on_gpu() -> bool:
    return os.environ.get(VARIABLE) == "cuda"
