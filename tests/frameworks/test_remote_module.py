"""`RemoteModule`: part of a model lives in the service, and the whole trains as in torch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backpass_client as bp

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("onnxscript", reason="needs onnxscript, which exports models of PyTorch")
nn, functional = torch.nn, torch.nn.functional

pytestmark = pytest.mark.slow

SGD = {"type": "sgd", "learning_rate": 0.1}


class Model(nn.Module):
    """Two local layers around a part, which may be remote."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.first, self.part, self.last = nn.Linear(3, 4), part, nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.part(torch.tanh(self.first(x)))))


def part() -> Any:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))


@pytest.fixture
def pair(service: bp.Service) -> Iterator[tuple[Any, Any, Any]]:
    """A model with a remote part, its local twin, and the remote part."""
    local = Model(part())
    program = bp.from_torch(local.part, torch.randn(5, 4), service)
    remote = bp.RemoteModule(program, optimizer=SGD)
    split = Model(remote)
    split.first, split.last = copy.deepcopy(local.first), copy.deepcopy(local.last)
    yield split, local, remote
    remote.close()


def test_a_split_model_trains_as_a_local_one(pair: tuple[Any, Any, Any]):
    split, local, remote = pair
    ours, theirs = torch.optim.SGD(split.parameters(), lr=0.1), torch.optim.SGD(local.parameters(), lr=0.1)

    for _ in range(10):
        x, y = torch.randn(5, 3), torch.randint(0, 2, (5,))
        losses = []
        for model, optimizer in ((split, ours), (local, theirs)):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        remote.step()
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)

    np.testing.assert_allclose(split.first.weight.grad, local.first.weight.grad, rtol=1e-3, atol=1e-6)
    back = part()
    remote.load_into(back)
    for key, value in local.part.state_dict().items():
        np.testing.assert_allclose(back.state_dict()[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


def test_evaluation_mode_uses_running_statistics_of_the_present(pair: tuple[Any, Any, Any]):
    split, local, remote = pair
    x, y = torch.randn(5, 3), torch.randint(0, 2, (5,))
    for model in (split, local):
        functional.cross_entropy(model(x), y).backward()
        model.eval()
    remote.zero_grad()

    with torch.no_grad():
        found, expected = split(x[:5]), local(x[:5])

    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_gradients_of_several_backward_passes_add_up(pair: tuple[Any, Any, Any]):
    split, local, remote = pair
    batches = [torch.randn(5, 3) for _ in range(3)]
    for model in (split, local):
        for x in batches:
            model(x).square().mean().backward()
    theirs = torch.optim.SGD(local.part.parameters(), lr=0.1)

    theirs.step()
    remote.step()

    back = part()
    remote.load_into(back)
    for key, value in local.part.state_dict().items():
        np.testing.assert_allclose(back.state_dict()[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
    np.testing.assert_allclose(split.first.weight.grad, local.first.weight.grad, rtol=1e-3, atol=1e-6)


def test_a_backward_pass_after_an_update_is_refused(pair: tuple[Any, Any, Any]):
    split, _, remote = pair
    x = torch.randn(5, 3)
    late = split(x).sum()
    split(x).sum().backward()
    remote.step()

    with pytest.raises(bp.BackpassError, match="updated between"):
        late.backward()


def test_the_backward_pass_drops_what_the_forward_pass_dropped(service: bp.Service):
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(50, 50, bias=False))
    with torch.no_grad():
        module[1].weight.copy_(torch.eye(50))
    program = bp.from_torch(module, torch.ones(4, 50), service)
    remote = bp.RemoteModule(program)
    seen = []
    for _ in range(3):
        x = torch.ones(4, 50, requires_grad=True)
        y = remote(x)
        y.sum().backward()
        assert torch.equal(y.detach(), x.grad)
        seen.append(y.detach())

    assert not torch.equal(seen[0], seen[1])
    x = torch.ones(4, 50, requires_grad=True)
    first, second = remote(x), remote(x)
    first.sum().backward()
    with pytest.raises(bp.BackpassError, match="draws random numbers"):
        second.sum().backward()
    remote.eval()
    assert torch.equal(remote(x), x)
    remote.close()


def test_a_module_may_have_several_outputs_of_which_some_are_unused(service: bp.Service):
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x: Any, index: Any) -> Any:
            return x * self.weight, (x * self.weight)[:, index].exp()

    module = Two()
    x, index = torch.randn(2, 3), torch.tensor([0, 2])
    remote = bp.RemoteModule(bp.from_torch(module, (x, index), service), optimizer=SGD)
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()

    remote(mine, index=index)[1].sum().backward()
    module(other, index)[1].sum().backward()
    remote.step()

    np.testing.assert_allclose(mine.grad, other.grad, rtol=1e-5)
    np.testing.assert_allclose(
        remote.session.parameters()["weight"], (module.weight - 0.1 * module.weight.grad).detach(), rtol=1e-5
    )
    with pytest.raises(TypeError, match="given twice"):
        remote(mine, x=mine, index=index)
    remote.close()


@pytest.mark.parametrize("cotangent", ["constant", "differentiable"])
def test_a_gradient_of_second_order_is_refused(pair: tuple[Any, Any, Any], cotangent: str):
    """Also where the cotangent is a constant, as in a gradient penalty: torch would leave the term out."""
    split, _, remote = pair
    x = torch.randn(5, 4, requires_grad=True)
    out = remote(x)
    scalar = out.sum() if cotangent == "constant" else (out**2).sum()

    (slope,) = torch.autograd.grad(scalar, x, create_graph=True)
    loss = split.first(torch.ones(5, 3)).sum() + (slope**2).sum()

    with pytest.raises(bp.BackpassError, match="no gradients of second order"):
        loss.backward()


def test_a_gradient_with_a_graph_that_is_not_differentiated_is_that_of_torch(pair: tuple[Any, Any, Any]):
    _, local, remote = pair
    x = torch.randn(5, 4, requires_grad=True)

    slopes = [torch.autograd.grad((m(x) ** 2).sum(), x, create_graph=True)[0] for m in (remote, local.part)]

    np.testing.assert_allclose(slopes[0].detach(), slopes[1].detach(), rtol=1e-4, atol=1e-6)
