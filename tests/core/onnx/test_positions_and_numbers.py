"""Slices that start before the first element, numbers beyond floats, bounds and operands that are left out."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import core
from core.ir.errors import ProgramError
from core.onnx import read_model, write_model
from tests.core.onnx.beside_runtime import by_runtime, check_node, one_node
from tests.core.onnx.models import imported, model_of, run
from tests.programs import Sketch

LARGE = 2**53 + 1
"""An integer that float64 does not hold."""


# --- slices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("open_sizes", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4, 12])
@pytest.mark.parametrize(("start", "end"), [(-9, -10), (-9, -(2**63)), (-3, -5), (-1, -9), (7, -9), (-2, 0)])
def test_slices_towards_the_front_agree(start, end, n, open_sizes):
    inputs = {
        "x": np.arange(n, dtype="float32"),
        "starts": np.array([start]),
        "ends": np.array([end]),
        "axes": np.array([0]),
        "steps": np.array([-1]),
    }

    check_node("Slice", inputs, constants=("starts", "ends", "axes", "steps"), open_sizes=open_sizes, gradient=False)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("start", "end"), [(-7, -(2**31)), (-3, -9), (-3, -2), (-3, 0), (-7, 0), (-2, -4), (9, -6)])
@pytest.mark.parametrize("step", [-1, -3])
@pytest.mark.parametrize("open_axis", [False, True])
def test_a_written_slice_that_starts_before_the_first_element_is_empty(start, end, step, open_axis):
    for n in (1, 2, 5, 8):
        s = Sketch()
        shape = [-1 if open_axis else n]
        s.blocks[0]["vars"] += [{"name": "x", "dtype": "float32", "shape": shape, "role": "feed"}]
        s.op("slice", "x", out="y", axes=[0], starts=[start], ends=[end], steps=[step])
        s.op("scale", "y", out="z", scale=2.0)
        data = write_model(core.read(s.document), outputs=["z"])
        x = np.arange(n, dtype="float32")

        wanted = 2 * x[start : None if end == -(2**31) else end : step]
        np.testing.assert_array_equal(by_runtime(onnx.load_from_string(data), {"x": x})[0], wanted)


def test_the_gradient_of_a_written_slice_that_starts_before_the_first_element_is_zero():
    s = Sketch()
    s.blocks[0]["vars"] += [{"name": "x", "dtype": "float32", "shape": [-1], "role": "feed"}]
    s.op("slice", "x", out="y", axes=[0], starts=[-3], ends=[-9], steps=[-2])
    s.op("slice_into", "y", "x", out="z", axes=[0], starts=[-3], ends=[-9], steps=[-2])
    data = write_model(core.read(s.document), outputs=["z"])

    for n, wanted in ((2, [0, 0]), (5, [1, 0, 3, 0, 0])):
        x = np.arange(1, n + 1, dtype="float32")
        np.testing.assert_array_equal(by_runtime(onnx.load_from_string(data), {"x": x})[0], wanted)


def test_a_slice_whose_positions_have_an_open_length_is_read():
    """The number of axes is the length of the positions. The run checks it."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[6] x, int64[k] s) => (float[n] y) {
        end = Constant <value = int64[1] {5}> ()  axes = Constant <value = int64[1] {0}> ()
        y = Slice (x, s, end, axes) }"""
    found = read_model(parser.parse_model(text).SerializeToString())
    x = np.arange(6, dtype="float32")

    np.testing.assert_array_equal(run(found, [x, np.array([2])])[0], x[2:5])
    with pytest.raises(ProgramError, match=r"cannot have the shape \[1\]"):
        run(found, [x, np.array([2, 3])])


@pytest.mark.parametrize("open_sizes", [False, True])
@pytest.mark.parametrize(("axis", "k"), [(0, 0), (0, 2), (1, 1), (-1, 4)])
@pytest.mark.parametrize("largest", [0, 1])
def test_the_count_of_the_largest_elements_may_come_with_the_run(axis, k, largest, open_sizes):
    x = np.random.default_rng(0).permutation(12).reshape(3, 4).astype("float32")
    inputs = {"x": x, "k": np.array([k])}

    check_node(
        "TopK", inputs, outputs=["float32", "int64"], opset=11, axis=axis, largest=largest, open_sizes=open_sizes
    )


@pytest.mark.parametrize("count", ["Identity(n)", "Min(n, three)", "Sub(n, one)"])
def test_the_count_of_the_largest_elements_may_depend_on_an_open_size(count):
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        agraph (float[N] x) => (float[M] y, int64[M] i)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] three = {{3}}>
        {{ shape = Shape(x) n = Gather(shape, zero) k = {count} y, i = TopK(x, k) }}"""
    )
    found = imported(model)
    for n in (3, 2, 5):
        feeds = {"x": np.random.default_rng(n).permutation(n).astype("float32")}
        for result, expected in zip(run(found, feeds), by_runtime(model, feeds), strict=True):
            np.testing.assert_array_equal(result, expected)


