"""Common subexpressions, on printed blocks before and after."""

from __future__ import annotations

from core.passes import share_common
from tests.core.blocks import Writer, printed


def test_equal_ops_become_one_but_the_sign_of_a_zero_attribute_counts():
    w = Writer(x=(2,))
    w.op("a", "tanh", "x")
    w.op("same", "assign", "x")
    w.op("b", "tanh", "same")
    w.op("minus", "scale", "x", scale=2.0, bias=-0.0)
    w.op("plus", "scale", "x", scale=2.0, bias=0.0)
    w.op("c", "sum", "a", "b", "minus", "plus")
    block = w.block("c")

    assert str(block) == printed("""
        (x: float64[2]) {
          a = tanh(x)
          same = assign(x)
          b = tanh(same)
          minus = scale(x) {'scale': 2.0, 'bias': -0.0}
          plus = scale(x) {'scale': 2.0, 'bias': 0.0}
          c = sum(a, b, minus, plus)
          -> c
        }
    """)
    assert str(share_common(block)) == printed("""
        (x: float64[2]) {
          a = tanh(x)
          minus = scale(x) {'scale': 2.0, 'bias': -0.0}
          plus = scale(x) {'scale': 2.0, 'bias': 0.0}
          c = sum(a, a, minus, plus)
          -> c
        }
    """)
