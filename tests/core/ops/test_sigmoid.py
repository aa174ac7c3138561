"""The logistic sigmoid where its exponential leaves the range of numbers, in every executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from core.runtime.native import native_interpreter
from core.runtime.reference import execute
from core.runtime.run import Run

LOW = np.array([-87.0, -88.5, -88.8, -89.0, -92.0, -100.0, -103.0, -110.0, -np.inf, np.inf, np.nan, 100.0, 0.0])
"""Below -88.7, ``exp(-x)`` exceeds the float32 numbers, and the sigmoid is denormal."""


def interpreted(block: Block, args: list[Any]) -> list[Any]:
    return list(execute(block, args))


def compiled(block: Block, args: list[Any]) -> list[Any]:
    return list(native_interpreter(block, CPU)(Run(), *args))


@pytest.mark.parametrize("run", [interpreted, compiled])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("type", ["sigmoid", "logsigmoid", "softplus", "silu"])
def test_denormal_sigmoids_and_gradients_made_of_them_are_those_of_float64(type, dtype, run):
    x = LOW.astype(as_dtype(dtype))
    b = BlockBuilder()
    block = b.build([b.emit(type, b.param(TensorType(x.shape, dtype)))])
    wide = BlockBuilder()
    exact = wide.build([wide.emit(type, wide.param(TensorType(x.shape, "float64")))])
    ones = np.ones_like(x)

    found = run(optimize(vjp(block)), [x, ones])

    wanted = execute(optimize(vjp(exact)), [x.astype("float64"), ones.astype("float64")])
    for one, value in zip(found, wanted, strict=True):
        with np.errstate(all="ignore"):
            near = np.asarray(value).astype(as_dtype(dtype)).astype("float64")
        unit = 2.0**-7 if dtype == "bfloat16" else 2.0**-22
        np.testing.assert_allclose(one.astype("float64"), near, rtol=unit, atol=2e-43 if dtype == "float32" else 2e-40)