def test_equal_parts_of_an_open_axis_are_read():
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Div", ["n", "two"], ["half"]),
        helper.make_node("Concat", ["half", "half"], ["parts"], axis=0),
        helper.make_node("Split", ["x", "parts"], ["a", "b"]),
    ]
    found = imported(model_of(nodes, {"x": (TensorProto.FLOAT, ["n"])}, ["a", "b"], {"two": np.array([2])}))

    for n in (2, 6):
        x = np.arange(n, dtype="float32")
        for part, wanted in zip(run(found, [x]), (x[: n // 2], x[n // 2 :]), strict=True):
            np.testing.assert_array_equal(part, wanted)


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_a_border_of_a_large_integer_is_exact():
    inputs = {"x": np.arange(2), "pads": np.array([1, 0]), "value": np.array(LARGE)}

    found = imported(one_node("Pad", inputs, outputs=["int64"], constants=("pads", "value")))

    np.testing.assert_array_equal(run(found, [np.arange(2)])[0], [LARGE, 0, 1])


@pytest.mark.parametrize("number", [np.array([LARGE]), np.array([np.nan], "float32"), np.array([7])])
def test_a_fill_of_an_open_size_has_its_number(number):
    model = model_of(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("ConstantOfShape", ["s"], ["y"], value=onnx.numpy_helper.from_array(number)),
        ],
        {"x": (TensorProto.FLOAT, ["n", 2])},
        {"y": (helper.np_dtype_to_tensor_dtype(number.dtype), None)},
    )
    result = run(imported(model), [np.zeros((3, 2), "float32")])[0]

    assert result.dtype == number.dtype
    np.testing.assert_array_equal(result, np.full((3, 2), number[0]))


def test_a_range_of_large_integers_has_all_its_elements():
    ends = {"start": np.array(LARGE), "limit": np.array(LARGE + 1), "delta": np.array(1)}

    found = imported(one_node("Range", ends, outputs=["int64"], constants=tuple(ends)))

    np.testing.assert_array_equal(run(found, [])[0], [LARGE])


def test_a_gemm_with_beta_0_does_not_read_c():
    inputs = {"a": np.ones((2, 3), "float32"), "b": np.ones((3, 2), "float32"), "c": np.full((2, 2), np.nan, "float32")}

    check_node("Gemm", inputs, beta=0.0, gradient=False)


@pytest.mark.parametrize("bounds", [{}, {"min": -1.0}, {"max": 1.0}])
def test_clip_before_opset_11_has_finite_bounds(bounds):
    check_node("Clip", {"x": np.array([np.inf, -np.inf, 0.5], "float32")}, opset=6, gradient=False, **bounds)


# --- outputs ---------------------------------------------------------------------------------------------------------


def test_one_variable_listed_twice_gives_two_outputs():
    model = model_of([helper.make_node("Neg", ["x"], ["y"])], {"x": (TensorProto.FLOAT, [2])}, ["y"])
    model.graph.output.append(model.graph.output[0])
    found = imported(model)

    assert found.outputs == ("y", "y.1")
    for result in run(found, [np.array([1.0, 2.0], "float32")]):
        np.testing.assert_array_equal(result, [-1.0, -2.0])


# --- borders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("open_sizes", [False, True])
@pytest.mark.parametrize("more", [{}, {"value": np.array(2.5, "float32")}, {"axes": np.array([-1, 0])}])
def test_the_widths_of_a_border_may_come_with_the_run(more, open_sizes):
    x = np.random.default_rng(0).normal(size=(2, 3)).astype("float32")
    inputs = {"x": x, "pads": np.array([1, 0, 2, 3]), "value": None, **more}

    check_node("Pad", inputs, opset=18, constants=tuple(more), open_sizes=open_sizes)


def test_a_border_may_complete_an_open_size_to_a_multiple():
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        agraph (float[B, N] x) => (float[B, 4, M] y)
        <int64[1] one = {1}, int64[1] four = {4}, int64[3] front = {0, 0, 0}, int64[3] parts = {0, 4, -1}>
        {
            shape = Shape(x) n = Gather(shape, one) negative = Neg(n) missing = Mod(negative, four)
            pads = Concat<axis = 0>(front, missing) whole = Pad(x, pads) y = Reshape(whole, parts)
        }"""
    )
    found = imported(model)
    for n in (1, 4, 6):
        feeds = {"x": np.random.default_rng(n).normal(size=(2, n)).astype("float32")}
        for result, expected in zip(run(found, feeds), by_runtime(model, feeds), strict=True):
            np.testing.assert_array_equal(result, expected)


def test_a_negative_width_that_comes_with_the_run_ends_it():
    model = imported(one_node("Pad", {"x": np.ones(4, "float32"), "pads": np.array([0, 0])}, opset=18))

    with pytest.raises(core.ExecutionError, match="must not be negative"):
        run(model, [np.ones(4, "float32"), np.array([0, -1])])
