"""Machine code for 16-bit floats agrees with the reference executor on every op and its gradient, and on programs.

Here both round the result of every op, so most results agree to the bit. A sum in another order, or an elementary
function with another last bit in float32, may round to the neighboring 16-bit number. Results that stay in float32 have
laws of their own (test_precision, test_unrounded).
"""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.autodiff.adjoint import vjp
from core.compiler.compile import GradientQuery, compile_gradient, key_of, optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError, ProgramError
from core.ir.precision import HALVES
from core.ops.common.types import as_dtype
from core.runtime.native import native_interpreter
from core.runtime.reference import execute, interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.laws.agreement import WIDTHS, cotangent, like, values_like
from tests.laws.examples import OPS, block_for, examples_of
from tests.laws.random_programs import EVERY, POLICIES
from tests.laws.test_precision import HALF_CASES, flat, in_dtype, is_float
from tests.rounding import ROUNDING
from tests.strategies import programs

QUICK = HALF_CASES[::33]
"""A sample of the cases; the others are slow."""


def assert_close(found: np.ndarray, wanted: np.ndarray, units: float) -> None:
    """Equal within `units` in the last place of the largest element; infinities and NaN at the same places."""
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if not is_float(wanted):
        np.testing.assert_array_equal(found, wanted)
        return
    unit = float(ml_dtypes.finfo(wanted.dtype).eps)
    found, wanted = found.astype("f8"), wanted.astype("f8")
    largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=units * max(unit, 1e-5) * largest + 1e-30)


def both(block: Block, args: list[Any], units: float) -> None:
    """Compare the results of machine code and of the reference executor, or their errors."""
    with np.errstate(all="ignore"):
        try:
            wanted = interpreter_of(block)(Run(), *args)
        except ExecutionError as refused:
            with pytest.raises(ExecutionError) as caught:
                native_interpreter(block, ROUNDING)(Run(), *args)
            assert caught.value.code == refused.code
            return
        found = native_interpreter(block, ROUNDING)(Run(), *args)
    for f, w in zip(found, wanted, strict=True):
        assert (f is None) == (w is None)
        for one, other in zip(flat(f), flat(w), strict=True):
            if w is not None:
                assert_close(one, other, units)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("name", "i"), [pytest.param(*c, marks=[] if c in QUICK else [pytest.mark.slow]) for c in HALF_CASES]
)
def test_an_op_and_its_gradient_agree_with_the_reference_executor(name, i, dtype):
    spec = OPS[name]
    example = in_dtype(examples_of(spec)[i], dtype)
    try:
        block = block_for(spec, example)
    except ProgramError:
        pytest.skip("takes no 16-bit floats")
    values = list(example.inputs)
    wrt = [block.params[k] for k, x in enumerate(values) if not isinstance(x, list) and is_float(x)]
    if spec.differentiable and wrt:
        rng = np.random.default_rng(0)
        results = zip(execute(block, values), block.results, strict=True)
        values += [cotangent(rng, value) for value, name in results if block.types[name].is_float]
        block = vjp(block, wrt)
    both(optimize(block), values, units=1)


@pytest.mark.parametrize("dtype", HALVES)
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(document=programs(), seed=st.integers(0, 2**16), width=st.sampled_from(WIDTHS))
def test_a_random_program_agrees_with_the_reference_executor(dtype, document, seed, width):
    compare(dtype, document, seed, width)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(document=programs(), seed=st.integers(0, 2**16), width=st.sampled_from(WIDTHS))
def test_many_random_programs_agree_with_the_reference_executor(dtype, document, seed, width):
    compare(dtype, document, seed, width)


def compare(dtype: str, document: Any, seed: int, width: int) -> None:
    """Compare a random program for vectors of `width` numbers and its gradients."""
    values = values_like(seed, dtype, width)
    program = read(like(document, dtype, width))
    query = GradientQuery(targets=("loss",), loop_memory=random.Random(seed).choice(POLICIES), **EVERY)
    executable = compile_gradient(program, query, fetch=["loss"])
    args = [key_of(0, 0) if v.role == "key" else values[v.name] for v in executable.inputs]
    both(executable.interpreter.block, args, units=4)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_result_inside_a_fused_pass_is_rounded_as_by_the_reference_executor(dtype):
    """Arithmetic is exact in float32 but for its rounding, so all bits agree: of denormals and infinities too."""
    rng = np.random.default_rng(0)
    size = 5000
    b = BlockBuilder()
    operands = [b.param(TensorType((size,), dtype), name) for name in "xyz"]
    for _ in range(40):
        one, other = (operands[i] for i in rng.choice(len(operands), 2))
        operands.append(b.emit(str(rng.choice(["add", "sub", "mul", "div"])), one, other))
    block = optimize(b.build(operands[3:]))
    bits = rng.integers(0, 1 << 16, (3, size), dtype=np.uint16)
    args = list(bits.view(as_dtype(dtype)))

    with np.errstate(all="ignore"):
        found, wanted = native_interpreter(block, ROUNDING)(Run(), *args), interpreter_of(block)(Run(), *args)

    for one, other in zip(found, wanted, strict=True):
        one, other = one.astype("f4"), other.astype("f4")
        np.testing.assert_array_equal(one.view("u4")[~np.isnan(other)], other.view("u4")[~np.isnan(other)])
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other))


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_are_added_up_in_float32_and_rounded_once(dtype):
    """In bfloat16, 256 + 1 is 256: only a wider sum of ones goes on."""
    size = 3001
    b = BlockBuilder()
    x = b.param(TensorType((size, 7), dtype), "x")
    sums = [b.emit("reduce_sum", x, axes=axes) for axes in ((0,), (0, 1))]
    block = optimize(b.build([*sums, b.emit("reduce_mean", x, axes=(0,))]))

    column, whole, mean = native_interpreter(block, ROUNDING)(Run(), np.ones((size, 7), as_dtype(dtype)))

    assert np.all(column == as_dtype(dtype).type(size))
    assert whole == as_dtype(dtype).type(7 * size)
    assert np.all(mean == 1)
