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
          last = loop(h, stack) {'carried': 1, 'captured': 0, 'condition': False, 'reverse': False, 'is_test': False, 'memory': 'sqrt', 'checkpoints': ()}
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
          array_chunks@1 = array_chunks(stack) {'order': 1}
          loop@2 = loop(h, array_chunks@1) {'carried': 1, 'captured': 0, 'condition': False, 'reverse': False, 'is_test': False, 'memory': 'recompute', 'checkpoints': ()}
            sub_block:
              (p@1: float64[2], p@2: stack of float64[2]) {
                loop@3 = loop(p@1, p@2) {'carried': 1, 'captured': 0, 'condition': False, 'reverse': False, 'is_test': False, 'memory': 'store', 'checkpoints': ()}
                  sub_block:
                    (h: float64[2], x: float64[2]) {
                      next = mul(h, x)
                      -> next
                    }
                -> loop@3
              }
          last = assign(loop@2)
          -> last
        }
    """)
