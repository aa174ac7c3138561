"""Programs with loops, and the memory policies of loops."""

from __future__ import annotations

import numpy as np

from core.ops.control.inner_blocks import LoopMemory
from tests.programs import Sketch

POLICIES: tuple[LoopMemory, ...] = ("store", "recompute", "sqrt", "binomial")


def tanh_loop(trips: int, size: int = 2) -> Sketch:
    """h := tanh(h * w) * 1.5 `trips` times from x, then the sum."""
    s = Sketch()
    s.param("w", np.linspace(0.5, 0.7, size))
    s.param("x", np.linspace(1.0, 2.0, size))
    s.op("assign", "x", out="h")
    with s.repeat(trips):
        s.op("scale", s.op("tanh", s.op("mul", "h", "w")), out="h", scale=1.5)
    s.total("h")
    return s


def layers(count: int = 4) -> Sketch:
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("x", [1.0, 2.0])
    h = "x"
    for i in range(count):
        h = s.op("tanh", s.op("mul", h, "w", out=f"a{i}"), out=f"h{i}")
    s.total(h)
    return s
