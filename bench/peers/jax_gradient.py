"""JAX: loss and gradients under one jit, without an update."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from bench.peers.jax_jit import loss_of, placed, versions, with_rows
from bench.workloads import Workload, mlp

__all__ = ["Training", "start", "versions"]


def start(threads: int) -> None:
    Training(mlp("mlp", 2, (3, 4))).run(1)


class Training:
    """Computes gradients and keeps its parameters as they are."""

    def __init__(self, workload: Workload) -> None:
        loss = loss_of(workload)
        of_all = lambda parameters, feeds: loss(with_rows(workload.lookups, parameters, feeds), feeds)
        self._gradient = jax.jit(jax.value_and_grad(of_all))
        self._feeds = placed(workload)
        self._parameters = {name: jnp.array(value) for name, value in workload.parameters.items()}

    def run(self, steps: int) -> float:
        for _ in range(steps):
            loss, gradients = self._gradient(self._parameters, self._feeds)
            self._gradients = {name: np.asarray(value) for name, value in gradients.items()}
        return float(loss)

    def parameters(self) -> dict[str, np.ndarray]:
        return {name: np.array(value) for name, value in self._parameters.items()}
