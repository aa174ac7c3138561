"""Batch normalisation of 16-bit numbers whose scale, shift and statistics are float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ProgramError
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.rounding import ROUNDING

CHANNELS, EPSILON, MOMENTUM = 3, 1e-3, 0.75
KINDS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
RNG = np.random.default_rng(5)
IMAGE = 3 + 2 * RNG.standard_normal((4, CHANNELS, 5))
SCALE, SHIFT = np.array([1.001, 0.4999, -2.0003]), np.array([0.1, 300.01, -0.3])
MEAN, VARIANCE = np.array([3.0001, 2.9, 3.1]), np.array([4.001, 3.9, 0.7])
SEED = RNG.standard_normal(IMAGE.shape)


def wanted(x, ct, fixed):
    """(out, new mean, new variance, dx, dscale, dshift) in float64."""
    scale, shift, mean, variance = (v.astype("f4").astype("f8")[:, None] for v in (SCALE, SHIFT, MEAN, VARIANCE))
    m, v = (mean, variance) if fixed else (f(x, (0, 2), keepdims=True)[0] for f in (np.mean, np.var))
    r = 1 / np.sqrt(v + EPSILON)
    unit = (x - m) * r
    dx = ct * scale * r
    if not fixed:
        dx = dx - dx.mean((0, 2), keepdims=True) - unit * (dx * unit).mean((0, 2), keepdims=True)
    new = (mean, variance) if fixed else (MOMENTUM * a + (1 - MOMENTUM) * b for a, b in ((mean, m), (variance, v)))
    return unit * scale + shift, *(each[:, 0] for each in new), dx, (ct * unit).sum((0, 2)), ct.sum((0, 2))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("dtype", KINDS)
def test_values_and_gradients_have_the_dtypes_of_their_operands_and_their_precision(dtype, fixed):
    b = BlockBuilder()
    x = b.param(TensorType(IMAGE.shape, dtype))
    others = [b.param(TensorType((CHANNELS,), "float32")) for _ in range(4)]
    block = b.build(b.emit("batch_norm", x, *others, epsilon=EPSILON, momentum=MOMENTUM, is_test=fixed))
    given = [IMAGE.astype(KINDS[dtype]), *(v.astype("f4") for v in (SCALE, SHIFT, MEAN, VARIANCE))]
    ct = SEED.astype(KINDS[dtype])
    zeros = [np.zeros(CHANNELS, "f4")] * 2
    values = wanted(given[0].astype("f8"), ct.astype("f8"), fixed)
    adjoint = optimize(vjp(block, block.params[:3]))

    for run in (interpreter_of, lambda each: native_interpreter(each, ROUNDING)):
        found = run(adjoint)(Run(), *given, ct, *zeros)
        for one, value, kind in zip(found, values, [dtype, *["float32"] * 2, dtype, *["float32"] * 2], strict=True):
            assert one.dtype == KINDS.get(kind, np.float32)
            unit = UNIT.get(kind, 1e-6)
            np.testing.assert_allclose(one.astype("f8"), value, rtol=1.01 * unit, atol=unit * 1e-2 + 2e-5)


def test_other_dtypes_are_refused():
    for x, other in (("float32", "float16"), ("float16", "bfloat16"), ("bfloat16", "float64"), ("float64", "float32")):
        b = BlockBuilder()
        image, vectors = b.param(TensorType((2, 3), x)), [b.param(TensorType((3,), other)) for _ in range(4)]
        with pytest.raises(ProgramError, match="dtype"):
            b.emit("batch_norm", image, *vectors)
