"""Sums of 16-bit floats over a program, and gradients at extreme inputs, where squares overflow and differences vanish.

tests/laws/test_precision.py checks every single op in 16 bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.precision import HALVES
from core.ir.registry import REGISTRY, Example
from core.ops.common.types import as_dtype
from core.runtime.reference import execute
from tests.laws.examples import block_for

TRIPS = 5000
"""More than either dtype can count: 256 + 1 is 256 in bfloat16, and 2048 + 1 is 2048 in float16."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", HALVES)
def test_the_gradient_of_a_weight_read_thousands_of_times_is_the_sum_of_all_contributions(dtype):
    b = BlockBuilder()
    w = b.param(TensorType((), dtype))
    block = b.build([b.emit("assign", w) for _ in range(TRIPS)])

    pulled = optimize(vjp(block))
    found = execute(pulled, [np.zeros((), as_dtype(dtype)), *np.ones((TRIPS, 1), as_dtype(dtype))[:, 0]])[-1]

    assert found.dtype == as_dtype(dtype)
    assert float(found) == float(np.asarray(TRIPS, as_dtype(dtype)))


@pytest.mark.parametrize("memory", ["store", "recompute"])
@pytest.mark.parametrize("dtype", HALVES)
def test_the_gradient_of_a_weight_read_on_every_trip_is_the_sum_over_all_trips(dtype, memory):
    inner = BlockBuilder()
    _, i, h, w = (inner.param(TensorType((), t)) for t in ("bool", "int64", dtype, dtype))
    after = inner.emit("increment", i)
    limit = inner.emit("fill_constant", shape=(), value=float(TRIPS), dtype="int64")
    body = inner.build([inner.emit("less_than", after, limit), after, h, w * 1.0])
    b = BlockBuilder()
    w = b.param(TensorType((), dtype))
    start = [b.constant(1, "bool"), b.constant(0, "int64"), b.constant(0.0, dtype)]
    *_, stack = b.emit("loop", *start, w, sub_block=body, carried=3, captured=1, memory=memory)
    block = b.build([b.emit("array_stack", stack)])

    found = execute(optimize(vjp(block)), [np.zeros((), as_dtype(dtype)), np.ones(TRIPS, as_dtype(dtype))])[-1]

    assert found.dtype == as_dtype(dtype)
    assert float(found) == float(np.asarray(TRIPS, as_dtype(dtype)))


FAR: list[tuple[str, dict[str, Any], list[float], list[float]]] = [
    ("atan2", {}, [3e200, 4e200], [1.6e-201, -1.2e-201]),
    ("atan2", {}, [3e-200, 4e-200], [1.6e199, -1.2e199]),
    ("asinh", {}, [4e200], [2.5e-201]),
    ("asinh", {}, [-4e200], [2.5e-201]),
    ("expm1", {}, [-100.0], [math.exp(-100)]),
    ("elu", {"alpha": 2.0}, [-100.0], [2 * math.exp(-100)]),
    ("softplus", {"beta": 2.0}, [1.5e308], [1.0]),
    ("softplus", {"beta": -2.0}, [-1.5e308], [1.0]),
    ("gelu", {"approximate": True}, [1e200], [1.0]),
    ("gelu", {"approximate": True}, [-1e200], [0.0]),
    ("hard_swish", {}, [1.5e308], [1.0]),
]


@pytest.mark.parametrize(("name", "attrs", "at", "wanted"), FAR)
def test_gradients_at_extreme_inputs_neither_overflow_nor_vanish(name, attrs, at, wanted):
    args = [np.asarray(x) for x in at]
    block = block_for(REGISTRY[name], Example(tuple(args), (), attrs))

    value, *found = execute(vjp(block), [*args, np.asarray(1.0)])

    assert np.isfinite(value)
    np.testing.assert_allclose(found, wanted, rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("x", [-8.0, -12.0, -30.0])
def test_gelu_by_tanh_is_precise_for_large_negative_inputs(x):
    block = block_for(REGISTRY["gelu"], Example((np.asarray(x),), (), {"approximate": True}))

    found = float(execute(block, [np.asarray(x)])[0])

    z = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    assert found == pytest.approx(x * math.exp(z) / (1 + math.exp(z)), rel=1e-12)
