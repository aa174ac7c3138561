"""The VJP rule of one op, applied to symbols."""

from __future__ import annotations

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.autodiff.vjp import apply_rule
from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from core.ir.precision import HALVES
from core.ops.common.types import as_dtype
from core.runtime.native import native_interpreter
from core.runtime.reference import execute
from core.runtime.run import Run


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


def interpreted(block: Block, args: list[np.ndarray]) -> list[np.ndarray]:
    return list(execute(block, args))


def compiled(block: Block, args: list[np.ndarray]) -> list[np.ndarray]:
    return list(native_interpreter(block, CPU)(Run(), *args))


def broadcasting(type: str, x: np.ndarray, y: np.ndarray, dtype: str) -> Block:
    b = BlockBuilder()
    return b.build([b.emit(type, *(b.param(TensorType(v.shape, dtype)) for v in (x, y)))])


SMALL, LARGE = np.full(4096, 2.0**-9), np.where(np.arange(4096) % 2, 300.0, -300.0)
ONE = np.array([0.5])


@pytest.mark.parametrize("run", [interpreted, compiled])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("type", "x", "y", "ct"),
    [
        ("mul", SMALL, ONE, np.full(4096, 2.0**-16)),
        ("mul", LARGE, ONE, np.where(np.arange(4096) % 3, 300.0, 301.0)),
        ("div", SMALL, 2 / ONE, np.full(4096, 2.0**-16)),
        ("div", LARGE, ONE, np.where(np.arange(4096) % 3, 300.0, 301.0)),
        ("pow", np.full(4096, 1.0 + 2.0**-7), ONE, np.full(4096, 2.0**-19)),
    ],
    ids=["small products", "large products", "small quotients", "large quotients", "powers"],
)
def test_the_gradient_of_a_broadcast_16_bit_number_is_rounded_once(type, x, y, ct, dtype, run):
    """Terms of the sum are below the least float16, or above the largest one."""
    found, wanted = (
        run(optimize(vjp(block, [block.params[1]])), [v.astype(as_dtype(kind)) for v in (x, y, ct)])[-1]
        for kind in (dtype, "float64")
        for block in (broadcasting(type, x, y, kind),)
    )

    assert found.dtype == as_dtype(dtype)
    np.testing.assert_array_equal(found, wanted.astype(as_dtype(dtype)))
