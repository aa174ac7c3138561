"""`from_torch`: gradients end where they end in PyTorch, and gradients that a program cannot have are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backpass_client as bp

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("onnxscript", reason="needs onnxscript, which exports models of PyTorch")
nn = torch.nn

from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.frameworks.beside_torch import Applied, assert_as_in_torch  # noqa: E402

pytestmark = pytest.mark.slow


class Weighted(nn.Module):
    """A layer whose output goes through a function that also takes the weights."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(2, 2), function

    def forward(self, x: Any) -> Any:
        return self.function(self.linear(x), self.linear.weight)


def times_sum_without_gradient(x: Any) -> Any:
    with torch.no_grad():
        total = x.sum()
    return x * total


def enabled_inside_disabled(x: Any) -> Any:
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * a
        c = b * 3
    return b + c


def detached_in_place(x: Any) -> Any:
    y = x * 2
    y.detach_()
    return x * y


def changed_inside_no_grad(x: Any) -> Any:
    with torch.no_grad():
        y = x * 2
        y[0] = 5.0
        y.add_(x)
    return x * y


def filled_inside_no_grad(x: Any) -> Any:
    y = torch.zeros(2, 3)
    with torch.no_grad():
        y[0] = x[0]
    return x * y


def penalty_of_a_formula(x: Any) -> Any:
    y = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad((y**3).sum(), y)
    return slope * x


def hard_choice(x: Any) -> Any:
    soft = x.softmax(1)
    hard = (soft.argmax(1, keepdim=True) == torch.arange(3)).float()
    return hard - soft.detach() + soft


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "detach": lambda x: x * x.detach(),
    "data": lambda x: x * x.data,
    "detach in place": detached_in_place,
    "straight-through rounding": lambda x: x + (torch.round(x) - x).detach(),
    "straight-through choice": hard_choice,
    "a copied tensor": lambda x: x * torch.tensor(x.sum()),
    "a number": lambda x: x * x.sum().item(),
    "no_grad": times_sum_without_gradient,
    "no_grad around enable_grad": enabled_inside_disabled,
    "a value made and changed inside no_grad": changed_inside_no_grad,
    "a constant changed inside no_grad": filled_inside_no_grad,
    "no_grad in a branch": lambda x: torch.cond(x.sum() > -99, times_sum_without_gradient, torch.cos, (x,)),
    "detach inside vmap": lambda x: torch.func.vmap(lambda row: row * row.detach())(x),
    "a gradient without create_graph": penalty_of_a_formula,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_end_where_they_end_in_torch(name: str, service: bp.Service):
    assert_as_in_torch(service, FUNCTIONS[name], torch.randn(2, 3) * 2)


def test_detached_weights_have_only_the_gradient_of_their_other_uses(service: bp.Service):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.v = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3, 3))

        def forward(self, x: Any) -> Any:
            return (x @ self.w.detach()).tanh() @ self.v.data + x @ self.w

    assert_as_in_torch(service, Twice(), torch.randn(2, 3))


class Bootstrapped(nn.Module):
    """The loss of a network against a target network, which is computed without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            wanted = self.target(x).amax(1, keepdim=True)
        return (self.online(x) - wanted).square()


def test_a_target_network_has_no_gradient(service: bp.Service):
    assert_as_in_torch(service, Bootstrapped(), torch.randn(4, 3))


def test_training_leaves_a_target_network_as_it_is(service: bp.Service):
    module, x = Bootstrapped(), torch.randn(4, 3)
    program = bp.from_torch(module, x, service, loss=lambda y: y.mean())

    with program.session(optimizer={"type": "sgd", "learning_rate": 0.1}) as session:
        loss = float(session.step({"x": x.numpy()}).loss)
        trained = session.parameters()

    module(x).mean().backward()
    expected = module.online.weight - 0.1 * module.online.weight.grad
    assert loss == pytest.approx(module(x).mean().item(), rel=1e-5)
    np.testing.assert_allclose(trained["online.weight"], expected.detach(), rtol=1e-5)
    for name in ("target.weight", "target.bias"):
        assert name not in trained or np.array_equal(trained[name], module.get_parameter(name).detach())


class Averaging(nn.Module):
    """Codes that follow the states by a moving average, as in vector quantisation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("codes", torch.randn(5, 3))

    def forward(self, x: Any) -> Any:
        states = self.linear(x)
        nearest = (states[:, None] - self.codes).square().sum(2).argmin(1)
        with torch.no_grad():
            hot = torch.nn.functional.one_hot(nearest, 5).float()
            self.codes.mul_(0.9).add_(0.1 * hot.T @ states)
        quantised = self.codes[nearest]
        return states + (quantised - states).detach() + (states - quantised.detach()).square()


def test_buffers_changed_inside_no_grad_pass_no_gradient(service: bp.Service):
    assert_as_in_torch(service, Averaging(), torch.randn(6, 3))


def test_buffers_changed_inside_no_grad_are_states(service: bp.Service):
    module, x = Averaging(), torch.randn(6, 3)
    program = bp.from_torch(module, x, service, loss=lambda y: y.mean())

    with program.session(optimizer={"type": "sgd", "learning_rate": 0.0}) as session:
        session.step({"x": x.numpy()})
        trained = Averaging()
        session.load_into(trained)

    module(x)
    np.testing.assert_allclose(trained.codes, module.codes, rtol=1e-5, atol=1e-6)


