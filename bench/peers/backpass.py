"""Backpass: the step that a session would run, without the service around it."""

from __future__ import annotations

import llvmlite
import numpy as np
import scipy

from bench.workloads import RATE, Workload, mlp
from core.compile import GradientQuery, Optimizer, compile_training
from core.runtime.reference import RunLimits
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
        self._step = compile_training(program, GradientQuery(loss="loss"), optimizer).compiled().step
        self._values = {**workload.feeds, **workload.parameters}
        self._names = list(workload.parameters)

    def run(self, steps: int) -> float:
        limits = RunLimits()
        for _ in range(steps):
            outputs = self._step(self._values, limits=limits)
            self._values |= outputs.parameters
        return float(outputs.loss)

    def parameters(self) -> dict[str, np.ndarray]:
        return {name: self._values[name] for name in self._names}
