"""PyTorch, compiled: the whole step, update included, as one graph; on a GPU captured as a graph of launches, too."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from torch.func import grad_and_value

from bench.peers.device import on_gpu
from bench.peers.torch_eager import place, versions
from bench.peers.torch_losses import Feeds, Loss, Tensors, descend, loss_of, negative, placed, positive, with_rows
from bench.workload import OPTIMIZERS, RATE, Workload
from bench.workloads import mlp

__all__ = ["Training", "start", "versions"]


def start(threads: int) -> None:
    place(threads)
    Training(mlp("mlp", 2, (3, 4))).run(1)


class Training:
    """Parameters updated in place, inside the compiled function."""

    def __init__(self, workload: Workload) -> None:
        torch.compiler.reset()  # removes the guards of other workloads
        self._parameters, self._feeds = placed(workload)
        states: list[torch.Tensor] = []
        if workload.optimizer == "adam":
            self._step, states = one_graph_of_adam(loss_of(workload.name, compiled=True), self._parameters)
        else:
            make = two_graphs if workload.name == "branch" else one_graph
            self._step = make(loss_of(workload.name, compiled=True), workload)
        if on_gpu():
            self._step = captured(self._step, self._parameters, self._feeds, states)

    def run(self, steps: int) -> float:
        for _ in range(steps):
            loss = self._step(self._parameters, self._feeds)
        return loss.item()

    def parameters(self) -> dict[str, np.ndarray]:
        return {name: value.detach().cpu().numpy().copy() for name, value in self._parameters.items()}


Step = Callable[[Tensors, Feeds], torch.Tensor]


def one_graph(loss: Loss, workload: Workload) -> Step:
    """Forward, backward and update as one graph: half the overhead of a compiled loss that autograd differentiates."""

    @torch.compile(fullgraph=True)
    def step(parameters: Tensors, feeds: Feeds) -> torch.Tensor:
        gradients, value = grad_and_value(loss)(with_rows(workload, parameters, feeds), feeds)
        descend(workload, parameters, gradients, feeds)
        return value

    return step


def captured(step: Step, parameters: Tensors, feeds: Feeds, states: list[torch.Tensor]) -> Step:
    """The step as one graph of the GPU, as `torch.cuda.graph` captures it; the step itself if that cannot be done.

    states: what a step changes besides the parameters.
    """
    changed = [*parameters.values(), *states]
    before = [each.detach().clone() for each in changed]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(parameters, feeds)
    torch.cuda.current_stream().wait_stream(side)
    with torch.no_grad():
        for each, old in zip(changed, before, strict=True):
            each.copy_(old)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            value = step(parameters, feeds)
    except Exception as refused:
        print(f"no graph: {refused}", file=sys.stderr)
        torch.cuda.synchronize()
        return step

    def replay(_: Tensors, __: Feeds) -> torch.Tensor:
        graph.replay()
        return value

    return replay


def one_graph_of_adam(loss: Loss, parameters: Tensors) -> tuple[Step, list[torch.Tensor]]:
    """The same with Adam, written out: its update is then part of the graph. Returns the states of Adam, too."""
    attributes = OPTIMIZERS["adam"]
    rate, b1, b2, epsilon = (attributes[name] for name in ("learning_rate", "beta1", "beta2", "epsilon"))
    first = [torch.zeros_like(each) for each in parameters.values()]
    second = [torch.zeros_like(each) for each in parameters.values()]
    taken = torch.zeros(())

    @torch.compile(fullgraph=True)
    def compiled(
        parameters: Tensors, feeds: Feeds, first: list[torch.Tensor], second: list[torch.Tensor], taken: torch.Tensor
    ) -> torch.Tensor:
        gradients, value = grad_and_value(loss)(parameters, feeds)
        taken += 1
        size, spread = rate / (1 - b1**taken), (1 - b2**taken).sqrt()
        for (name, each), mean, square in zip(parameters.items(), first, second, strict=True):
            gradient = gradients[name]
            mean.lerp_(gradient, 1 - b1)
            square.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
            each.sub_(size * mean / (square.sqrt() / spread + epsilon))
        return value

    return (lambda parameters, feeds: compiled(parameters, feeds, first, second, taken)), [*first, *second, taken]


def two_graphs(_: Loss, workload: Workload) -> Step:
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
