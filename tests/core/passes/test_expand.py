"""Expansion of composites, on printed blocks before and after."""

from __future__ import annotations

from core.passes import expand_composites
from tests.core.blocks import Writer, printed


def test_a_composite_is_replaced_by_its_expansion():
    w = Writer(x=(2,))
    w.op("y", "silu", "x")
    block = w.block("y")

    assert str(block) == printed("""
        (x: float64[2]) {
          y = silu(x)
          -> y
        }
    """)
    assert str(expand_composites(block)) == printed("""
        (x: float64[2]) {
          sigmoid@1 = sigmoid(x)
          mul@2 = mul(x, sigmoid@1)
          -> mul@2
        }
    """)
