"""Arrays whose number of elements only the run tells become tensors in machine code, and tensors become such arrays."""

from __future__ import annotations

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.plan.partition import plan_parts
from core.wire import read
from tests.laws.agreement import both
from tests.laws.random_programs import second_order
from tests.programs import Sketch, check

TRIPS = (1, 2, 7, 70, 300)
"""From 70 on, there are more elements than the code expects at first."""


def recurrence(trips: int, how: str) -> Sketch:
    """A loop writes its states [2, 3] to an array; the loss is about all of them, as one tensor."""
    rng = np.random.default_rng(trips)
    s = Sketch()
    w, h = s.param("w", rng.standard_normal((3, 3)) / 3), s.param("h", rng.standard_normal((2, 3)))
    s.feed("n", np.array(trips), "int64")
    s.op("assign", h, out="state")
    s.op("create_array", out="states", shape=[2, 3], dtype="float64")
    with s.repeat("n"):
        s.op("tanh", s.op("matmul", "state", w), out="state")
        s.op("array_write", "state", s.op("array_length", "states"), "states", out="states")
    if how == "stack":
        every = s.op("array_stack", "states")
    else:
        every = s.op("array_concat", "states")
    weighted = s.op("mul", every, s.op("sin", every))
    if how == "split":
        s.op("array_split_as", weighted, "states", out="again")
        weighted = s.op("array_stack", "again")
    s.total(s.op("square", weighted))
    return s


@pytest.mark.sampled(2)
@pytest.mark.parametrize("trips", TRIPS)
@pytest.mark.parametrize("how", ["stack", "concat", "split"])
def test_the_states_of_a_loop_become_a_tensor(trips, how):
    s = recurrence(trips, how)
    program = read(s.document)

    for executable in (compile_gradient(program, GradientQuery(loss="loss")), second_order(program, inputs=("w", "h"))):
        found = plan_parts(executable.interpreter.block, CPU_TARGET)
        assert not found.refused
        assert not any(part.interpreted for part in found.regions)
        both(executable.interpreter.block, [s.values[v.name] for v in executable.inputs])


@pytest.mark.parametrize("how", ["stack", "concat", "split"])
def test_the_gradients_of_joined_states_agree_with_differences(how):
    check(recurrence(4, how))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("count", [0, 3, 200])
def test_a_chosen_part_of_the_rows_becomes_an_array(dtype, count):
    """Rows that a mask chooses are the elements of an array, which a loop runs over and another op joins again."""
    b = BlockBuilder()
    x, mask = b.param(TensorType((250, 2), dtype)), b.param(TensorType((250,), "bool"))
    rows = b.emit("gather", x, b.emit("reshape", b.emit("nonzero", mask), shape=(-1,)))
    array = b.emit("array_unstack", rows)
    block = b.build(
        [
            b.emit("array_stack", array),
            b.emit("array_concat", array, b.emit("fill_constant", shape=(0,), value=0.0, dtype=dtype)),
        ]
    )
    rng = np.random.default_rng(count)
    given = [(9 * rng.standard_normal((250, 2))).astype(dtype), np.arange(250) < count]

    both(optimize(block), given)


def test_sections_of_another_number_than_the_elements_are_an_error():
    b = BlockBuilder()
    x, like = b.param(TensorType((6, 2), "float64")), b.param(TensorType((3, 3, 2), "float64"))
    parts = b.emit("array_split_as", x, b.emit("array_unstack", like))
    block = b.build([b.emit("array_join", parts, shape=(3, 2), dtype="float64", count=4)])

    assert not plan_parts(optimize(block), CPU_TARGET).refused
    both(optimize(block), [np.ones((6, 2)), np.ones((3, 3, 2))])


def test_an_empty_array_cannot_be_concatenated_without_an_array_like_the_result():
    b = BlockBuilder()
    x, mask = b.param(TensorType((4, 2), "float64")), b.param(TensorType((4,), "bool"))
    rows = b.emit("gather", x, b.emit("reshape", b.emit("nonzero", mask), shape=(-1,)))
    block = b.build([b.emit("array_concat", b.emit("array_unstack", rows))])
    block = optimize(vjp(block, [block.params[0]]))

    for chosen in ([False] * 4, [True, False, True, True]):
        both(block, [np.ones((4, 2)), np.array(chosen), np.ones(2 * sum(chosen))])
