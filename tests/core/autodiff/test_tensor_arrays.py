"""Gradients of programs on tensor arrays whose cotangents have fewer or more elements than the arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import ExecutionError
from core.plan.partition import plan_parts
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.array_programs import array_program
from tests.laws.agreement import both
from tests.programs import EXECUTOR, Sketch, check, close, grads

VECTOR = TensorType((2,), "float64")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_gradients_of_random_programs_on_runs_of_arrays_agree_with_differences(seed):
    check(array_program(seed, rooms=2, runs=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_gradients_of_deep_random_programs_on_runs_of_arrays_agree_with_differences(seed):
    sketch = array_program(seed, rooms=3, runs=True)
    check(sketch)
    block = compile_gradient(read(sketch.document), GradientQuery(loss="loss")).interpreter.block
    both(block, [sketch.values[name] for name in block.params])


def numbers(count: int, name: str = "x") -> Sketch:
    """A sketch with a parameter [count], its elements in the tensor array of the same name in capitals."""
    s = Sketch()
    s.op("array_unstack", s.param(name, np.arange(1.0, count + 1)), out=name.upper())
    return s


def at(s: Sketch, index: int) -> str:
    return s.const(index, (), "int64")


@pytest.mark.parametrize("index", [0, 3, 4])
def test_the_cotangent_of_an_element_of_flattened_runs_belongs_to_that_element(index):
    s = numbers(5)
    s.op("array_flatten", s.op("array_chunks", "X"), out="flat")
    s.op("square", s.op("array_read", "flat", at(s, index)), out="loss")

    assert grads(s)["x"].tolist() == [2.0 * (i + 1) * (i == index) for i in range(5)]
    check(s)


@pytest.mark.parametrize(("run", "index"), [(0, 0), (1, 0), (1, 1), (2, 1)])
def test_the_cotangent_of_an_element_of_a_run_belongs_to_that_element(run, index):
    """The runs are [1], [2, 3] and [4, 5]."""
    s = numbers(5)
    s.op("array_read", s.op("array_chunks", "X"), at(s, run), out="run")
    s.op("square", s.op("array_read", "run", at(s, index)), out="loss")
    position = (0, 1, 3)[run] + index

    assert grads(s)["x"].tolist() == [2.0 * (i + 1) * (i == position) for i in range(5)]
    check(s)


@pytest.mark.parametrize("how", ["count", "like"])
def test_an_array_may_be_joined_to_more_rows_than_it_has_elements(how):
    s = numbers(3)
    like, count = ([s.const(0.0, (5,))], {}) if how == "like" else ([], {"count": 5})
    rows = s.op("array_join", "X", *like, shape=[], dtype="float64", **count)
    s.op("add", s.op("reduce_sum", s.op("square", rows)), s.op("reduce_sum", s.op("exp", rows)), out="loss")

    close(grads(s)["x"], 2 * np.arange(1.0, 4) + np.exp(np.arange(1.0, 4)))
    check(s)


def test_arrays_of_different_lengths_may_be_added():
    s = numbers(3)
    s.op("array_unstack", s.param("y", [4.0, 5.0]), out="Y")
    s.total(s.op("square", s.op("array_stack", s.op("sum", ["X", "Y"]))))

    found = grads(s)
    assert (found["x"].tolist(), found["y"].tolist()) == ([10.0, 14.0, 6.0], [10.0, 14.0])
    check(s)


@pytest.mark.parametrize("count", [2, 4])
def test_runs_need_exactly_their_elements(count):
    s = numbers(3)
    s.op("array_unstack", s.param("y", np.ones(count)), out="Y")
    s.op("array_flatten", s.op("array_regroup", "Y", s.op("array_chunks", "X")), out="Z")
    s.total(s.op("array_stack", "Z"))

    message = f"an array of {count} elements does not fit into runs of 3"
    if EXECUTOR["native"]:  # machine code counts no elements for its message
        message = "a tensor array does not have as many elements as the runs that it is divided into"
    with pytest.raises(ExecutionError, match=message) as caught:
        grads(s)
    assert caught.value.code == "shape_mismatch"


def recorded(b: BlockBuilder, h: Value, xs: Value) -> Value:
    """The record of a loop over xs, whose state h is multiplied by each element: the sine of each state."""
    inner = BlockBuilder()
    new = inner.emit("mul", inner.param(VECTOR), inner.param(VECTOR))
    body = inner.build([new, inner.emit("sin", new)])
    return b.append(b.make("loop", h, xs, sub_block=body, carried=1, captured=0, condition=False))[1]


def element(b: BlockBuilder, array: Value, index: int) -> Value:
    return b.emit("array_read", array, b.constant(index, "int64", ()))


def returned(b: BlockBuilder, h: Value, xs: Value) -> Value:
    """An element of a record that a branch returns."""
    sides = []
    for scale in (1.0, 0.5):
        side = BlockBuilder()
        state, stack = side.param(VECTOR), side.param(xs.type)
        sides.append(side.build([recorded(side, side.emit("scale", state, scale=scale), stack)]))
    go = b.emit("greater_than", b.emit("reduce_sum", h), b.constant(0.0, "float64", ()))
    yes, no = sides
    (array,) = b.append(b.make("if_else", go, h, xs, true_block=yes, false_block=no))
    return element(b, array, 1)


def of_runs(b: BlockBuilder, h: Value, xs: Value) -> Value:
    """An element of the runs of a record."""
    return element(b, element(b, b.emit("array_chunks", recorded(b, h, xs), order=1), 1), 0)


def padded(b: BlockBuilder, h: Value, xs: Value) -> Value:
    """A record that is joined to more rows than the loop has trips."""
    rows = b.emit("array_join", recorded(b, h, xs), shape=(2,), dtype="float64", count=7)
    return b.emit("reduce_sum", b.emit("cos", rows), axes=(0,))


def of_elements(b: BlockBuilder, h: Value, xs: Value) -> Value:
    """A loop over runs of elements, which reads the first element of each run and records the runs of a record."""
    runs, body = b.emit("array_chunks", xs, order=1), BlockBuilder()
    state, run = body.param(VECTOR), body.param(xs.type)
    state = body.emit("add", state, element(body, run, 0))
    block = body.build([state, recorded(body, state, run)])
    h, records = b.append(b.make("loop", h, runs, sub_block=block, carried=1, captured=0, condition=False))
    return b.emit("mul", h, element(b, element(b, records, 1), 1))


@pytest.mark.parametrize("reader", [returned, of_runs, padded, of_elements])
def test_a_record_that_is_read_in_part_gets_a_whole_cotangent(reader: Callable[[BlockBuilder, Value, Value], Value]):
    """First gradients against differences of values, second gradients against differences of first ones."""
    b = BlockBuilder()
    x, h = b.param(TensorType((4, 2), "float64")), b.param(VECTOR)
    value = b.build([reader(b, h, b.emit("array_unstack", x))])
    first = optimize(vjp(value, value.params))
    second = optimize(vjp(first, value.params))
    rng = np.random.default_rng(2)
    args = [rng.uniform(0.5, 1.5, shape) for shape in ((4, 2), (2,))]
    seeds = [rng.uniform(0.5, 1.5, 2), [rng.uniform(0.5, 1.5, shape) for shape in ((2,), (4, 2), (2,))]]
    steps = [rng.standard_normal(each.shape) for each in args]

    for block, higher, fixed, seed in (
        (value, first, [], [seeds[0]]),
        (first, second, [seeds[0]], seeds[1]),
    ):
        moved = [[a + sign * 1e-6 * d for a, d in zip(args, steps, strict=True)] for sign in (1, -1)]
        up, down = (interpreter_of(block)(Run(), *each, *fixed) for each in moved)
        wanted = sum(np.sum(s * (u - d)) for s, u, d in zip(seed, up, down, strict=True)) / 2e-6
        found = interpreter_of(higher)(Run(), *args, *fixed, *seed)[-2:]
        close(sum(np.sum(f * d) for f, d in zip(found, steps, strict=True)), wanted, 1e-6)
        both(higher, [*args, *fixed, *seed])


READS = ["array_read", "array_concat", "array_paste", "array_split_as"]
"""Ops that read elements of an array without zeros to take the place of missing ones."""


def reader_of_cotangent(op: str) -> tuple[Sketch, Block]:
    """A program that reads, by `op`, an array that has only element 2, the row [1, 2]; and its block."""
    s = Sketch()
    like = s.feed("like", np.arange(3.0, 9.0).reshape(3, 2))
    array = s.op("array_place", s.param("x", [[1.0, 2.0]]), at(s, 2))
    if op == "array_read":
        s.op("add", s.op(op, array, at(s, 0)), s.op(op, array, at(s, 2)), out="y")
    elif op == "array_split_as":
        s.op("array_stack", s.op(op, like, array), out="y")
    else:
        s.op(op, array, like, out="y")
    s.op("add", s.op("reduce_sum", s.op("square", "y")), s.op("reduce_sum", "x"), out="loss")
    return s, compile_gradient(read(s.document), GradientQuery(loss="loss")).interpreter.block


@pytest.mark.parametrize("op", READS)
def test_the_reference_executor_reads_no_missing_element_of_a_cotangent(op):
    s, block = reader_of_cotangent(op)

    with pytest.raises(ExecutionError, match="of the array is missing: the array is a cotangent") as caught:
        interpreter_of(block)(Run(), *(s.values[name] for name in block.params))
    assert caught.value.code == "index_out_of_range"


@pytest.mark.parametrize("op", READS)
def test_machine_code_reads_missing_elements_of_a_cotangent_as_zeros(op):
    """Its elements have one known size, so that the zeros have one too."""
    s, block = reader_of_cotangent(op)
    rows = s.values["like"] if op == "array_split_as" else np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 2.0]])

    assert not plan_parts(block, CPU_TARGET).refused
    gradient, loss = native_interpreter(block, CPU)(Run(), *(s.values[name] for name in block.params))

    close(loss, np.sum(rows**2) + 3.0)
    close(gradient, [[1.0, 1.0]] if op == "array_split_as" else [[3.0, 5.0]])


def test_a_negative_index_is_no_element_of_a_cotangent():
    """In machine code too."""
    b = BlockBuilder()
    x, index = b.param(TensorType((3, 2), "float64")), b.param(TensorType((), "int64"))
    array, row = b.emit("array_unstack", x), b.emit("reduce_sum", x, axes=(0,))
    rows = {"shape": (2,), "dtype": "float64", "count": 3}
    erased = b.emit("array_join", b.emit("array_erase", array, index), **rows)
    placed = b.emit("array_join", b.emit("array_place", row, index), **rows)
    block = b.build([b.emit("array_take", array, index, row), erased, placed])
    value = np.arange(1.0, 7.0).reshape(3, 2)

    found = interpreter_of(block)(Run(), value, np.array(-1))
    assert [each.tolist() for each in found] == [[0.0, 0.0], value.tolist(), np.zeros((3, 2)).tolist()]
    both(block, [value, np.array(-1)])
