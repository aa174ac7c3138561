"""Convolutions and poolings agree with onnxruntime in every attribute, and their gradients with differences."""

from __future__ import annotations

import numpy as np
import pytest

from core.ir.errors import ProgramError
from tests.core.onnx.beside_runtime import check_node, one_node
from tests.core.onnx.models import imported

SHAPES = {1: (2, 4, 9), 2: (2, 4, 7, 6), 3: (1, 4, 4, 5, 3)}


def some(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def distinct(*shape):
    """No ties, so that a maximum has a gradient."""
    return np.random.default_rng(1).permutation(np.prod(shape)).reshape(shape).astype("float32") / 10


# --- convolutions ----------------------------------------------------------------------------------------------------

WINDOWS = [
    {},
    {"pads": [1, 0, 2, 1], "strides": [2, 1]},
    {"dilations": [2, 1], "pads": [1, 1, 1, 0]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 1]},
    {"auto_pad": "VALID", "strides": [1, 3]},
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", WINDOWS)
@pytest.mark.parametrize("group", [1, 2])
def test_convolutions_agree(how, group):
    inputs = {"x": some(*SHAPES[2]), "w": some(6, 4 // group, 3, 2), "b": some(6)}

    check_node("Conv", inputs, group=group, **how)


@pytest.mark.parametrize("n", [1, 3])
def test_convolutions_over_one_and_three_axes_agree(n):
    inputs = {"x": some(*SHAPES[n]), "w": some(2, 4, *[2] * n), "b": None}

    check_node("Conv", inputs, strides=[2] * n, pads=[1] * n + [0] * n)


@pytest.mark.parametrize("how", [{}, {"pads": [1, 0, 1, 1]}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}])
def test_convolutions_over_open_sizes_agree(how):
    inputs = {"x": some(*SHAPES[2]), "w": some(6, 4, 3, 2), "b": some(6)}

    check_node("Conv", inputs, open_sizes=True, constants=("w", "b"), **how)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 2]},
        {"strides": [2, 2], "dilations": [1, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
        {"strides": [3, 2], "output_shape": [20, 11]},
        {"strides": [3, 2], "output_shape": [19, 10], "auto_pad": "SAME_UPPER"},
    ],
)
@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolutions_agree(how, group):
    inputs = {"x": some(*SHAPES[2]), "w": some(4, 3, 3, 2), "b": some(3 * group)}

    check_node("ConvTranspose", inputs, group=group, **how)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_transposed_convolutions_over_open_sizes_agree(n):
    inputs = {"x": some(*SHAPES[n]), "w": some(4, 3, *[3] * n), "b": some(3)}

    check_node(
        "ConvTranspose",
        inputs,
        strides=[2] * n,
        pads=[1] * 2 * n,
        output_padding=[1] * n,
        open_sizes=True,
        constants=("w", "b"),
    )


@pytest.mark.sampled(2, each="auto_pad")
@pytest.mark.parametrize("sizes", [(7, 6), (8, 5), (1, 3)])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("strides", [[2, 3], [1, 2]])
def test_automatic_pads_of_open_sizes_agree(sizes, auto_pad, strides):
    how = {"auto_pad": auto_pad, "strides": strides, "open_sizes": True}

    check_node("Conv", {"x": some(2, 4, *sizes), "w": some(6, 4, 3, 4)}, constants=("w",), **how)
    for op, more in (("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1})):
        check_node(op, {"x": distinct(2, 3, *sizes)}, kernel_shape=[3, 4], **how, **more)


@pytest.mark.parametrize("op", ["LpPool", "MaxPool"])
def test_automatic_pads_of_open_sizes_are_refused_where_they_are_not_written(op):
    outputs = ["float32", "int64"] if op == "MaxPool" else 1
    how = {"auto_pad": "SAME_UPPER", "strides": [2, 2], "kernel_shape": [2, 2]}
    model = one_node(op, {"x": some(*SHAPES[2])}, outputs, open_sizes=True, **how)

    with pytest.raises(ProgramError, match="auto_pad with a stride needs known spatial sizes"):
        imported(model)


# --- poolings --------------------------------------------------------------------------------------------------------

POOLS = [
    {"kernel_shape": [2, 3]},
    {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]},
    {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "dilations": [2, 3]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2, 2], "strides": [3, 2], "auto_pad": "SAME_LOWER"},
    {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "VALID"},
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", POOLS)
def test_maxima_agree(how):
    for order in (0, 1) if "dilations" not in how else (0,):
        check_node("MaxPool", {"x": distinct(*SHAPES[2])}, outputs=["float32", "int64"], storage_order=order, **how)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", POOLS)
@pytest.mark.parametrize("include", [0, 1])
def test_means_agree(how, include):
    check_node("AveragePool", {"x": some(*SHAPES[2])}, count_include_pad=include, **how)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", POOLS)
def test_norms_agree(how):
    check_node("LpPool", {"x": some(*SHAPES[2])}, p=3, **how)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_poolings_over_one_and_three_axes_agree(op, n):
    outputs = ["float32", "int64"] if op == "MaxPool" else 1
    for open_sizes in (False, True):
        check_node(
            op,
            {"x": distinct(*SHAPES[n])},
            outputs=outputs,
            open_sizes=open_sizes,
            kernel_shape=[2] * n,
            pads=[1] * 2 * n,
        )


@pytest.mark.parametrize("op", ["GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"])
def test_global_poolings_agree(op):
    check_node(op, {"x": distinct(*SHAPES[2])}, opset=21, **({"p": 3} if op == "GlobalLpPool" else {}))


def test_unpooling_writes_a_position_once():
    x = np.array([[[[3.0, 3.0], [2.0, 1.0]]]], "float32")
    index = np.array([[[[4, 4], [7, 8]]]])

    check_node("MaxUnpool", {"x": x, "i": index}, kernel_shape=[2, 2], strides=[1, 1], gradient=False)
    check_node("MaxUnpool", {"x": x[:, :, 1:], "i": index[:, :, 1:]}, kernel_shape=[3, 2])


def test_maxima_of_integers_agree():
    x = np.random.default_rng(0).integers(-128, 128, (1, 2, 5, 5)).astype("int8")

    check_node("MaxPool", {"x": x}, outputs=["int8"], kernel_shape=[2, 2], gradient=False)
