"""The losses of bench/classes/second_order.py in PyTorch.

Inner gradients are by autograd; under torch.compile, by torch.func.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.func import grad
from torch.nn import functional as F

from bench.classes.second_order import INNER_RATE
from bench.small_tasks import PENALTY

__all__ = ["COMPILED", "LOSSES"]

Tensors = dict[str, torch.Tensor]
Slope = Callable[[Callable[[Any], torch.Tensor], Any], Any]
"""(function with one number as its result, where) -> its gradient there, which can be differentiated."""


def by_autograd(function: Callable[[Any], torch.Tensor], at: Any) -> Any:
    if isinstance(at, dict):
        return dict(zip(at, torch.autograd.grad(function(at), list(at.values()), create_graph=True), strict=True))
    at = at if at.requires_grad else at.detach().requires_grad_()
    return torch.autograd.grad(function(at), at, create_graph=True)[0]


def by_func(function: Callable[[Any], torch.Tensor], at: Any) -> Any:
    return grad(function)(at)


def dense(p: Tensors, prefix: str, x: torch.Tensor, count: int) -> torch.Tensor:
    for i in range(count):
        x = torch.addmm(p[f"{prefix}_b{i}"], x, p[f"{prefix}_w{i}"])
        x = x if i == count - 1 else x.tanh()
    return x


def pinn(p: Tensors, feeds: dict[str, Any], slope: Slope = by_autograd) -> torch.Tensor:
    u = lambda at: dense(p, "u", at, 4)
    at = feeds["at"]
    if slope is by_autograd:  # one graph: the value and both derivatives share it
        at = at.detach().requires_grad_()
        value = u(at)
        (first,) = torch.autograd.grad(value.sum(), at, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), at, create_graph=True)
    else:
        value = u(at)
        first = slope(lambda at: u(at).sum(), at)
        second = slope(lambda at: slope(lambda at: u(at).sum(), at)[:, 0].sum(), at)
    residual = first[:, 1:] + value * first[:, :1] - 0.01 * second[:, :1]
    return residual.square().mean() + F.mse_loss(u(feeds["edge"]), feeds["value"])


def vae(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    h = torch.addmm(p["e_b0"], feeds["x"], p["e_w0"]).relu()
    mean, log = torch.addmm(p["e_b1"], h, p["e_w1"]).chunk(2, 1)
    h = torch.addmm(p["d_b0"], mean + (0.5 * log).exp() * feeds["noise"], p["d_w0"]).relu()
    y = torch.addmm(p["d_b1"], h, p["d_w1"])
    return F.mse_loss(y, feeds["x"]) - 0.5 * (1 + log - mean.square() - log.exp()).mean()


def wgan_gp(p: Tensors, feeds: dict[str, Any], slope: Slope = by_autograd) -> torch.Tensor:
    fake = dense(p, "g", feeds["z"], 3)
    given = fake.detach()
    between = given + (feeds["real"] - given) * feeds["mix"]
    steep = slope(lambda at: dense(p, "d", at, 3).sum(), between)
    penalty = PENALTY * ((steep.square().sum(1) + 1e-12).sqrt() - 1).square().mean()
    critic = dense(p, "d", given, 3).mean() - dense(p, "d", feeds["real"], 3).mean() + penalty
    frozen = {name: value.detach() for name, value in p.items() if name.startswith("d_")}
    return critic - dense(frozen, "d", fake, 3).mean()


def maml(p: Tensors, feeds: dict[str, Any], slope: Slope = by_autograd) -> torch.Tensor:
    """Each task has weights of its own, in batched products."""
    tasks = len(feeds["x"])

    def net(w: Tensors, x: torch.Tensor) -> torch.Tensor:
        for i in range(3):
            x = torch.baddbmm(w[f"b{i}"], x, w[f"w{i}"])
            x = x.relu() if i < 2 else x
        return x

    own = {name: value.expand(tasks, *value.shape) for name, value in p.items()}
    inner = lambda w: (net(w, feeds["x"]) - feeds["y"]).square().sum() / feeds["x"].shape[1]
    moves = slope(inner, own)
    new = {name: value - INNER_RATE * moves[name] for name, value in own.items()}
    return F.mse_loss(net(new, feeds["asked"]), feeds["answer"])


def _compiled(loss: Callable[..., torch.Tensor]) -> Callable[[Tensors, dict[str, Any]], torch.Tensor]:
    return lambda p, feeds: loss(p, feeds, by_func)


LOSSES = {"pinn": pinn, "vae": vae, "wgan_gp": wgan_gp, "maml": maml}
COMPILED = {"pinn": _compiled(pinn), "wgan_gp": _compiled(wgan_gp), "maml": _compiled(maml)}
"""Family of workloads -> its loss for torch.compile, where that is another one."""
