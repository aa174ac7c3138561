"""Tensor arrays that programs write, on the emulated device: in loops and branches, with first and second gradients."""

from __future__ import annotations

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.device.gpu import DEVICE_TARGET
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.plan.partition import plan_parts
from core.runtime.native import native_interpreter
from core.runtime.reference import NATIVE, interpreter_of
from core.runtime.run import Run, RunLimits
from core.wire import read
from tests.array_programs import array_program
from tests.core.plan.test_tensor_arrays import READERS, gradient_of_record, recurrence
from tests.device.driver import EmulatedDriver
from tests.device.emulator import EmulatedBackend, compiler
from tests.device.test_region import backend_of
from tests.laws.agreement import same
from tests.laws.random_programs import second_order
from tests.programs import Sketch

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")


def agree(s: Sketch, *inputs: str, order: int = 1, whole: bool = True) -> None:
    program = read(s.document)
    executable = second_order(program, inputs=inputs) if order == 2 else compile_gradient(program, LOSS)
    block, args = executable.interpreter.block, [s.values[v.name] for v in executable.inputs]
    assert not whole or not plan_parts(block, DEVICE_TARGET).refused
    native = native_interpreter(block, backend_of(EmulatedDriver()))
    assert not whole or [call.op.type for call in native.calls] == [NATIVE]
    wanted = interpreter_of(block)(Run(), *args)
    for _ in range(2):
        for found, want in zip(native(Run(), *args), wanted, strict=True):
            same(found, want)


LOSS = GradientQuery(loss="loss")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("trips", "order"), [(0, 1), (1, 1), (300, 1), (0, 2), (9, 2)])
def test_a_loop_that_writes_and_reads_an_array_is_one_region(trips, order):
    agree(recurrence(trips), "w", "x", order=order)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_on_arrays_agree_with_the_reference_executor(seed):
    """Elements of one thread, and of more numbers than a block has threads."""
    agree(array_program(seed, width=(2, 600)[seed % 2], rooms=1 + seed % 2), "h0", "k0", whole=False)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_arrays_of_other_floats_agree_with_the_reference_executor(dtype):
    agree(array_program(3, dtype, 17), "h0", "k0", whole=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
@pytest.mark.parametrize("order", [1, 2])
def test_many_random_programs_on_arrays_agree_with_the_reference_executor(seed, order):
    agree(array_program(seed, rooms=1 + seed % 2), "h0", "k0", order=order, whole=False)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_threads_on_arrays_never_race(seed):
    """The emulator reports a read or a write that no barrier separates from another thread's write."""
    s = array_program(seed, rooms=1 + seed % 2)
    executable = compile_gradient(read(s.document), LOSS)
    native = native_interpreter(executable.interpreter.block, EmulatedBackend())

    native(Run(), *[s.values[v.name] for v in executable.inputs])


@pytest.mark.parametrize("reader", READERS)
def test_an_element_of_what_a_loop_records_is_read_by_index(reader):
    block = gradient_of_record(reader, 2, through_a_matrix=False)
    args = [np.random.default_rng(7).standard_normal(shape) for shape in ((4, 2), (2,), (2,))]
    wanted = interpreter_of(block)(Run(), *args)

    for backend in (EmulatedBackend(), backend_of(EmulatedDriver())):
        for found, want in zip(native_interpreter(block, backend)(Run(), *args), wanted, strict=True):
            same(found, want)


def test_threads_that_add_arrays_never_race():
    """Elements of more numbers than a block has threads, and missing elements of the first array."""
    b = BlockBuilder()
    x, y = (b.param(TensorType((n, 700), "float32")) for n in (3, 6))
    total = b.emit("sum", *(b.emit("array_unstack", each) for each in (x, y)))
    block = b.build([b.emit("array_join", total, shape=(700,), dtype="float32", count=6)])
    args = [np.random.default_rng(i).standard_normal((n, 700)).astype("float32") for i, n in enumerate((3, 6))]
    wanted = args[1].copy()
    wanted[:3] += args[0]

    assert not plan_parts(block, DEVICE_TARGET).refused
    for backend in (EmulatedBackend(), backend_of(EmulatedDriver())):
        (found,) = native_interpreter(block, backend)(Run(), *args)
        np.testing.assert_array_equal(found, wanted)


def indexed(at: int) -> Sketch:
    s = Sketch()
    x = s.param("x", [[1.0, 2.0], [3.0, 4.0]])
    s.feed("at", at, "int64")
    s.op("array_unstack", x, out="array")
    s.op("array_write", s.op("sin", s.op("array_read", "array", "at")), "at", "array", out="array")
    s.total(s.op("array_read", "array", s.const(1, dtype="int64")))
    return s


@pytest.mark.parametrize("at", [-1, 2, 1 << 50])
def test_an_index_beyond_the_end_has_the_error_of_the_reference_executor(at):
    s = indexed(at)
    executable = compile_gradient(read(s.document), LOSS)
    block, args = executable.interpreter.block, [np.asarray(s.values[v.name]) for v in executable.inputs]
    for run in (interpreter_of(block), native_interpreter(block, backend_of(EmulatedDriver()))):
        with pytest.raises(ExecutionError) as caught:
            run(Run(), *args)
        assert (caught.value.code, caught.value.location.type) == ("index_out_of_range", "array_read")
    agree(indexed(1))


def test_an_array_beyond_the_limit_of_memory_is_refused():
    s = recurrence(100)
    executable = compile_gradient(read(s.document), LOSS).on(backend_of(EmulatedDriver())).compiled()
    with pytest.raises(ExecutionError) as caught:
        executable.step(s.values, limits=RunLimits(max_bytes=3000))
    assert caught.value.code == "too_large"
