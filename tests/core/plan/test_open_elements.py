"""Tensor arrays whose elements have sizes that only the run tells have machine code."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_forward, compile_gradient
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.plan.partition import plan_parts
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.core.plan.test_tensor_arrays import compiled
from tests.laws.agreement import both
from tests.programs import Sketch, check

LENGTHS = [3, 1, 0, 2]
ROWS = np.random.default_rng(5).normal(0, 1, (6, 2))


def recurrent(lengths: list[int], dtype: str = "float64") -> Sketch:
    """h := tanh(h u + x w) over sequences of different lengths, step by step; the loss is about all states."""
    rng = np.random.default_rng(len(lengths))
    s = Sketch()
    s.param("w", rng.normal(0, 0.5, (2, 3)), dtype)
    s.param("u", rng.normal(0, 0.5, (3, 3)), dtype)
    s.param("rows", rng.normal(0, 1, (sum(lengths), 2)), dtype)
    s.feed("lengths", lengths, "int64")
    s.op("sequence_to_array", "rows", "lengths", out="steps")
    s.const(0.1, [len(lengths), 3], dtype, out="h")
    s.const(0, dtype="int64", out="t")
    s.op("create_array", out="states", shape=[-1, 3], dtype=dtype)
    with s.repeat(s.op("array_length", "steps")):
        s.op("shrink_rnn_memory", "h", "lengths", "t", out="h")
        row = s.op("matmul", s.op("array_read", "steps", "t"), "w")
        s.op("tanh", s.op("add", s.op("matmul", "h", "u"), row), out="h")
        s.op("array_write", "h", "t", "states", out="states")
        s.op("increment", "t", out="t", step=1)
    s.total(s.op("square", s.op("array_to_sequence", "states", "lengths", "rows")))
    return s


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lengths", [[3, 1, 2], LENGTHS, [1], [5, 5, 5, 5, 5, 5, 5], [40, 1]])
def test_a_recurrent_network_over_sequences_of_different_lengths_has_machine_code(lengths):
    compiled(recurrent(lengths), "w", "u", "rows")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sections_of_other_floats_have_machine_code(dtype):
    s = recurrent([3, 1, 2], dtype)
    block = compile_gradient(read(s.document), GradientQuery(loss="loss")).interpreter.block

    assert not plan_parts(block, CPU_TARGET).refused
    both(block, [s.values[name] for name in block.params])


def test_the_gradient_of_a_recurrent_network_over_sequences_agrees_with_differences():
    check(recurrent([3, 1, 2]))


def test_a_loop_that_changes_the_sections_of_an_array_has_machine_code():
    """Some sections are changed twice, some never; the old array is read again."""
    s = Sketch()
    x, w = s.param("x", ROWS), s.param("w", [[0.5, -0.25], [1.0, 0.75]])
    s.feed("counts", [2, 0, 3, 1], "int64")
    s.feed("places", [2, 0, 2], "int64")
    s.op("array_cut", x, "counts", out="old")
    s.op("assign", "old", out="new")
    s.const(0, dtype="int64", out="t")
    with s.repeat(3):
        at = s.op("gather", "places", "t")
        section = s.op("tanh", s.op("matmul", s.op("array_read", "new", at), w))
        s.op("array_write", section, at, "new", out="new")
        s.op("increment", "t", out="t", step=1)
    both_rows = s.op("mul", s.op("array_paste", "new", x), s.op("array_paste", "old", x))
    s.total(s.op("square", both_rows))
    compiled(s, "x", "w")
    check(s)


def test_an_array_of_arrays_of_different_lengths_grows_without_a_loop():
    s = Sketch()
    x, mask = s.param("x", ROWS), s.feed("mask", [True, False, True, True, False, True], "bool")
    s.op("create_array", out="parts", shape=[-1, 2], dtype="float64")
    for i, part in enumerate((s.op("compress", x, mask, axis=0), x, s.op("compress", s.op("sin", x), mask, axis=0))):
        s.op("array_write", part, s.const(i, dtype="int64"), "parts", out=f"parts{i}")
        s.op("assign", f"parts{i}", out="parts")
    s.total(s.op("square", s.op("array_concat", "parts")))
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    assert not plan_parts(executable.interpreter.block, CPU_TARGET).refused
    both(executable.interpreter.block, [s.values[v.name] for v in executable.inputs])
    check(s)


def test_a_section_that_nothing_reads_has_a_gradient_of_zeros():
    s = Sketch()
    x = s.param("x", ROWS)
    s.feed("counts", [2, 1, 3], "int64")
    s.op("array_cut", x, "counts", out="array")
    s.total(s.op("square", s.op("array_read", "array", s.const(1, dtype="int64"))))
    compiled(s, "x")
    check(s)


def test_a_sum_of_two_arrays_has_their_sizes():
    b = BlockBuilder()
    x, counts = b.param(TensorType((6, 2), "float64")), b.param(TensorType((3,), "int64"))
    arrays = [b.emit("array_cut", each, counts) for each in (x, b.emit("sin", x))]
    block = b.build([b.emit("array_paste", b.emit("sum", *arrays), x)])

    assert not plan_parts(block, CPU_TARGET).refused
    (found,) = native_interpreter(block, CPU)(Run(), ROWS, np.array([1, 0, 5]))
    np.testing.assert_allclose(found, ROWS + np.sin(ROWS), rtol=1e-15)


@pytest.mark.parametrize("rows", [0, 1])
def test_an_element_of_known_sizes_is_added_to_an_array_of_sections(rows):
    """Row 0 is added to a section of one row, or it becomes the fourth element."""
    s = Sketch()
    x, w = s.param("x", ROWS), s.param("w", [[0.5, -0.25]])
    s.feed("counts", [2, 1, 3], "int64")
    s.op("array_cut", x, "counts", out="array")
    s.op("array_place", w, s.const([3, 1][rows], dtype="int64"), out="single")
    s.op("sum", ["array", "single"], out="both")
    parts = [s.op("array_read", "both", s.const(i, dtype="int64")) for i in (0, 1, 2, 3)[: 4 - rows]]
    s.total(s.op("square", s.op("concat", parts, axis=0)))
    compiled(s, "x", "w")
    check(s)


def test_a_loop_that_begins_with_an_empty_array_in_each_trip_has_machine_code():
    s = Sketch()
    x, mask = s.param("x", ROWS), s.feed("mask", [True, False, True, True, False, True], "bool")
    s.op("create_array", shape=[-1, 2], dtype="float64", out="empty")
    s.op("assign", x, out="h")
    with s.repeat(3):
        rows = s.op("compress", s.op("sin", "h"), mask, axis=0)
        s.op("array_write", rows, s.const(0, dtype="int64"), "empty", out="one")
        total = s.op("reduce_sum", s.op("array_concat", "one"), axes=[0])
        s.op("tanh", s.op("add", "h", total), out="h")
    s.total("h")
    compiled(s, "x")
    check(s)


def test_a_loop_with_sections_of_known_rows_computes_products_for_several_trips_at_once():
    """Instructions on arrays read and write the operands of such a product, which lie in memory for many trips."""
    s = Sketch()
    x, w = s.param("x", ROWS), s.param("w", [[0.5, -0.2], [0.3, 0.9]])
    s.feed("counts", [2, 1, 3], "int64")
    s.feed("trips", 40, "int64")
    s.op("assign", x, out="h")
    with s.repeat("trips"):
        s.op("array_cut", s.op("matmul", "h", w), "counts", out="sections")
        middle = s.op("array_read", "sections", s.const(1, dtype="int64"))
        s.op("array_write", s.op("sin", middle), s.const(1, dtype="int64"), "sections", out="sections")
        s.op("tanh", s.op("array_paste", "sections", x), out="h")
    s.total("h")
    compiled(s, "x", "w")


@pytest.mark.parametrize("empty", [True, False])
def test_a_branch_that_returns_an_empty_array_or_sections_has_machine_code(empty):
    s = Sketch()
    x = s.param("x", ROWS)
    s.feed("counts", [4, 2], "int64")
    s.feed("empty", empty, "bool")
    with s.block() as yes:
        s.op("create_array", shape=[-1, 2], dtype="float64", out="array")
    with s.block() as no:
        s.op("array_cut", s.op("sin", x), "counts", out="array")
    s.branch("empty", yes, no)
    s.total(s.op("square", s.op("array_concat", "array", s.const(0.0, [0, 2]))))
    compiled(s, "x")
    check(s)


@pytest.mark.parametrize("chosen", [True, False])
def test_sections_of_one_size_are_joined_like_a_tensor(chosen):
    """The tensor has as many rows as sections of two rows, or as a mask chooses."""
    s = Sketch()
    x, mask = s.param("x", ROWS), s.feed("mask", [True] * 6, "bool")
    like = s.op("compress", x, mask, axis=0) if chosen else x
    s.op("array_unstack", s.op("reshape", s.op("sin", x), shape=[3, 2, 2]), out="array")
    s.total(s.op("square", s.op("array_paste", "array", like)))
    compiled(s, "x")
    check(s)

    block = compile_forward(read(s.document), ["loss"]).interpreter.block
    wrong = s.values | {"mask": np.arange(6) < 4}
    if chosen:
        for run in (interpreter_of(block), native_interpreter(block, CPU)):
            with pytest.raises(ExecutionError, match="sections") as caught:
                run(Run(), *[np.asarray(wrong[name]) for name in block.params])
            assert (caught.value.code, caught.value.location.type) == ("shape_mismatch", "array_paste")


# --- errors -----------------------------------------------------------------------------------------------------


def pieces(counts: list[int], index: int = 0, like: int = 6, within: int = 4) -> Sketch:
    """An array of sections of six rows, of at most `within` rows each; one of them, and all of them in a tensor."""
    s = Sketch()
    x = s.param("x", ROWS)
    s.feed("counts", counts, "int64")
    s.feed("index", index, "int64")
    s.op("array_cut", x, "counts", s.const(0.0, [within, 2]), out="array")
    s.op("array_write", s.op("array_read", "array", "index"), "index", "array", out="array")
    s.total(s.op("array_paste", "array", s.const(0.0, [like, 2])))
    return s


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("given", "code", "place"),
    [
        ({"counts": [4, 3]}, "shape_mismatch", "array_cut"),
        ({"counts": [4, 1]}, "shape_mismatch", "array_cut"),
        ({"counts": [-1, 4, 3]}, "shape_mismatch", "array_cut"),
        ({"counts": [2**62, 2**62, 2**62, 2**62, 6]}, "shape_mismatch", "array_cut"),
        ({"counts": [4, 2], "within": 3}, "shape_mismatch", "array_cut"),
        ({"counts": [4, 2], "index": 2}, "index_out_of_range", "array_read"),
        ({"counts": [4, 2], "index": -1}, "index_out_of_range", "array_read"),
        ({"counts": [4, 2], "like": 7}, "shape_mismatch", "array_paste"),
        ({"counts": [4, 2], "like": 5}, "shape_mismatch", "array_paste"),
    ],
)
def test_machine_code_has_the_errors_of_the_reference_executor(given, code, place):
    s = pieces(**given)
    block = compile_forward(read(s.document), ["loss"]).interpreter.block
    args = [np.asarray(s.values[name]) for name in block.params]
    assert not plan_parts(block, CPU_TARGET).refused

    for run in (interpreter_of(block), native_interpreter(block, CPU)):
        with pytest.raises(ExecutionError) as caught:
            run(Run(), *args)
        assert (caught.value.code, caught.value.location.type) == (code, place)


def test_sections_that_fit_are_no_error():
    s = pieces([4, 2], index=1)
    block = compile_forward(read(s.document), ["loss"]).interpreter.block
    both(block, [np.asarray(s.values[name]) for name in block.params])


@pytest.mark.parametrize("declared", [-1, 3])
@pytest.mark.parametrize(
    ("size", "index", "fits"), [(3, 0, True), (3, 7, True), (2, 0, False), (4, 0, False), (2, 7, True)]
)
def test_array_take_refuses_an_element_of_another_shape_than_like(declared, size, index, fits):
    s = Sketch()
    s.feed("x", [1.0, 2.0, 0.0, 3.0])
    s.feed("like", np.zeros(size))
    s.feed("first", 0, "int64")
    s.feed("index", index, "int64")
    positions = s.op("reshape", s.op("nonzero", "x"), shape=[-1])
    s.op("create_array", out="array", shape=[-1], dtype="float64")
    s.op("array_write", s.op("gather", "x", positions), "first", "array", out="array")
    s.op("array_take", "array", "index", "like", out="taken")
    for v in s.document["blocks"][0]["vars"]:
        if v["name"] == "like":
            v["shape"] = [size if declared > 0 else -1]
    step = compile_forward(read(s.document), ["taken"], {"like": (size,)})
    wanted = np.array([1.0, 2.0, 3.0]) if index == 0 else np.zeros(size)

    for each in (step, step.compiled()):
        if fits:
            np.testing.assert_array_equal(each.step(s.values).fetched["taken"], wanted)
            continue
        with pytest.raises(ExecutionError, match="shape") as error:
            each.step(s.values)
        assert error.value.code == "shape_mismatch"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("long", "short"), [(False, True), (True, True), (True, False)])
def test_gradients_of_elements_taken_with_known_sizes_reach_an_array_of_other_sizes(long, short):
    s = Sketch()
    x, y = (s.param(name, value) for name, value in (("x", [1.0, 2.0, -1.0, 3.0]), ("y", [5.0, 6.0, 7.0])))
    s.feed("like", np.zeros(3))
    first, second = s.const(0, dtype="int64"), s.const(1, dtype="int64")
    s.op("create_array", out="array", shape=[-1], dtype="float64")
    s.op("array_write", s.op("square", y), first, "array", out="array")
    s.op("array_write", s.op("square", x), second, "array", out="array")
    read_, taken = s.op("array_read", "array", second), s.op("array_take", "array", first, "like")
    terms = [s.op("mul", read_, x)] * long + [s.op("mul", taken, y)] * short
    s.op("sum", [s.op("reduce_sum", each) for each in terms], out="loss")
    step = compile_gradient(read(s.document), GradientQuery(loss="loss"))

    for each in (step, step.compiled()):
        found = each.step(s.values).gradients
        np.testing.assert_allclose(found.get("x", np.zeros(4)), np.array([3.0, 12.0, 3.0, 27.0]) * long)
        np.testing.assert_allclose(found.get("y", np.zeros(3)), np.array([75.0, 108.0, 147.0]) * short)
