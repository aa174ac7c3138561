"""Tensor arrays that programs write have machine code, in loops, branches and their adjoints."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.plan.partition import plan_parts
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run, RunLimits
from core.wire import read
from tests.array_programs import array_program
from tests.laws.agreement import both
from tests.laws.random_programs import second_order
from tests.programs import Sketch, check


def compiled(sketch: Sketch, *inputs: str) -> None:
    """The steps of first and second order have only machine code, which agrees with the reference executor."""
    program = read(sketch.document)
    for executable in (compile_gradient(program, GradientQuery(loss="loss")), second_order(program, inputs=inputs)):
        assert not plan_parts(executable.interpreter.block, CPU_TARGET).refused
        both(executable.interpreter.block, [sketch.values[v.name] for v in executable.inputs])


def recurrence(trips: int, dtype: str = "float64") -> Sketch:
    """Element j + 1 of an array is tanh(element j times w), for `trips` trips; the loss is about the last element."""
    rng = np.random.default_rng(trips)
    s = Sketch()
    w, x = s.param("w", 0.5 * rng.standard_normal((3, 3)), dtype), s.param("x", rng.standard_normal((2, 3)), dtype)
    s.feed("n", np.array(trips), "int64")
    s.op("create_array", out="array", shape=[2, 3], dtype=dtype)
    s.const(0, (), "int64", out="j")
    s.op("array_write", x, "j", "array", out="array")
    with s.repeat("n"):
        h = s.op("tanh", s.op("matmul", s.op("array_read", "array", "j"), w))
        s.op("increment", "j", out="j", step=1)
        s.op("array_write", h, "j", "array", out="array")
    s.total(s.op("square", s.op("array_read", "array", "n")))
    return s


@pytest.mark.sampled(1)
@pytest.mark.parametrize("trips", [0, 1, 4, 300])
def test_a_loop_that_writes_and_reads_an_array_has_machine_code(trips):
    compiled(recurrence(trips), "w", "x")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_arrays_of_other_floats_have_machine_code(dtype):
    sketch = recurrence(3, dtype)
    block = compile_gradient(read(sketch.document), GradientQuery(loss="loss")).interpreter.block

    assert not plan_parts(block, CPU_TARGET).refused
    both(block, [sketch.values[name] for name in block.params])


def test_the_gradient_of_an_array_in_a_loop_agrees_with_differences():
    check(recurrence(3))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_on_arrays_agree_with_the_reference_executor(seed):
    compiled(array_program(seed, rooms=1 + seed % 2), "h0", "k0")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 180))
@pytest.mark.parametrize(("dtype", "width"), [("float64", 2), ("float32", 17)])
def test_deep_random_programs_on_arrays_agree_with_the_reference_executor(seed, dtype, width):
    sketch = array_program(seed, dtype, width)
    block = compile_gradient(read(sketch.document), GradientQuery(loss="loss")).interpreter.block
    both(block, [sketch.values[name] for name in block.params])


def test_an_array_grows_without_a_loop():
    s = Sketch()
    x = s.param("x", np.arange(2000.0) / 2000)
    s.op("create_array", out="array", shape=[2000], dtype="float64")
    for i in range(5):
        s.op("array_write", s.op("sin", x), s.const(i, (), "int64"), "array", out="array")
    s.total(s.op("array_read", "array", s.const(4, (), "int64")))
    compiled(s, "x")


def test_a_write_does_not_change_the_array_that_it_was_made_from():
    s = Sketch()
    x, y = s.param("x", [1.0, 2.0]), s.param("y", [3.0, 5.0])
    s.const(0, (), "int64", out="i")
    s.op("array_write", x, "i", s.op("create_array", shape=[2], dtype="float64"), out="old")
    s.op("array_write", y, "i", "old", out="new")
    s.total(s.op("mul", s.op("array_read", "old", "i"), s.op("array_read", "new", "i")))
    compiled(s, "x", "y")

    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    found = native_interpreter(executable.interpreter.block, CPU)(Run(), *(s.values[v.name] for v in executable.inputs))
    assert [each.tolist() for each in found[:2]] == [[3.0, 5.0], [1.0, 2.0]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["int64", "bool", "float32"])
def test_arrays_exchange_their_values_on_each_trip(dtype):
    """After three exchanges, the first array has the element of the second one."""
    s = Sketch()
    s.feed("x", [1, 0], dtype)
    s.feed("y", [0, 1], dtype)
    s.const(0, (), "int64", out="i")
    for name, value in (("a", "x"), ("b", "y")):
        s.op("array_write", value, "i", s.op("create_array", shape=[2], dtype=dtype), out=name)
    with s.repeat(3):
        s.op("assign", "a", out="kept")
        s.op("assign", "b", out="a")
        s.op("assign", "kept", out="b")
    s.op("array_read", "a", "i", out="first")
    w = s.param("w", 1.0)
    s.op("assign", w, out="loss")
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"), fetch=["first"])

    assert not plan_parts(executable.interpreter.block, CPU_TARGET).refused
    found = native_interpreter(executable.interpreter.block, CPU)(Run(), *(s.values[v.name] for v in executable.inputs))
    assert found[-1].astype(int).tolist() == [0, 1]


@pytest.mark.parametrize(("op", "at"), [("array_read", 1), ("array_read", -1), ("array_write", 2), ("array_write", -1)])
def test_an_index_outside_of_an_array_is_an_error(op, at):
    s = Sketch()
    x = s.param("x", [1.0, 2.0])
    s.const(0, (), "int64", out="zero")
    s.feed("at", at, "int64")
    s.op("array_write", x, "zero", s.op("create_array", shape=[2], dtype="float64"), out="array")
    if op == "array_write":
        s.op("array_write", x, "at", "array", out="array")
    s.total(s.op("array_read", "array", "zero" if op == "array_write" else "at"))
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    block = executable.interpreter.block

    assert not plan_parts(block, CPU_TARGET).refused
    with pytest.raises(ExecutionError) as caught:
        native_interpreter(block, CPU)(Run(), *(s.values[v.name] for v in executable.inputs))
    assert caught.value.code == "index_out_of_range"


@pytest.mark.parametrize("written", [2, 3])
def test_the_stacks_of_a_loop_must_have_the_same_length(written):
    """A loop over an array of two or three elements and the rows of a matrix [3, 2]."""
    b = BlockBuilder()
    x = b.param(TensorType((3, 2), "float64"))
    array = b.emit("create_array", shape=(2,), dtype="float64")
    for i in range(written):
        array = b.emit("array_write", b.emit("reduce_sum", x, axes=(0,)), b.constant(i, "int64", ()), array)
    inner = BlockBuilder()
    total, element, row = (inner.param(TensorType((2,), "float64")) for _ in range(3))
    body = inner.build([inner.emit("add", total, inner.emit("mul", element, row))])
    stacks = (array, b.emit("array_unstack", x))
    (out,) = b.append(
        b.make(
            "loop", b.constant(0.0, "float64", (2,)), *stacks, sub_block=body, carried=1, captured=0, condition=False
        )
    )
    block = optimize(b.build([out]))
    value = np.arange(6.0).reshape(3, 2) + 1

    assert not plan_parts(block, CPU_TARGET).refused
    both(block, [value])
    if written == 3:
        back = optimize(vjp(block, block.params))
        assert not plan_parts(back, CPU_TARGET).refused
        both(back, [value, np.array([1.0, 2.0])])


def test_a_loop_inside_a_branch_inside_a_loop_has_machine_code():
    """The residuals of the inner loop are stacks that the branch returns and the outer loop records."""
    s = Sketch()
    w = s.param("w", [0.5, -0.25])
    s.op("assign", w, out="h")
    with s.repeat(4):
        go = s.op("greater_than", s.op("reduce_sum", "h"), s.const(0.0))
        with s.block() as yes, s.repeat(3):
            s.op("tanh", s.op("mul", "h", w), out="h")
        with s.block() as no:
            s.op("add", "h", s.const(0.5), out="h")
        s.branch(go, yes, no)
    s.total(s.op("square", "h"))
    compiled(s, "w")


def recorded_values(trips: int) -> Sketch:
    s = Sketch()
    x = s.param("x", np.full(4, 0.5))
    s.op("assign", x, out="h")
    with s.repeat(trips):
        s.op("tanh", s.op("mul", "h", "h"), out="h")
    s.total("h")
    return s


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize(
    ("sketch", "most", "place"), [(recurrence, 3000, "array_write"), (recorded_values, 1000, "while")]
)
def test_a_value_beyond_the_limit_is_refused_whatever_memory_earlier_steps_have_left(sketch, most, place, earlier):
    """48 bytes, and 32 bytes, on each of 100 trips; the limit is also below the memory that a stack has at first."""
    written = sketch(100)
    executable = compile_gradient(read(written.document), GradientQuery(loss="loss")).compiled()
    if earlier:
        executable.step(written.values)

    with pytest.raises(ExecutionError, match=f"recorded more than {most} bytes") as caught:
        executable.step(written.values, limits=RunLimits(max_bytes=most))
    assert (caught.value.code, caught.value.location.type) == ("too_large", place)
    executable.step(written.values, limits=RunLimits(max_bytes=4900))


def gradient_of_record(reader: str, at: int, through_a_matrix: bool) -> Block:
    """The gradient of a program that reads element `at` of what a loop records: (x [4, 2], h [2], cotangent [2]).

    reader: "assigned" reads it behind the loop, "captured" in another loop; "carried" changes it there, too.
    """
    vector, b = TensorType((2,), "float64"), BlockBuilder()
    x, h = b.param(TensorType((4, 2), "float64")), b.param(vector)
    xs = b.emit("array_unstack", x)
    inner = BlockBuilder()
    new = inner.emit("mul", inner.param(vector), inner.param(vector))
    body = inner.build([new, inner.emit("sin", new)])
    h, record = b.append(b.make("loop", h, xs, sub_block=body, carried=1, captured=0, condition=False))
    if through_a_matrix:
        joined = b.emit("array_join", record, shape=(2,), dtype="float64", count=4)
        record = b.emit("array_unstack", joined)
    if reader == "assigned":
        element = b.emit("array_read", b.emit("assign", record), b.constant(at, "int64", ()))
        outs = (b.emit("mul", h, element),)
    else:
        inner = BlockBuilder()
        total, array, row = inner.param(vector), inner.param(record.type), inner.param(vector)
        element = inner.emit("array_read", array, inner.constant(at, "int64", ()))
        total = inner.emit("add", total, inner.emit("mul", element, row))
        results, carried = [total], int(reader == "carried")
        if carried:
            results.append(inner.emit("array_write", total, inner.constant(1, "int64", ()), array))
        numbers = {"carried": 1 + carried, "captured": 1 - carried, "condition": False}
        outs = b.append(b.make("loop", h, record, xs, sub_block=inner.build(results), **numbers))
    block = b.build([outs[0]])
    return optimize(vjp(block, block.params))


READERS = ("captured", "carried", "assigned")


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("reader", READERS)
def test_a_recorded_stack_that_is_read_by_index_gets_a_whole_cotangent(reader, at):
    """The gradient is that of the program in which a matrix stands between the loop and the reader."""
    pulls = [gradient_of_record(reader, at, through_a_matrix) for through_a_matrix in (False, True)]
    rng = np.random.default_rng(at)
    args = [rng.standard_normal(shape) for shape in ((4, 2), (2,), (2,))]
    short, whole = (interpreter_of(pull)(Run(), *args) for pull in pulls)

    for found, wanted in zip(short[-2:], whole[-2:], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-13)
    both(pulls[0], args)


AFTER_A_FAILED_CHECK = """
from tests.core.plan.test_tensor_arrays import read_then_sum
read_then_sum()
"""


def read_then_sum() -> None:
    """A read beyond the end of an array, then a sum of two arrays of 2 MiB, in memory that other values used before."""
    s = Sketch()
    w = s.param("w", np.full((500, 512), 1.5))
    s.feed("at", 2000, "int64")
    others = [s.op("scale", w, scale=1.0 + i) for i in range(8)]
    s.op("array_unstack", w, out="array")
    element = s.op("array_read", "array", "at")
    total = s.op("sum", [s.op("array_unstack", s.op("sin", w)), "array"])
    last = s.op("array_read", total, s.const(0, (), "int64"))
    s.total(s.op("sum", [element, last, *(s.op("reduce_sum", s.op("sin", each), axes=[0]) for each in others)]))
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss")).compiled()
    for _ in range(4):
        with pytest.raises(ExecutionError) as caught:
            executable.step(s.values)
        assert caught.value.code == "index_out_of_range"


def test_a_sum_of_arrays_after_a_failed_check_writes_nothing():
    """Else it would write to memory of others, and end the process."""
    subprocess.run([sys.executable, "-c", AFTER_A_FAILED_CHECK], check=True, timeout=120)


def test_an_element_can_be_appended_to_the_rows_of_a_matrix():
    s = Sketch()
    x, y = s.param("x", np.arange(6.0).reshape(3, 2) / 7), s.param("y", [0.3, 0.5])
    s.op("array_write", s.op("sin", y), s.const(3, (), "int64"), s.op("array_unstack", x), out="array")
    first, last = (s.op("array_read", "array", s.const(i, (), "int64")) for i in (0, 3))
    s.total(s.op("mul", first, last))
    check(s)
    compiled(s, "x", "y")
