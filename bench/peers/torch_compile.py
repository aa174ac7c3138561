"""PyTorch, compiled: the whole step, update included, as one graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.func import grad_and_value

from bench.peers.torch_eager import versions
from bench.peers.torch_losses import Feeds, Loss, Tensors, loss_of, negative, placed, positive
from bench.workloads import RATE, Workload, mlp

__all__ = ["Training", "start", "versions"]


def start(threads: int) -> None:
    torch.set_num_threads(threads)
    Training(mlp("mlp", 2, (3, 4))).run(1)


class Training:
    """Parameters updated in place, inside the compiled function."""

    def __init__(self, workload: Workload) -> None:
        torch.compiler.reset()  # removes the guards of other workloads
        self._parameters, self._feeds = placed(workload)
        make = two_graphs if workload.name == "branch" else one_graph
        self._step = make(loss_of(workload.name))

    def run(self, steps: int) -> float:
        for _ in range(steps):
            loss = self._step(self._parameters, self._feeds)
        return loss.item()

    def parameters(self) -> dict[str, np.ndarray]:
        return {name: value.detach().numpy().copy() for name, value in self._parameters.items()}


Step = Callable[[Tensors, Feeds], torch.Tensor]


def one_graph(loss: Loss) -> Step:
    """Forward, backward and update as one graph: half the overhead of a compiled loss that autograd differentiates."""

    @torch.compile(fullgraph=True)
    def step(parameters: Tensors, feeds: Feeds) -> torch.Tensor:
        gradients, value = grad_and_value(loss)(parameters, feeds)
        torch._foreach_add_(list(parameters.values()), [gradients[name] for name in parameters], alpha=-RATE)
        return value

    return step


def two_graphs(_: Loss) -> Step:
    """`branch` with its condition in the graph: autograd can differentiate it, `grad_and_value` cannot."""
    compiled = torch.compile(branch, fullgraph=True)

    def step(parameters: Tensors, feeds: Feeds) -> torch.Tensor:
        tensors = [each.requires_grad_() for each in parameters.values()]
        value = compiled(parameters, feeds)
        gradients = torch.autograd.grad(value, tensors)
        with torch.no_grad():
            torch._foreach_add_(tensors, gradients, alpha=-RATE)
        return value

    return step


def branch(p: Tensors, feeds: Feeds) -> torch.Tensor:
    h = feeds["x"]
    for _ in range(feeds["n"]):
        h = torch.cond(h.sum() > 0, positive, negative, (h, p["w"], p["v"]))
    return h.square().mean()
