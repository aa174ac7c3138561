"""Merged loops, on printed blocks before and after."""

from __future__ import annotations

from core.passes import share_common
from tests.core.blocks import Writer, printed


def test_merged_loops_record_the_values_of_both():
    def loop(results):
        body = Writer(go="bool", h=(2,), w=(2,))
        body.op("mixed", "mul", "h", "w")
        body.op("next", "tanh", "mixed")
        return {"sub_block": body.block(results), "carried": 2, "captured": 1}

    w = Writer(go="bool", h=(2,), w=(2,))
    w.op("end last products", "loop", "go", "h", "w", **loop("go next mixed"))
    w.op("again final states", "loop", "go", "h", "w", **loop("go next h"))
    block = w.block("last products final states")

    assert str(block) == printed("""
        (go: bool[], h: float64[2], w: float64[2]) {
          end, last, products = loop(go, h, w) {'carried': 2, 'captured': 1, 'condition': True, 'reverse': False, 'is_test': False, 'memory': 'store', 'checkpoints': (), 'counter': None}
            sub_block:
              (go: bool[], h: float64[2], w: float64[2]) {
                mixed = mul(h, w)
                next = tanh(mixed)
                -> go, next, mixed
              }
          again, final, states = loop(go, h, w) {'carried': 2, 'captured': 1, 'condition': True, 'reverse': False, 'is_test': False, 'memory': 'store', 'checkpoints': (), 'counter': None}
            sub_block:
              (go: bool[], h: float64[2], w: float64[2]) {
                mixed = mul(h, w)
                next = tanh(mixed)
                -> go, next, h
              }
          -> last, products, final, states
        }
    """)
    assert str(share_common(block)) == printed("""
        (go: bool[], h: float64[2], w: float64[2]) {
          end, last, products, states = loop(go, h, w) {'carried': 2, 'captured': 1, 'condition': True, 'reverse': False, 'is_test': False, 'memory': 'store', 'checkpoints': (), 'counter': None}
            sub_block:
              (go: bool[], h: float64[2], w: float64[2]) {
                mixed = mul(h, w)
                next = tanh(mixed)
                -> go, next, mixed, h
              }
          -> last, products, last, states
        }
    """)
