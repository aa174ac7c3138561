"""Quantised operators, Fourier transforms and writes into caches agree with onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.core.onnx.beside_runtime import check_gradient, check_node, one_node
from tests.core.onnx.models import imported, run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 4)).astype("float32")


def whole(dtype, *shape):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def weights(dtype, *shape):
    """Numbers of 7 bits: on CPUs without VNNI, onnxruntime adds pairs of products in 16 bits, and cuts larger sums."""
    return whole(dtype, *shape) // 2


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_quantisation_and_its_inverse_agree(dtype, axis):
    shape = () if axis is None else (X.shape[axis],)
    scale = np.asarray(RNG.uniform(0.01, 0.05, shape), "float32")
    inputs = {"scale": scale, "zero": np.asarray(whole(dtype, *shape))}
    how = {} if axis is None else {"axis": axis}

    check_node("QuantizeLinear", {"x": X, **inputs}, outputs=[dtype], opset=21, gradient=False, **how)
    check_node("DequantizeLinear", {"x": whole(dtype, *X.shape), **inputs}, opset=21, **how)


def test_blocks_agree():
    scale = np.asarray(RNG.uniform(0.01, 0.05, (2, 3, 2)), "float32")
    inputs = {"scale": scale, "zero": whole("int8", 2, 3, 2)}

    check_node("QuantizeLinear", {"x": X, **inputs}, outputs=["int8"], opset=21, gradient=False, axis=2, block_size=2)
    check_node("DequantizeLinear", {"x": whole("int8", 2, 3, 4), **inputs}, opset=21, axis=2, block_size=2)


@pytest.mark.parametrize("sign", [1, -1, 0])
def test_dynamic_quantisation_agrees(sign):
    x = np.abs(X) * sign if sign else X

    check_node("DynamicQuantizeLinear", {"x": x}, outputs=["uint8", "float32", "uint8"], gradient=False)


def test_products_of_integers_agree():
    a, b = whole("uint8", 4, 5), weights("int8", 5, 3)
    zeros = {"a_zero": np.uint8(7), "b_zero": whole("int8", 3)}

    check_node("MatMulInteger", {"a": a, "b": b, **zeros}, outputs=["int32"], opset=21, gradient=False)


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 1, 2]])
def test_quantised_convolutions_agree(pads):
    x, w = whole("uint8", 1, 3, 5, 4), weights("int8", 2, 3, 2, 2)
    scales = {"x_scale": np.float32(0.02), "x_zero": np.uint8(120)}
    scaled = {"w": w, "w_scale": np.array([0.01, 0.03], "float32"), "w_zero": np.zeros(2, "int8")}
    last = {"y_scale": np.float32(0.3), "y_zero": np.uint8(100), "b": whole("int16", 2).astype("int32")}

    check_node(
        "QLinearConv", {"x": x, **scales, **scaled, **last}, outputs=["uint8"], gradient=False, opset=21, pads=pads
    )
    check_node(
        "ConvInteger",
        {"x": x, "w": weights("uint8", 2, 3, 2, 2), "z": np.uint8(9)},
        outputs=["int32"],
        gradient=False,
        opset=21,
        pads=pads,
    )


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize("length", [None, 3, 8])
def test_transforms_follow_the_reference(parts, axis, length):
    x = RNG.normal(size=(2, 5, 4, parts)).astype("float32")
    given = {"length": None if length is None else np.array(length), "axis": np.array(axis)}
    for inverse in (0, 1):
        for onesided in (0, 1):
            if onesided and (parts == 2) != bool(inverse):
                continue
            inputs = {"x": x, **given}
            names = tuple(n for n in inputs if n != "x" and inputs[n] is not None)
            model = one_node("DFT", inputs, opset=20, constants=names, inverse=inverse, onesided=onesided)
            found = imported(model)
            (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
            np.testing.assert_allclose(run(found, [x])[0], expected, 1e-4, 1e-5)
            check_gradient(found, {"x": x})


@pytest.mark.parametrize("onesided", [0, 1])
def test_short_transforms_agree(onesided):
    inputs = {
        "x": RNG.normal(size=(2, 20, 1)).astype("float32"),
        "step": np.array(3),
        "window": np.hanning(8).astype("float32"),
    }

    check_node("STFT", inputs, constants=("step",), onesided=onesided, opset=17)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_caches_follow_the_definition(mode):
    cache, update = RNG.normal(size=(2, 3, 6, 4)), RNG.normal(size=(2, 3, 2, 4))
    start = np.array([1, 5 if mode == "circular" else 4])
    inputs = {"cache": cache, "update": update, "start": start}
    expected = cache.copy()
    for b in range(2):
        for t in range(2):
            expected[b, :, (start[b] + t) % 6] = update[b, :, t]
    model = one_node("TensorScatter", inputs, ["float64"], 24, open_sizes=True, mode=mode)
    found = imported(model)

    np.testing.assert_array_equal(run(found, inputs)[0], expected)
    check_gradient(found, inputs)
