"""Backpass: the step that a session would run, without the service around it."""

from __future__ import annotations

import llvmlite
import numpy as np
import scipy

from bench.workloads import RATE, Workload, mlp
from core.compiler.compile import GradientQuery, Optimizer, compile_training
from core.compiler.trainer import Trainer
from core.wire import read

__all__ = ["Training", "start", "versions"]


def start(threads: int) -> None:
    Training(mlp("warm", 2, (3, 4))).run(1)


def versions() -> dict[str, str]:
    return {"numpy": np.__version__, "scipy": scipy.__version__, "llvmlite": llvmlite.__version__}


class Training:
    """SGD on one workload, from its document."""

    def __init__(self, workload: Workload) -> None:
        program = read(workload.program)
        optimizer = Optimizer("sgd", {"learning_rate": RATE})
        executable = compile_training(program, GradientQuery(loss="loss"), optimizer, gives_gradients=False)
        self._trainer = Trainer(executable.compiled(), workload.parameters)
        self._feeds = workload.feeds
        self._names = list(workload.parameters)

    def run(self, steps: int) -> float:
        for _ in range(steps):
            loss = self._trainer.step(self._feeds)
        return loss

    def parameters(self) -> dict[str, np.ndarray]:
        values = self._trainer.values()
        return {name: values[name] for name in self._names}
