"""Normalisation and dropout: values beside onnxruntime, gradients beside differences, training by its laws."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import core
from tests.core.onnx.beside_runtime import check_gradient, check_node, one_node
from tests.core.onnx.models import imported, model_of, run


def some(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X = some(3, 4, 2, 5)
CHANNELS = {"scale": some(4, seed=1), "bias": some(4, seed=2)}
STATISTICS = {"mean": some(4, seed=3), "variance": np.abs(some(4, seed=4)) + 0.5}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("opset", [7, 9, 14, 15])
@pytest.mark.parametrize("open_sizes", [False, True])
def test_batch_statistics_that_are_fixed_agree(opset, open_sizes):
    check_node(
        "BatchNormalization", {"x": X, **CHANNELS, **STATISTICS}, opset=opset, epsilon=1e-3, open_sizes=open_sizes
    )


@pytest.mark.parametrize("opset", [9, 14, 15])
def test_batch_statistics_in_training_follow_their_formula(opset):
    how = {"training_mode": 1} if opset >= 14 else {}
    inputs = {"x": X, **CHANNELS, **STATISTICS}
    found = imported(one_node("BatchNormalization", inputs, 3 if how else 5, opset, momentum=0.7, **how))
    mean, variance = X.mean((0, 2, 3)), X.var((0, 2, 3))

    out, new_mean, new_variance, *batch = run(found, inputs)

    wide = [v[:, None, None] for v in (mean, variance, *CHANNELS.values())]
    np.testing.assert_allclose(out, (X - wide[0]) / np.sqrt(wide[1] + 1e-5) * wide[2] + wide[3], 1e-4, 1e-5)
    np.testing.assert_allclose(new_mean, 0.7 * STATISTICS["mean"] + 0.3 * mean, 1e-5)
    np.testing.assert_allclose(new_variance, 0.7 * STATISTICS["variance"] + 0.3 * variance, 1e-5)
    for found_one, wanted in zip(batch, (mean, variance), strict=False):
        np.testing.assert_allclose(found_one, wanted, 1e-5)
    check_gradient(found, inputs)


def test_training_updates_the_running_statistics_of_the_program():
    inputs = {"x": X, **CHANNELS, **STATISTICS}
    model = one_node("BatchNormalization", inputs, 3, 15, constants=tuple(inputs)[1:], training_mode=1)
    found = imported(model)
    program = core.read(found.program)

    step = core.compile_forward(program, ["mean", "variance", "y1", "y2"], {"x": X.shape})
    fetched = step.step({**found.values, "x": X}).fetched

    roles = {each["name"]: each["role"] for each in found.program["blocks"][0]["vars"]}
    assert (roles["mean"], roles["variance"], roles["scale"]) == ("state", "state", "parameter")
    np.testing.assert_array_equal(fetched["mean"], fetched["y1"])
    np.testing.assert_array_equal(fetched["variance"], fetched["y2"])


@pytest.mark.parametrize("axis", [-1, 1, 2])
@pytest.mark.parametrize("outputs", [1, 3])
def test_layers_agree(axis, outputs):
    shape = X.shape[axis:]
    inputs = {"x": X, "scale": some(*shape, seed=5), "bias": some(*shape, seed=6)}

    check_node("LayerNormalization", inputs, outputs=outputs, opset=17, axis=axis)


def test_a_scale_that_broadcasts_over_a_layer_agrees():
    check_node("LayerNormalization", {"x": X, "scale": some(5, seed=1), "bias": None}, opset=17, axis=2)


def test_channels_of_a_sample_agree():
    check_node("InstanceNormalization", {"x": X, **CHANNELS}, open_sizes=True, constants=("scale", "bias"))


def test_groups_agree():
    check_node("GroupNormalization", {"x": X, "s": some(4), "b": some(4, seed=1)}, opset=21, num_groups=2)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_neighbouring_channels_agree(size):
    check_node("LRN", {"x": X}, size=size, alpha=0.3, beta=0.6, bias=1.5)


def test_an_even_number_of_neighbours_has_one_more_after():
    found = imported(one_node("LRN", {"x": X}, size=2, alpha=0.8, beta=1.0, bias=1.0))

    (out,) = run(found, [X])

    after = np.concatenate([X[:, 1:], np.zeros_like(X[:, :1])], 1)
    np.testing.assert_allclose(out, X / (1 + 0.4 * (X**2 + after**2)), 1e-5)


# --- dropout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [7, 10, 12, 13])
def test_dropout_outside_of_training_changes_nothing(opset):
    found = imported(one_node("Dropout", {"x": X}, opset=opset))

    np.testing.assert_array_equal(run(found, [X])[0], X)


@pytest.mark.parametrize("outputs", [["float32"], ["float32", "bool"]])
@pytest.mark.parametrize("constants", [("ratio", "training"), ()])
def test_dropout_in_training_drops_and_scales(outputs, constants):
    x = np.ones((50, 80), "float32")
    inputs = {"x": x, "ratio": np.float32(0.25), "training": np.array(True)}
    found = imported(one_node("Dropout", inputs, outputs, 13, constants))
    feeds = {n: np.asarray(inputs[n]) for n in found.inputs}

    results = run(found, feeds)

    assert set(np.unique(results[0])) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((results[0] != 0).mean() - 0.75) < 0.05
    if len(outputs) == 2:
        np.testing.assert_array_equal(results[1], results[0] != 0)
    if not constants:
        calm = run(found, {**feeds, "training": np.array(False)})
        np.testing.assert_array_equal(calm[0], x)


def test_batch_statistics_as_outputs_outside_of_training_are_refused():
    nodes = [helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "m2", "v2"], name="bn")]
    kinds = {n: (TensorProto.FLOAT, [4]) for n in ("s", "b", "m", "v")}
    model = model_of(nodes, {"x": (TensorProto.FLOAT, X.shape), **kinds}, ["y", "m2", "v2"], opset=15)

    with pytest.raises(core.ProgramError, match="node 'bn'"):
        imported(model)