def test_spectral_normalisation_trains_with_its_power_iteration(service: bp.Service):
    module = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4))

    assert_as_in_torch(service, module, torch.randn(2, 3))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.linear, self.reentrant = nn.Linear(2, 2), reentrant

    def forward(self, x: Any) -> Any:
        return checkpoint(self.linear, x, use_reentrant=self.reentrant)


def test_checkpointing_keeps_gradients(service: bp.Service):
    assert_as_in_torch(service, Checkpointed(False), torch.randn(3, 2))


def test_a_penalty_on_the_gradient_of_weights_has_a_gradient(service: bp.Service):
    def penalty(y: Any, weight: Any) -> Any:
        (slope,) = torch.autograd.grad((y**2).sum(), weight, create_graph=True)
        return y + slope.square().sum()

    assert_as_in_torch(service, Weighted(penalty), torch.randn(3, 2))


# --- refused -------------------------------------------------------------------------------------------------------


class Reversed(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, ct: Any) -> Any:
        return -ct


reverse = Reversed.apply


def hooked(y: Any, weight: Any) -> Any:
    y.register_hook(lambda ct: 2 * ct)
    return y


def inference(y: Any, weight: Any) -> Any:
    with torch.inference_mode():
        total = y.sum()
    return y * total


def changed_result(y: Any, weight: Any) -> Any:
    with torch.no_grad():
        y[0].mul_(3)
    return y


def changed_through_detach(y: Any, weight: Any) -> Any:
    y.detach().mul_(3)
    return y


def clipped_weight(y: Any, weight: Any) -> Any:
    with torch.no_grad():
        weight.clamp_(-0.1, 0.1)
    return y


def clipped_data(y: Any, weight: Any) -> Any:
    weight.data.clamp_(-0.1, 0.1)
    return y


def assigned_data(y: Any, weight: Any) -> Any:
    weight.data = weight.data.clamp(-0.1, 0.1)
    return y


def written_gradient(y: Any, weight: Any) -> Any:
    (y**2).sum().backward()
    return y


class Penalised(nn.Module):
    """A penalty on the slope of a layer at its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x: Any) -> Any:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.linear(x).tanh().sum(), x, create_graph=True)
        return slope.norm()


REFUSED: dict[str, tuple[Any, str]] = {
    "a function with a backward pass": (Weighted(lambda y, _: Reversed.apply(y)), r"Reversed is a torch\.autograd\.Fu"),
    "a function bound before": (Weighted(lambda y, _: reverse(y)), r"Reversed .* x \+ \(f\(x\) - x\)\.detach\(\)"),
    "reentrant checkpointing": (Checkpointed(True), "use_reentrant=False"),
    "a hook in forward": (Weighted(hooked), "no hooks of backward passes"),
    "inference mode": (Weighted(inference), r"use torch\.no_grad"),
    "a result changed inside no_grad": (Weighted(changed_result), "mul_ .* in place where autograd does not see it"),
    "a result changed through detach": (Weighted(changed_through_detach), "mul_ .* where autograd does not see it"),
    "a parameter changed inside no_grad": (Weighted(clipped_weight), "clamp_ .* a parameter is changed in place"),
    "a parameter changed through data": (Weighted(clipped_data), "clamp_ .* a parameter is changed in place"),
    "assigned data": (Weighted(assigned_data), r"cannot assign to \.data"),
    "backward in forward": (Weighted(written_gradient), "cannot write gradients in forward"),
    "a gradient at detached inputs": (Penalised(), "such as a gradient in forward"),
    "a gradient by torch.func": (
        Applied(lambda x: torch.func.grad(lambda y: (y**3).sum())(x)), "such as a gradient in forward"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_gradients_that_would_be_lost_are_refused(name: str, service: bp.Service):
    module, message = REFUSED[name]

    with pytest.raises(bp.BackpassError, match=message):
        bp.from_torch(module, torch.randn(2, 2), service)


@pytest.mark.parametrize("kind", ["module", "parameter"])
def test_modules_with_hooks_of_the_backward_pass_are_refused(kind: str, service: bp.Service):
    module = nn.Sequential(nn.Linear(2, 2))
    if kind == "module":
        module[0].register_full_backward_hook(lambda layer, cts, _: (2 * cts[0],))
    else:
        module[0].weight.register_hook(lambda ct: 2 * ct)

    with pytest.raises(bp.BackpassError, match=f"{kind} '0.*'"):
        bp.from_torch(module, torch.randn(2, 2), service)


def test_functions_hooks_and_data_work_again_after_an_export(service: bp.Service):
    with pytest.raises(bp.BackpassError, match="Reversed"):
        bp.from_torch(Weighted(lambda y, _: reverse(y)), torch.randn(2, 2), service)

    x = torch.ones(2, requires_grad=True)
    y = reverse(x) * 3
    y.register_hook(lambda ct: ct * 2)
    with torch.inference_mode():
        pass
    y.sum().backward()
    assert x.grad.tolist() == [-6.0, -6.0]
    x.data = torch.zeros(2)
    assert x.data.tolist() == [0.0, 0.0]
