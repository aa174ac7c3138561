"""PyTorch, op by op."""

from __future__ import annotations

import numpy as np
import torch

from bench.peers.torch_losses import loss_of, placed
from bench.workloads import RATE, Workload, mlp

__all__ = ["Training", "start", "versions"]


def start(threads: int) -> None:
    torch.set_num_threads(threads)
    Training(mlp("mlp", 2, (3, 4))).run(1)


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "numpy": np.__version__}


class Training:
    """Parameters updated in place by one call."""

    def __init__(self, workload: Workload) -> None:
        self._loss = loss_of(workload.name)
        self._parameters, self._feeds = placed(workload)
        for each in self._parameters.values():
            each.requires_grad_()

    def run(self, steps: int) -> float:
        parameters = list(self._parameters.values())
        for _ in range(steps):
            loss = self._loss(self._parameters, self._feeds)
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-RATE)
        return loss.item()

    def parameters(self) -> dict[str, np.ndarray]:
        return {name: value.detach().numpy().copy() for name, value in self._parameters.items()}
