"""Binding open sizes, on printed blocks before and after."""

from __future__ import annotations

from core.passes.bind import bind
from tests.core.blocks import Writer, printed


def test_open_sizes_become_those_of_the_run_in_every_type():
    w = Writer(x=(-1, 2))
    w.op("y", "tanh", "x")
    w.op("z", "reduce_sum", "y", axes=(1,))
    block = w.block("y z")

    assert str(block) == printed("""
        (x: float64[?, 2]) {
          y = tanh(x)
          z = reduce_sum(y) {'axes': (1,), 'keepdims': False}
          -> y, z
        }
    """)
    assert str(bind(block, {"x": (3, 2)})) == printed("""
        (x: float64[3, 2]) {
          y = tanh(x)
          z = reduce_sum(y) {'axes': (1,), 'keepdims': False}
          -> y, z
        }
    """)
