"""Sizes that only the run tells: arrays have memory for the largest size, and their length is a number beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.ir.precision import HALVES
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.partition import plan_parts
from core.plan.sizes import bounded_types
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from core.wire import read
from tests.laws.agreement import both
from tests.laws.random_programs import second_order
from tests.programs import Sketch

ROWS = (1, 5, 40, 300)
"""The last one is more than a block of a product."""


def masks(rows: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.random(rows) < 0.4, np.zeros(rows, bool), np.ones(rows, bool)]


def selected(s: Sketch, rows: int, rng: np.random.Generator) -> str:
    """The mean of the chosen squared errors."""
    x, w = s.feed("x", rng.standard_normal((rows, 3))), s.param("w", rng.standard_normal((3, 1)))
    error = s.op("square", s.op("reshape", s.op("matmul", x, w), shape=[-1]))
    return s.op("mean", s.op("masked_select", error, "mask"))


def mined(s: Sketch, rows: int, rng: np.random.Generator) -> str:
    """A net on the chosen rows alone, and a cross entropy of their labels."""
    x, y = s.feed("x", rng.standard_normal((rows, 4))), s.feed("y", rng.integers(0, 3, rows), "int64")
    w, v = s.param("w", rng.standard_normal((4, 5))), s.param("v", rng.standard_normal((5, 3)))
    at = s.op("reshape", s.op("nonzero", "mask"), shape=[-1])
    rows_of = s.op("tanh", s.op("matmul", s.op("gather", x, at), w))
    labels = s.op("unsqueeze", s.op("gather", y, at), axes=[1])
    return s.op("mean", s.op("softmax_with_cross_entropy", s.op("matmul", rows_of, v), labels))


def routed(s: Sketch, rows: int, rng: np.random.Generator) -> str:
    """Each part of the rows takes an expert of its own, and the results come back to their places."""
    x = s.feed("x", rng.standard_normal((rows, 3)))
    w = [s.param(name, rng.standard_normal((3, 3))) for name in ("w", "v")]
    out = x
    for each, mask in zip(w, ("mask", s.op("logical_not", "mask")), strict=True):
        at = s.op("reshape", s.op("nonzero", mask), shape=[-1])
        out = s.op("index_add", out, at, s.op("relu", s.op("matmul", s.op("gather", x, at), each)))
    return s.op("mean", s.op("square", out))


def in_two_parts(s: Sketch, rows: int, rng: np.random.Generator) -> str:
    """`if_else_rows`: other ops for the rows where the mask is true."""
    x, w = s.feed("x", rng.standard_normal((rows, 3))), s.param("w", rng.standard_normal((3, 2)))
    yes, no = s.op("split_by_mask", s.op("matmul", x, w), "mask", out=["yes", "no"])
    s.op("merge_by_mask", "mask", s.op("tanh", yes), s.op("scale", no, scale=-2.0), out="both")
    return s.op("mean", s.op("square", "both"))


def normalised(s: Sketch, rows: int, rng: np.random.Generator) -> str:
    """Statistics over the chosen rows, and over the features of each of them."""
    x, w = s.feed("x", rng.standard_normal((rows, 3))), s.param("w", rng.standard_normal((3, 4)))
    at = s.op("reshape", s.op("nonzero", "mask"), shape=[-1])
    h = s.op("gather", s.op("matmul", x, w), at)
    centred = s.op("sub", h, s.op("reduce_mean", h, axes=[0], keepdims=True))
    shares = s.op("softmax", centred)
    return s.op("reduce_sum", s.op("mul", shares, s.op("reduce_sum", s.op("tanh", h), axes=[0], keepdims=True)))


def pooled(s: Sketch, rows: int, rng: np.random.Generator) -> str:
    """The chosen rows, weighted by a softmax over their number. Without any, their sum is 0."""
    x, w = s.feed("x", rng.standard_normal((rows, 3))), s.param("w", rng.standard_normal((3, 3)))
    at = s.op("reshape", s.op("nonzero", "mask"), shape=[-1])
    h = s.op("gather", s.op("matmul", x, w), at)
    of_all = s.op("reduce_sum", s.op("mul", s.op("softmax", h, axis=0), h), axes=[0])
    entropy = s.op("mul", s.op("log_softmax", h, axis=0), s.op("tanh", h))
    return s.op("add", s.op("reduce_sum", s.op("square", of_all)), s.op("reduce_sum", entropy))


def sliced(s: Sketch, rows: int, rng: np.random.Generator) -> str:
    """Rows from a start to an end that are computed, every second one of them, and some backwards."""
    x, w = s.feed("x", rng.standard_normal((rows, 3))), s.param("w", rng.standard_normal((3, 5)))
    count = s.op("reshape", s.op("reduce_sum", s.op("cast", "mask", dtype="int64")), shape=[1])
    zero = s.const(0, [1], "int64", out="zero")
    h = s.op("matmul", x, w)
    total = s.op("reduce_sum", s.op("square", h))
    for step in (1, 2, -1, -3):
        steps = s.const(step, [1], "int64", out=f"step{step}")
        start, end = (zero, count) if step > 0 else (count, zero)
        part = s.op("dynamic_slice", h, start, end, steps, axes=[0], shape=[-1, 5])
        back = s.op("matmul", s.op("tanh", part), w, transpose_y=True)
        total = s.op("add", total, s.op("reduce_sum", s.op("square", back)))
    return total


def ordered(s: Sketch, rows: int, rng: np.random.Generator) -> str:
    """The elements of each chosen row in their order, and its two largest ones."""
    x, w = s.feed("x", rng.standard_normal((rows, 3))), s.param("w", rng.standard_normal((3, 4)))
    chosen, _ = s.op("split_by_mask", s.op("matmul", x, w), "mask", out=["chosen", "others"])
    best = s.op("topk", chosen, k=2, axis=1, out=["best", "at"])[0]
    last = s.op("sort", s.op("tanh", chosen), axis=1, out=["sorted", "order"])[0]
    total = s.op("reduce_sum", s.op("mul", last, s.op("sin", chosen)))
    return s.op("add", total, s.op("reduce_sum", s.op("square", best)))


PROGRAMS: list[Callable[[Sketch, int, np.random.Generator], str]] = [
    selected, mined, routed, in_two_parts, normalised, pooled, sliced, ordered,
]  # fmt: skip


def sketch(program: Callable[..., str], rows: int, mask: np.ndarray, seed: int = 0) -> Sketch:
    rng = np.random.default_rng(seed)
    s = Sketch()
    s.feed("mask", mask, "bool")
    s.feed("again", rng.random(rows) < 0.7, "bool")
    s.op("assign", program(s, rows, rng), out="loss")
    return s


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_step_on_chosen_rows_is_machine_code_and_equals_the_reference_executor(program, rows):
    for mask in masks(rows, np.random.default_rng(rows)):
        s = sketch(program, rows, mask)
        program_ = read(s.document)
        inputs = tuple(n for n in ("w", "v") if n in s.values)
        orders = [compile_gradient(program_, GradientQuery(loss="loss"))]
        if mask.any() and rows == 5:
            orders.append(second_order(program_, inputs=inputs))
        for executable in orders:
            block = executable.interpreter.block
            assert not plan_parts(block, CPU_TARGET).refused
            assert not plan_block(block, CPU_TARGET).interpreted
            both(block, [s.values[v.name] for v in executable.inputs])


@pytest.mark.parametrize(("start", "end", "step"), [(0, 2, 1), (2, 2, 1), (-1, -9, -2), (1, 99, 3)])
def test_a_slice_of_two_axes_whose_ends_are_data_and_its_gradient_equal_the_reference_executor(start, end, step):
    s, rng = Sketch(), np.random.default_rng(0)
    x = s.param("x", rng.standard_normal((6, 7)))
    places = [s.feed(n, [v, -v], "int64") for n, v in (("start", start), ("end", end), ("step", step))]
    part = s.op("dynamic_slice", x, *places, axes=[1, 0], shape=[-1, -1])
    s.op("reduce_sum", s.op("square", s.op("exp", part)), out="loss")
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    block = executable.interpreter.block

    assert not plan_parts(block, CPU_TARGET).refused
    both(block, [s.values[v.name] for v in executable.inputs])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_softmax_over_no_chosen_rows_is_empty_and_its_gradient_is_zero(compiled):
    s = sketch(pooled, 5, np.zeros(5, bool))
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"), fetch=["loss"])

    found = (executable.compiled() if compiled else executable).step(s.values)

    assert found.fetched["loss"] == 0
    np.testing.assert_array_equal(found.gradients["w"], np.zeros((3, 3)))


@pytest.mark.parametrize("masked", [False, True])
def test_attention_to_no_keys_of_an_open_number_is_zero_as_to_none_of_a_known_number(masked):
    s = Sketch()
    s.param("q", np.ones((2, 3)))
    for name in ("k", "v"):
        s.feed(name, np.ones((0, 3)), shape=[-1, 3])
    more = [s.feed("mask", np.ones((2, 0), bool), "bool", shape=[2, -1])] if masked else []
    s.op("reduce_sum", s.op("scaled_dot_product_attention", "q", "k", "v", *more), out="loss")

    found = compile_gradient(read(s.document), GradientQuery(loss="loss"), fetch=["loss"]).step(s.values)

    assert found.fetched["loss"] == 0
    np.testing.assert_array_equal(found.gradients["q"], np.zeros((2, 3)))


def test_code_does_not_depend_on_what_an_array_holds_beyond_its_length():
    """The second run finds the rows of the first one in its arena."""
    s = sketch(mined, 40, np.ones(40, bool))
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss")).compiled()
    executable.step(s.values | {"x": np.full((40, 4), np.nan)})
    values = s.values | {"mask": np.arange(40) == 7}

    found = executable.step(values)

    wanted = compile_gradient(read(s.document), GradientQuery(loss="loss")).step(values)
    for name, gradient in wanted.gradients.items():
        np.testing.assert_allclose(found.gradients[name], gradient, rtol=1e-12, atol=1e-14)


def block_of(op: str, *types: TensorType, **attrs: Any) -> Block:
    b = BlockBuilder()
    return (
        b.build([b.emit("reshape", b.emit("nonzero", b.param(types[0])), shape=(-1,))])
        if op == ""
        else b.build([b.emit(op, *map(b.param, types), **attrs)])
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (1,)])
def test_a_result_of_an_open_size_leaves_the_machine_code_with_its_length(shape):
    block = block_of("nonzero", TensorType(shape, "float32"))
    x = (np.random.default_rng(0).random(shape) < 0.5).astype("float32")

    assert not plan_parts(block, CPU_TARGET).refused
    for each in (x, np.zeros_like(x), np.ones_like(x)):
        (found,) = native_interpreter(block, CPU)(Run(), each)
        np.testing.assert_array_equal(found, np.argwhere(each))


def test_a_position_in_chosen_rows_is_compared_with_their_number():
    b = BlockBuilder()
    x, mask, at = (
        b.param(TensorType((6,), "float64")),
        b.param(TensorType((6,), "bool")),
        b.param(TensorType((1,), "int64")),
    )
    rows = b.emit("gather", x, b.emit("reshape", b.emit("nonzero", mask), shape=(-1,)))
    block = b.build([b.emit("gather", rows, at)])
    values, mask_ = np.arange(6.0), np.arange(6) % 2 == 1
    run = native_interpreter(block, CPU)

    assert not plan_parts(block, CPU_TARGET).refused
    assert [run(Run(), values, mask_, np.array([i]))[0][0] for i in (0, 2, -1, -3)] == [1, 5, 5, 1]
    for wrong in (3, -4):
        with pytest.raises(ExecutionError) as caught:
            run(Run(), values, mask_, np.array([wrong]))
        assert caught.value.code == "index_out_of_range"


@pytest.mark.parametrize("k", [1, 3])
def test_one_element_of_a_vector_of_chosen_ones_is_picked_by_its_rank(k):
    """The third of two is an error of the run, and so is the first of none."""
    b = BlockBuilder()
    x, mask = b.param(TensorType((6,), "float64"), "x"), b.param(TensorType((6,), "bool"))
    value, at = b.emit("kthvalue", b.emit("masked_select", x, mask), k=k, axis=0)
    block = vjp(b.build([value, at]), ["x"])
    chosen = np.array([True, False, True, True, False, True])

    for count in (4, 2, 0):
        both(optimize(block), [np.array([4.0, 0.0, 3.0, 1.0, 9.0, 2.0]), chosen & (np.cumsum(chosen) <= count), 1.5])


@pytest.mark.parametrize("kind", ["reduce_max", "reduce_min"])
def test_the_extreme_of_no_rows_is_an_error_of_the_run(kind):
    b = BlockBuilder()
    x, mask = b.param(TensorType((4, 2), "float64")), b.param(TensorType((4,), "bool"))
    rows = b.emit("gather", x, b.emit("reshape", b.emit("nonzero", mask), shape=(-1,)))
    block = b.build([b.emit(kind, rows, axes=(0,))])
    values = np.arange(8.0).reshape(4, 2)

    assert not plan_block(block, CPU_TARGET).interpreted
    both(block, [values, np.array([True, False, True, False])])
    both(block, [values, np.zeros(4, bool)])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["reduce_mean", "reduce_sum"])
def test_16_bit_numbers_of_chosen_rows_are_added_up_in_float32(kind, dtype):
    b = BlockBuilder()
    x, mask = b.param(TensorType((700,), dtype)), b.param(TensorType((700,), "bool"))
    block = optimize(b.build([b.emit(kind, b.emit("masked_select", x, mask))]))
    (found,) = native_interpreter(block, CPU)(Run(), np.ones(700, as_dtype(dtype)), np.arange(700) < 600)

    assert not plan_block(block, CPU_TARGET).interpreted
    assert found == (1 if kind == "reduce_mean" else 600)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_the_extreme_of_a_chosen_row_is_at_its_first_nan(kind, dtype):
    b = BlockBuilder()
    x, mask = b.param(TensorType((3, 4), dtype)), b.param(TensorType((3,), "bool"))
    block = optimize(b.build([b.emit(kind, b.emit("split_by_mask", x, mask)[0], axis=1)]))
    rows = np.array([[1, np.nan, 3, np.nan], [0, 1, 2, 3], [np.nan, 2, 1, 0]], as_dtype(dtype))

    (found,) = native_interpreter(block, CPU)(Run(), rows, np.array([True, False, True]))

    assert not plan_block(block, CPU_TARGET).interpreted
    assert found.tolist() == [1, 0]


def test_an_op_without_code_for_chosen_rows_is_called_with_as_many_rows():
    b = BlockBuilder()
    x, mask = b.param(TensorType((9, 2), "float64")), b.param(TensorType((9,), "bool"))
    rows = b.emit("gather", x, b.emit("reshape", b.emit("nonzero", mask), shape=(-1,)))
    block = b.build([b.emit("dft", rows, axis=0) * rows])
    values = np.random.default_rng(0).standard_normal((9, 2))

    assert not plan_parts(block, CPU_TARGET).refused
    assert [each.block.ops[0].type for each in plan_block(block, CPU_TARGET).interpreted] == ["dft"]
    for chosen in masks(9, np.random.default_rng(1)):
        both(block, [values, chosen])


def test_a_size_without_a_largest_value_is_expected_if_the_target_can_expect_any():
    block = block_of("repeat_positions", TensorType((3,), "int64"))

    assert bounded_types(block, None) == dict(block.types)
    assert "known only when it runs" in plan_parts(block, replace(CPU_TARGET, expects=False)).refused[0]
    assert not plan_parts(block, CPU_TARGET).refused


def chosen_rows(shape: tuple[int, ...], dtype: str, count: int = 1) -> tuple[BlockBuilder, list]:
    """A block with chosen rows of `count` arrays of `shape`; the arrays come first, and the mask behind them."""
    b = BlockBuilder()
    arrays = [b.param(TensorType(shape, dtype)) for _ in range(count)]
    mask = b.param(TensorType(shape[:1], "bool"))
    return b, [b.emit("split_by_mask", each, mask)[0] for each in arrays]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chosen", [0, 5, 12, 24])
def test_a_pass_over_chosen_rows_with_their_axes_in_another_order_writes_all_of_them(chosen):
    """The row of the pass may be any axis but not the one whose length leaves rows out."""
    rng = np.random.default_rng(chosen)
    b, (x,) = chosen_rows((24, 3, 20), "float64")
    moved = b.emit("transpose", b.emit("tanh", b.emit("transpose", x, axes=(1, 2, 0))), axes=(2, 0, 1))
    block = b.build([moved + x + b.param(TensorType((20,), "float64"))])

    both(optimize(block), [rng.standard_normal((24, 3, 20)), np.arange(24) < chosen, rng.standard_normal(20)])


CHECKED = ("mod", "fmod", "floor_div", "bitwise_left_shift", "bitwise_right_shift")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(24,), (24, 7)])
@pytest.mark.parametrize("op", CHECKED)
def test_operands_beyond_the_length_are_not_checked(op, shape):
    b, (x, y) = chosen_rows(shape, "int64", 2)
    block = optimize(b.build([b.emit(op, x, y)]))

    for chosen in (0, 5, 24):
        both(block, [np.arange(np.prod(shape)).reshape(shape) + 1, np.full(shape, 3), np.arange(24) < chosen])


@pytest.mark.parametrize("at", [2, 20])
@pytest.mark.parametrize("op", CHECKED)
def test_operands_whose_known_size_is_the_largest_length_are_all_checked(op, at):
    """The second operand has 24 rows of its own; the first, of which 5 are chosen, repeats them."""
    b, (x,) = chosen_rows((24, 24, 7), "int64")
    second = b.emit("transpose", b.param(TensorType((7, 24), "int64")), axes=(1, 0))
    block = optimize(b.build([b.emit(op, x, second)]))
    values = np.full((7, 24), 3)
    values[3, at] = -1 if "shift" in op else 0

    with pytest.raises(ExecutionError) as error:
        native_interpreter(block, CPU)(Run(), np.ones((24, 24, 7), "int64"), np.arange(24) < 5, values)

    assert error.value.code == ("index_out_of_range" if "shift" in op else "division_by_zero")
