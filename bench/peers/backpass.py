"""Backpass: the step that a session would run, without the service around it."""

from __future__ import annotations

from typing import Any

import llvmlite
import numpy as np
import scipy

from bench.peers.device import on_gpu
from bench.workload import OPTIMIZERS, Workload
from bench.workloads import mlp
from core.codegen.machine import use_compiler_process
from core.compiler.compile import Executable, GradientQuery, Optimizer, compile_training
from core.compiler.trainer import Trainer
from core.wire import read

__all__ = ["Training", "planned", "start", "versions"]


def start(threads: int) -> None:
    use_compiler_process(threads).start()  # as the worker of a session does
    Training(mlp("warm", 2, (3, 4))).run(1)


def versions() -> dict[str, str]:
    return {"numpy": np.__version__, "scipy": scipy.__version__, "llvmlite": llvmlite.__version__}


def planned(workload: Workload) -> Executable:
    """The training step of a workload, of the sizes of its feeds, not compiled."""
    return compile_training(
        read(workload.program),
        GradientQuery(loss="loss"),
        Optimizer(workload.optimizer, dict(OPTIMIZERS[workload.optimizer])),
        gives_gradients=False,
        shapes={name: value.shape for name, value in workload.feeds.items()},
    )


class Training:
    """Training of one workload, from its document; open sizes are those of the feeds, as in a session."""

    def __init__(self, workload: Workload) -> None:
        executable = planned(workload)
        self._trainer: Any
        if on_gpu():
            from bench.peers.backpass_gpu import GpuTrainer, own_gpu

            self._trainer, self._feeds = GpuTrainer(executable.on(own_gpu()), workload), workload.feeds
        else:
            self._trainer, self._feeds = Trainer(executable.compiled(), workload.parameters), workload.feeds
        self._names = list(workload.parameters)

    def run(self, steps: int) -> float:
        if on_gpu():
            return float(self._trainer.run(steps))
        for _ in range(steps):
            loss = self._trainer.step(self._feeds)
        return float(loss)

    def parameters(self) -> dict[str, np.ndarray]:
        values = self._trainer.values()
        return {name: values[name] for name in self._names}
