"""Loops over runs of trips, on printed blocks before and after."""

from __future__ import annotations

from core.passes.chunk import chunk_loops
from tests.core.blocks import Writer, printed


def test_a_loop_over_a_stack_becomes_a_loop_over_runs_of_its_elements():
    body = Writer(h=(2,), x=(2,))
    body.op("next", "mul", "h", "x")
    w = Writer(h=(2,), xs=(3, 2))
    w.op("stack", "array_unstack", "xs")
    loop = {"sub_block": body.block("next"), "carried": 1, "captured": 0, "condition": False, "memory": "sqrt"}
    w.op("last", "loop", "h", "stack", **loop)
    block = w.block("last")

    assert str(block) == printed("""
        (h: float64[2], xs: float64[3, 2]) {
          stack = array_unstack(xs)
          last = loop(h, stack) {'carried': 1, 'captured': 0, 'condition': False, 'reverse': False, 'is_test': False, 'memory': 'sqrt', 'checkpoints': (), 'counter': None}
            sub_block:
              (h: float64[2], x: float64[2]) {
                next = mul(h, x)
                -> next
              }
          -> last
        }
    """)
    assert str(chunk_loops(block)) == printed("""
        (h: float64[2], xs: float64[3, 2]) {
          stack = array_unstack(xs)
          fill_constant@1 = fill_constant() {'shape': (), 'value': 0.0, 'dtype': 'int64'}
          array_chunks@2 = array_chunks(stack) {'order': 1}
          loop@3, loop@4 = loop(fill_constant@1, h, array_chunks@2) {'carried': 2, 'captured': 0, 'condition': False, 'reverse': False, 'is_test': False, 'memory': 'recompute', 'checkpoints': (), 'counter': 0}
            sub_block:
              (p@1: int64[], p@2: float64[2], p@3: stack of float64[2]) {
                loop@4, loop@5 = loop(p@1, p@2, p@3) {'carried': 2, 'captured': 0, 'condition': False, 'reverse': False, 'is_test': False, 'memory': 'store', 'checkpoints': (), 'counter': 0}
                  sub_block:
                    (p@1: int64[], h: float64[2], x: float64[2]) {
                      next = mul(h, x)
                      scale@2 = scale(p@1) {'scale': 1.0, 'bias': 1.0}
                      -> scale@2, next
                    }
                -> loop@4, loop@5
              }
          last = assign(loop@4)
          -> last
        }
    """)
