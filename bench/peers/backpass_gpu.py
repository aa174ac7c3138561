"""Backpass on a GPU: a bound step, as a session of a worker on CUDA runs it, with its feeds on the GPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from bench.workload import Workload
from core.device.backend import DeviceBackend
from core.device.bind import bind_device_step
from core.device.cupy_driver import CupyDriver
from core.runtime.executable import Executable
from core.runtime.run import Run, RunLimits

__all__ = ["GpuTrainer", "own_gpu"]


@cache
def own_gpu() -> DeviceBackend:
    """The first GPU of this process."""
    return DeviceBackend(CupyDriver())


class GpuTrainer:
    """See `core.compiler.trainer.Trainer`. Its steps return the loss as an array of the GPU."""

    def __init__(self, executable: Executable, workload: Workload) -> None:
        """executable: for the backend of a GPU, not compiled."""
        backend = executable.backend
        assert isinstance(backend, DeviceBackend), "a step for a GPU"
        xp = backend.driver.xp
        placed = lambda arrays: {name: xp.asarray(value) for name, value in arrays.items()}
        self._feeds = placed(workload.feeds)
        self._values = placed({**executable.initial_state(), **workload.parameters})
        self.executable = executable.compiled()
        bound = bind_device_step(self.executable, self._values)
        assert bound is not None, "no part of the step is machine code"
        self._bound: Any = bound
        self._bound.put_tables(self._values)
        self._xp = xp
        self._steps = 0
        self._last: Any = None

    def step(self) -> Any:
        """Run one step with the feeds of the workload."""
        return self.run(1)

    def run(self, steps: int) -> Any:
        """Run steps with the feeds of the workload, as a call of a session that fits to stored data does."""
        assert self._bound.takes(self._feeds)
        runs = (Run(self._xp, RunLimits()) for _ in range(steps))
        for out in self._bound.steps(runs, 0, self._steps):
            self._last, self._steps = out, self._steps + 1
        return self._last.loss

    def values(self) -> dict[str, np.ndarray]:
        new = {**self._values, **self._last.parameters}
        return {name: value.get() if hasattr(value, "get") else self._values[name].get() for name, value in new.items()}
