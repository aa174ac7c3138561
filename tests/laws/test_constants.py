"""Machine code for an op with a constant operand gives the same result as for an array of that number."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.ir import INTEGERS, Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import CoreError, ExecutionError, ProgramError
from core.ir.registry import lookup
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.laws.agreement import both
from tests.laws.examples import OPS
from tests.programs import Sketch

NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.5, np.inf, -np.inf)  # NaN cannot be an attribute
BINARY = sorted(name for name, spec in OPS.items() if spec.elementwise and len(spec.inputs) == 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", BINARY)
def test_an_op_with_a_constant_agrees_with_the_reference_executor(name, dtype):
    b = BlockBuilder()
    x = b.param(TensorType((len(NUMBERS) + 1,), dtype))
    results = []
    for number in NUMBERS:
        constant = b.emit("fill_constant", shape=x.shape, value=number, dtype=dtype)
        try:
            results += [lookup(name)(x, constant), lookup(name)(constant, x)]
        except CoreError:  # the op takes no floats
            return
    both(b.build(results), [np.array((*NUMBERS, np.nan), dtype)])


def bits(block: Block, *values: np.ndarray) -> tuple[list[bytes], list[bytes]]:
    """The bytes of all results, of machine code and of the reference executor."""
    found, wanted = (
        [np.asarray(r).tobytes() for r in run(Run(), *values)]
        for run in (native_interpreter(block, CPU), interpreter_of(block))
    )
    return found, wanted


def test_kernels_that_differ_only_in_the_sign_of_a_zero_are_not_merged():
    b = BlockBuilder()
    results = []
    for shape, zero in (((6,), 0.0), ((2, 3), -0.0)):
        flags, x = b.param(TensorType(shape, "bool")), b.param(TensorType(shape, "float64"))
        results.append(lookup("where")(flags, x, b.constant(zero, "float64", shape)))
    flags, x = np.array([True, False, True, False, True, False]), np.arange(6.0)

    found, wanted = bits(b.build(results), flags, x, flags.reshape(2, 3), x.reshape(2, 3))

    assert found == wanted
    assert wanted[0] != wanted[1]


def test_ops_that_differ_only_in_the_sign_of_a_zero_are_not_shared():
    b = BlockBuilder()
    block = b.build([b.constant(zero, "float64", (2,)) for zero in (0.0, -0.0)])

    found, wanted = bits(optimize(block))

    assert found == wanted == [np.array([zero] * 2).tobytes() for zero in (0.0, -0.0)]


def test_zeros_of_both_signs_are_not_a_uniform_constant():
    b = BlockBuilder()
    zeros = b.emit("assign_value", shape=(2,), values=(0.0, -0.0), dtype="float64")
    found, wanted = bits(b.build([lookup("mul")(b.param(TensorType((2,), "float64")), zeros)]), np.ones(2))
    assert found == wanted == [np.array([0.0, -0.0]).tobytes()]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("times", [1, 2, 7, 300])
def test_the_product_of_a_repeated_number_is_its_power(times, dtype):
    """Integer overflow wraps around, as in numpy."""
    x = np.array([2, 3, 1, 0], dtype)
    b = BlockBuilder()
    repeated = lookup("expand")(b.param(TensorType((4, 1), dtype)), shape=(4, times))
    block = b.build([lookup("reduce_prod")(repeated, axes=(1,)), lookup("reduce_prod")(repeated)])
    with np.errstate(over="ignore"):
        powers = np.array([np.full(times, n, dtype).prod(dtype=dtype) for n in x])

    each, whole = native_interpreter(block, CPU)(Run(), x.reshape(4, 1))

    np.testing.assert_array_equal(each, powers)
    assert whole == 0


REFUSED = {"mod": 0, "floor_div": 0, "bitwise_left_shift": -1}
"""Integer ops, and a second operand that they refuse."""


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("native", [False, True])
def test_constants_that_an_op_refuses_are_an_error_only_if_the_op_runs(name, native):
    s = Sketch()
    s.param("w", [0.5, 0.25])
    s.feed("refuse", True, "bool")
    s.op("sin", "w", out="h")
    with s.block() as refused:
        number = s.op(name, s.const(5, [2], "int64"), s.const(REFUSED[name], [2], "int64"))
        s.op("mul", "h", s.op("cast", number, dtype="float64"), out="h")
    s.branch("refuse", refused, None)
    s.total("h")
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    executable = executable.compiled() if native else executable

    found = executable.step(s.values | {"refuse": np.array(False)}).gradients["w"]

    np.testing.assert_allclose(found, np.cos([0.5, 0.25]), rtol=1e-15)
    with pytest.raises(ExecutionError, match=rf"block 1, op 2 \({name}\)"):
        executable.step(s.values)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("attrs", [{"scale": 2.0**64}, {"bias": -(2.0**64)}])
def test_a_constant_outside_the_dtype_of_its_operand_is_refused(dtype, attrs):
    b = BlockBuilder()
    x = b.param(TensorType((2,), dtype))
    with pytest.raises(ProgramError, match=f"is not a value of dtype {dtype}"):
        lookup("scale")(x, **attrs)
    with pytest.raises(ProgramError, match=f"is not a value of dtype {dtype}"):
        lookup("increment")(x, step=next(iter(attrs.values())))
