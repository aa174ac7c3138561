"""PyTorch, op by op."""

from __future__ import annotations

import numpy as np
import torch

from bench.peers.device import on_gpu
from bench.peers.torch_losses import Tensors, descend, loss_of, placed, with_rows
from bench.workload import OPTIMIZERS, Workload
from bench.workloads import mlp

__all__ = ["Training", "place", "start", "versions"]


def place(threads: int) -> None:
    """Compute on so many threads, or on the GPU in float32 as Backpass does, without rounding to TF32."""
    torch.set_num_threads(threads)
    if on_gpu():
        torch.set_default_device("cuda")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True


def start(threads: int) -> None:
    place(threads)
    Training(mlp("mlp", 2, (3, 4))).run(1)


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "numpy": np.__version__}


class Training:
    """Parameters updated in place by one call."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._loss = loss_of(workload.name)
        self._parameters, self._feeds = placed(workload)
        for each in self._parameters.values():
            each.requires_grad_()
        self._adam = None
        if workload.optimizer == "adam":
            self._adam = adam(self._parameters)

    def run(self, steps: int) -> float:
        for _ in range(steps):
            used = with_rows(self._workload, self._parameters, self._feeds)
            loss = self._loss(used, self._feeds)
            gradients = dict(zip(used, torch.autograd.grad(loss, list(used.values())), strict=True))
            if self._adam is not None:
                for name, each in self._parameters.items():
                    each.grad = gradients[name]
                self._adam.step()
            else:
                with torch.no_grad():
                    descend(self._workload, self._parameters, gradients, self._feeds)
        return loss.item()

    def parameters(self) -> dict[str, np.ndarray]:
        return {name: value.detach().cpu().numpy().copy() for name, value in self._parameters.items()}


def adam(parameters: Tensors) -> torch.optim.Adam:
    """Adam with its update of all parameters in one kernel."""
    attributes = OPTIMIZERS["adam"]
    betas = attributes["beta1"], attributes["beta2"]
    return torch.optim.Adam(
        parameters.values(), lr=attributes["learning_rate"], betas=betas, eps=attributes["epsilon"], fused=True
    )
