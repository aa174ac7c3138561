"""The VJP rule of one op, applied to symbols."""

from __future__ import annotations

import numpy as np
import pytest

import core.compiler.compile  # noqa: F401  (declares every op)
from core.autodiff.vjp import apply_rule
from core.ir import TensorType
from core.ir.builder import BlockBuilder, Value
from core.runtime.reference import execute


def pulled(type: str, dtype: str, *values: np.ndarray, **attrs: object) -> tuple[list[np.ndarray | None], list[str]]:
    """The contribution to each input's cotangent for a seed of ones, and the types of the ops that compute it."""
    b = BlockBuilder()
    ins = [b.param(TensorType(v.shape, dtype), f"x{i}") for i, v in enumerate(values)]
    op = b.make(type, *ins, **attrs)
    outs = b.append(op)
    ct = b.constant(1.0, dtype, outs[0].shape)
    before = len(b.ops)
    parts = apply_rule(b, b.ops[0], (ct,), outs, ins)
    added = [each.type for each in b.ops[before:]]
    block = b.build([p for p in parts if isinstance(p, Value)])
    given = {f"x{i}": v.astype(dtype) for i, v in enumerate(values)}
    found = iter(execute(block, [given[p] for p in block.params]))
    return [None if p is None else next(found) for p in parts], added


def test_a_rule_gives_one_cotangent_for_each_input():
    x, y = np.array([1.0, 2.0]), np.array([3.0, -4.0])

    (dx, dy), _ = pulled("mul", "float64", x, y)

    np.testing.assert_array_equal(dx, y)
    np.testing.assert_array_equal(dy, x)


def test_a_rule_returns_none_for_a_structural_zero():
    (dx, like), _ = pulled("expand_as", "float64", np.array([1.0]), np.zeros(3))

    assert like is None
    np.testing.assert_array_equal(dx, np.ones(3).sum(keepdims=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_full_precision_rules_are_applied_as_written(dtype):
    _, added = pulled("tanh", dtype, np.array([0.5]))

    assert "cast" not in added


def test_a_rule_that_would_round_twice_in_float16_is_computed_in_float32():
    x = np.array([0.3, 5.0])

    (dx,), added = pulled("tanh", "float16", x)

    assert added[0] == "cast" and added[-1] == "cast"
    exact = 1.0 - np.tanh(x.astype(np.float16).astype(np.float64)) ** 2
    np.testing.assert_array_equal(dx, exact.astype(np.float16))  # rounded once: no digit is lost to 1 - out * out
