"""Dead code elimination, on printed blocks before and after."""

from __future__ import annotations

from core.passes import eliminate_dead
from tests.core.blocks import Writer, printed


def test_dead_ops_are_removed_and_parameters_stay():
    w = Writer(x=(2,), y=(2,))
    w.op("used", "tanh", "x")
    w.op("unused", "exp", "y")
    w.op("out", "mul", "used", "x")
    block = w.block("out")

    assert str(block) == printed("""
        (x: float64[2], y: float64[2]) {
          used = tanh(x)
          unused = exp(y)
          out = mul(used, x)
          -> out
        }
    """)
    assert str(eliminate_dead(block)) == printed("""
        (x: float64[2], y: float64[2]) {
          used = tanh(x)
          out = mul(used, x)
          -> out
        }
    """)


def test_unread_results_and_operands_of_branches_are_removed():
    yes = Writer(x=(2,), y=(2,))
    yes.op("a", "tanh", "x")
    yes.op("c", "exp", "y")
    no = Writer(x=(2,), y=(2,))
    no.op("a", "sin", "x")
    no.op("c", "cos", "y")
    w = Writer(go="bool", x=(2,), y=(2,))
    blocks = {"true_block": yes.block("a c"), "false_block": no.block("a c")}
    w.op("first second", "if_else", "go", "x", "y", **blocks)
    block = w.block("first")

    assert str(block) == printed("""
        (go: bool[], x: float64[2], y: float64[2]) {
          first, second = if_else(go, x, y) {'memory': 'store', 'checkpoints': ()}
            true_block:
              (x: float64[2], y: float64[2]) {
                a = tanh(x)
                c = exp(y)
                -> a, c
              }
            false_block:
              (x: float64[2], y: float64[2]) {
                a = sin(x)
                c = cos(y)
                -> a, c
              }
          -> first
        }
    """)
    assert str(eliminate_dead(block)) == printed("""
        (go: bool[], x: float64[2], y: float64[2]) {
          first = if_else(go, x) {'memory': 'store', 'checkpoints': ()}
            true_block:
              (x: float64[2]) {
                a = tanh(x)
                -> a
              }
            false_block:
              (x: float64[2]) {
                a = sin(x)
                -> a
              }
          -> first
        }
    """)


def test_unread_stacks_of_loops_are_removed_but_no_carried_values():
    body = Writer(go="bool", h=(2,), w=(2,))
    body.op("mixed", "mul", "h", "w")
    body.op("next", "tanh", "mixed")
    w = Writer(go="bool", h=(2,), w=(2,))
    loop = {"sub_block": body.block("go next mixed h"), "carried": 2, "captured": 1}
    w.op("end last products states", "loop", "go", "h", "w", **loop)
    block = w.block("last states")

    assert str(block) == printed("""
        (go: bool[], h: float64[2], w: float64[2]) {
          end, last, products, states = loop(go, h, w) {'carried': 2, 'captured': 1, 'condition': True, 'reverse': False, 'is_test': False, 'memory': 'store', 'checkpoints': (), 'counter': None}
            sub_block:
              (go: bool[], h: float64[2], w: float64[2]) {
                mixed = mul(h, w)
                next = tanh(mixed)
                -> go, next, mixed, h
              }
          -> last, states
        }
    """)
    assert str(eliminate_dead(block)) == printed("""
        (go: bool[], h: float64[2], w: float64[2]) {
          end, last, states = loop(go, h, w) {'carried': 2, 'captured': 1, 'condition': True, 'reverse': False, 'is_test': False, 'memory': 'store', 'checkpoints': (), 'counter': None}
            sub_block:
              (go: bool[], h: float64[2], w: float64[2]) {
                mixed = mul(h, w)
                next = tanh(mixed)
                -> go, next, h
              }
          -> last, states
        }
    """)
