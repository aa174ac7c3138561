"""16-bit parameters: every optimiser updates them as in float64, even if each update is below their spacing."""

from __future__ import annotations

import numpy as np
import pytest

from core.compiler.compile import Optimizer, compile_update
from core.ir import Program, TensorType, Variable
from core.ir.builder import BlockBuilder
from core.ir.precision import HALVES
from core.ops.common.types import as_dtype
from core.optim.optimizers import OPTIMIZERS

FIRST, GRADIENT = np.array([1.0, -2.0, 0.5]), np.array([2.0**-12, -(2.0**-13), 2.0**-10])
"""Gradients whose squares underflow in float16, and whose updates are far below the spacing of the parameters."""
RATES = {"sgd": 0.1, "momentum": 0.02, "adadelta": 4.0, "lars": 1.0}
"""Rates for updates that float32 can represent. Other optimisers' updates hardly depend on the gradient's size."""


def updates(kind: str, dtype: str, steps: int) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """The parameter after each of `steps` updates, and the last state of the optimiser."""
    b = BlockBuilder()
    w = Variable("w", TensorType((3,), dtype), "parameter")
    program = Program(b.build([b.param(w.type, "w")]), (w,))
    update = compile_update(program, ["w"], Optimizer(kind, {"learning_rate": RATES.get(kind, 1e-4)}))
    value, state = FIRST.astype(as_dtype(dtype)), update.executable.initial_state()
    seen = []
    for step in range(steps):
        sign = 1.0 if step % 4 else -0.5
        out = update.step({"w": value}, {"w": (sign * GRADIENT).astype(as_dtype(dtype))}, state)
        value, state = out.parameters["w"], state | out.optimizer_state
        seen.append(value)
    return seen, state


@pytest.mark.sampled(1, each="kind")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_many_small_updates_of_16_bit_parameters_equal_rounded_float64_updates(kind, dtype):
    found, state = updates(kind, dtype, 200)
    wanted, _ = updates(kind, "float64", 200)

    assert {str(v.dtype) for v in found} == {dtype}
    assert {str(v.dtype) for name, v in state.items() if name != "w/step"} == {"float32"}
    whole = found[-1].astype("float64") + state["w/rest"]
    moved, true = whole - FIRST, wanted[-1] - FIRST
    np.testing.assert_allclose(moved, true, rtol=2e-3, atol=4e-6)
    np.testing.assert_array_equal(found[-1], whole.astype("float32").astype(as_dtype(dtype)))


def test_updates_below_the_spacing_of_the_dtype_add_up():
    found, _ = updates("adam", "bfloat16", 200)

    first, last = (each.astype("float64") for each in (found[0], found[-1]))
    np.testing.assert_array_equal(first, FIRST)  # an update of 1e-4 is less than half the spacing
    assert not np.array_equal(last, FIRST)
