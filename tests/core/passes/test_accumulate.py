"""Early accumulation, on printed blocks before and after."""

from __future__ import annotations

from core.passes import accumulate_early
from tests.core.blocks import Writer, printed


def test_a_sum_becomes_additions_right_after_their_operands():
    w = Writer(x=(2,))
    w.op("a", "sin", "x")
    w.op("b", "cos", "x")
    w.op("c", "tanh", "x")
    w.op("total", "sum", "a", "b", "c")
    block = w.block("total")

    assert str(block) == printed("""
        (x: float64[2]) {
          a = sin(x)
          b = cos(x)
          c = tanh(x)
          total = sum(a, b, c)
          -> total
        }
    """)
    assert str(accumulate_early(block)) == printed("""
        (x: float64[2]) {
          a = sin(x)
          b = cos(x)
          sum@1 = sum(a, b)
          c = tanh(x)
          total = sum(sum@1, c)
          -> total
        }
    """)
