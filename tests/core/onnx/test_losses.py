"""Appended losses: values and gradients beside their formulas, and beside those of PyTorch."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from onnx import TensorProto, helper

import core
from core.onnx import Loss
from tests.core.onnx.models import imported, model_of

W = np.array([2.0, -0.5, 1.0])
TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}
X = np.array([[0.5, 2.0, -3.0], [0.1, -1.0, 0.25]])
Y = np.array([[0.0, 0.0, -3.0], [1.2, 3.0, 0.5]])
"""Differences of 0, inside of 1, 1 and more, of both signs."""


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def huber(d):
    return np.where(np.abs(d) <= 1, d * d / 2, np.abs(d) - 0.5), np.clip(d, -1, 1)


LOSSES = {  # kind -> (loss of each element, its derivative), of the output and the target
    "mse": lambda p, y: ((p - y) ** 2, 2 * (p - y)),
    "l1": lambda p, y: (np.abs(p - y), np.sign(p - y)),
    "smooth_l1": lambda p, y: huber(p - y),
    "huber": lambda p, y: huber(p - y),
    "bce": lambda p, y: (-(y * np.log(p) + (1 - y) * np.log(1 - p)), (p - y) / (p * (1 - p))),
    "bce_with_logits": lambda p, y: (np.log1p(np.exp(-np.abs(p))) + np.maximum(p, 0) - p * y, sigmoid(p) - y),
}
IN_TORCH = {
    "mse": "mse_loss", "l1": "l1_loss", "smooth_l1": "smooth_l1_loss", "huber": "huber_loss",
    "bce": "binary_cross_entropy", "bce_with_logits": "binary_cross_entropy_with_logits",
}  # fmt: skip


def computed(kind: str, dtype: str, x: np.ndarray, y: np.ndarray):
    """The loss of the model x * W, or of its sigmoid for probabilities, and the gradients of x and W."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["z"])]
    nodes += [helper.make_node("Sigmoid" if kind == "bce" else "Identity", ["z"], ["out"])]
    made = model_of(nodes, {"x": (TYPES[dtype], ["batch", 3])}, {"out": (TYPES[dtype], ["batch", 3])},
                    {"w": W.astype(dtype)})  # fmt: skip
    found = imported(made, Loss(kind))
    query = core.GradientQuery(targets=(found.loss,), inputs=("x", "w"))
    step = core.compile_gradient(core.read(found.program), query, fetch=(found.loss,))
    result = step.step({**found.values, "x": x.astype(dtype), "label": y.astype(dtype)})
    return result.fetched[found.loss], result.gradients["x"], result.gradients["w"]


def target(kind: str) -> np.ndarray:
    return np.abs(np.sin(np.arange(6.0))).reshape(2, 3) if kind.startswith("bce") else Y


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", LOSSES)
def test_an_appended_loss_is_the_mean_of_its_formula(kind, dtype):
    z, y = X * W, target(kind)
    out = sigmoid(z) if kind == "bce" else z
    each, slope = LOSSES[kind](out, y)
    slope = slope * (out * (1 - out) if kind == "bce" else 1) / z.size

    loss, of_x, of_w = computed(kind, dtype, X, y)

    rtol = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(loss, each.mean(), rtol)
    np.testing.assert_allclose(of_x, slope * W, rtol, rtol)
    np.testing.assert_allclose(of_w, (slope * X).sum(0), rtol, rtol)
    assert of_x.dtype == of_w.dtype == dtype


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("kind", LOSSES)
def test_an_appended_loss_is_that_of_pytorch(kind, scale):
    """Large outputs saturate: probabilities are 0 or 1 then, and logarithms are cut off."""
    import torch

    x = torch.tensor(X * scale, dtype=torch.float32, requires_grad=True)
    w = torch.tensor(W, dtype=torch.float32, requires_grad=True)
    out = torch.sigmoid(x * w) if kind == "bce" else x * w
    wanted = getattr(torch.nn.functional, IN_TORCH[kind])(out, torch.tensor(target(kind), dtype=torch.float32))
    wanted.backward()

    loss, of_x, of_w = computed(kind, "float32", X * scale, target(kind))

    np.testing.assert_allclose(loss, wanted.item(), 1e-5)
    np.testing.assert_allclose(of_x, x.grad.numpy(), 1e-4, 1e-6)
    np.testing.assert_allclose(of_w, w.grad.numpy(), 1e-4, 1e-5 * scale)
