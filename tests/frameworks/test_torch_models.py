"""Models of PyTorch train in the service as they train in torch, and their weights go back."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import backpass_client as bp

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("onnxscript", reason="needs onnxscript, which exports models of PyTorch")

from tests.frameworks.zoo import CASES, Case, loss_of  # noqa: E402

pytestmark = pytest.mark.slow

STEPS = 20
RATE = 0.01


def case_of(name: str) -> Case:
    package = {"resnet18": "torchvision", "mobilenet_v3": "torchvision", "vit": "torchvision",
               "gpt2": "transformers", "bert": "transformers"}.get(name)  # fmt: skip
    if package is not None and find_spec(package) is None:
        pytest.skip(f"needs {package}")
    case = CASES[name]()
    case.module.train()
    return case


def feeds_of(program: bp.Program, case: Case) -> dict[str, Any]:
    return dict(zip(program.inputs, [each.numpy() for each in (*case.inputs, case.label)], strict=True))


def close(found: np.ndarray, expected: np.ndarray, largest: float) -> bool:
    """At rtol 1e-4 of the tensor. A tensor whose true gradient is zero holds noise below 1e-6 of the largest one."""
    return bool(np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max() + 1e-6 * largest)


@pytest.mark.parametrize("name", CASES)
def test_a_model_trains_as_in_torch_and_its_weights_go_back(name: str, service: bp.Service):
    case = case_of(name)
    module, other = case.module, copy.deepcopy(case.module)
    program = bp.from_torch(module, case.inputs, service, loss=case.loss)
    feeds = feeds_of(program, case)

    first = program.gradients(feeds=feeds)
    optimizer = torch.optim.SGD(other.parameters(), lr=RATE)
    expected = []
    with program.session(optimizer={"type": "sgd", "learning_rate": RATE}) as session:
        losses = [float(session.step(feeds).loss) for _ in range(STEPS)]
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(case, other(*case.inputs))
            loss.backward()
            if step == 0:
                gradients = {n: p.grad.numpy().copy() for n, p in other.named_parameters() if p.grad is not None}
            optimizer.step()
            expected.append(loss.item())
        session.load_into(module)

    largest = max(float(np.abs(each).max()) for each in gradients.values())
    wrong = [n for n, each in gradients.items() if not close(first.gradients[n], each, largest)]
    assert wrong == []
    np.testing.assert_allclose(losses, expected, rtol=2e-3, atol=1e-4)
    trained = other.state_dict()
    for key, value in module.state_dict().items():
        tolerance = 5e-3 * float(trained[key].double().abs().max()) + 1e-4
        np.testing.assert_allclose(value.double(), trained[key].double(), rtol=0, atol=tolerance, err_msg=key)
