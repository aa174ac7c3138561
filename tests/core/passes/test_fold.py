"""Constant folding, on printed blocks before and after."""

from __future__ import annotations

from core.passes import fold_constants
from tests.core.blocks import Writer, printed


def test_uniform_constants_and_shapes_are_computed_at_compile_time():
    w = Writer(x=(2, 3))
    w.op("two", "fill_constant", shape=(3,), value=2.0, dtype="float64")
    w.op("four", "square", "two")
    w.op("zeros", "fill_zeros_like", "x")
    w.op("wide", "expand_as", "four", "x")
    w.op("y", "sum", "x", "zeros", "wide")
    block = w.block("y")

    assert str(block) == printed("""
        (x: float64[2, 3]) {
          two = fill_constant() {'shape': (3,), 'value': 2.0, 'dtype': 'float64'}
          four = square(two)
          zeros = fill_zeros_like(x)
          wide = expand_as(four, x)
          y = sum(x, zeros, wide)
          -> y
        }
    """)
    assert str(fold_constants(block)) == printed("""
        (x: float64[2, 3]) {
          two = fill_constant() {'shape': (3,), 'value': 2.0, 'dtype': 'float64'}
          four = fill_constant() {'shape': (3,), 'value': 4.0, 'dtype': 'float64'}
          zeros = fill_constant() {'shape': (2, 3), 'value': 0.0, 'dtype': 'float64'}
          wide = fill_constant() {'shape': (2, 3), 'value': 4.0, 'dtype': 'float64'}
          y = sum(x, zeros, wide)
          -> y
        }
    """)


def test_a_negative_zero_is_not_folded():
    w = Writer(x=(2,))
    w.op("zero", "fill_constant", shape=(), value=0.0, dtype="float64")
    w.op("negative", "neg", "zero")
    w.op("y", "mul", "x", "negative")
    block = w.block("y")

    assert str(block) == printed("""
        (x: float64[2]) {
          zero = fill_constant() {'shape': (), 'value': 0.0, 'dtype': 'float64'}
          negative = neg(zero)
          y = mul(x, negative)
          -> y
        }
    """)
    assert str(fold_constants(block)) == printed("""
        (x: float64[2]) {
          zero = fill_constant() {'shape': (), 'value': 0.0, 'dtype': 'float64'}
          negative = neg(zero)
          y = mul(x, negative)
          -> y
        }
    """)
