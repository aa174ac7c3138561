"""Steps of the bench on a device, and the memory of 10,000 steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.backpass import planned
from bench.workload import Workload
from core.codegen.backend import CPU
from core.compiler.compile import key_of
from core.runtime.native import native_interpreter
from core.runtime.run import Run, RunLimits
from tests.gpu.rig import Rig, Say

__all__ = ["REPEATS", "Step", "difference", "growth"]

REPEATS = 3
"""Runs with equal bits: the first one by launches, the last one as a graph."""

GROWTH = 8 << 20
"""Bytes that a device or a process may hold more after many steps."""


@dataclass(frozen=True, slots=True)
class Step:
    """A training step on a device: `run` gives its results, `wanted` gives those of the processor."""

    workload: Workload
    native: Any
    run: Callable[..., list[np.ndarray]]
    wanted: Callable[[], list[np.ndarray]]

    @classmethod
    def of(cls, rig: Rig, workload: Workload) -> Step:
        executable = planned(workload)
        values = {**executable.initial_state(), **workload.parameters, **workload.feeds}
        args = [key_of(0, 0) if each.role == "key" else np.asarray(values[each.name]) for each in executable.inputs]
        block = executable.interpreter.block
        native, given = native_interpreter(block, rig.backend()), [rig.to_device(each) for each in args]

        def run(limits: RunLimits | None = None) -> list[np.ndarray]:
            with np.errstate(all="ignore"):
                found = native(Run(rig.driver.xp, limits or RunLimits()), *given)
            return [rig.to_host(each) for each in found]

        def wanted() -> list[np.ndarray]:
            return [np.asarray(each) for each in native_interpreter(block, CPU)(Run(), *args)]

        return cls(workload, native, run, wanted)


def difference(found: np.ndarray, wanted: np.ndarray, least: float = 1e-30) -> float:
    """The largest difference, as a part of the largest wanted number; infinite if NaN or infinities differ.

    least: the smallest number that differences are parts of.
    """
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return np.inf
    f, w = found.astype("float64"), wanted.astype("float64")
    finite = np.isfinite(w)
    if not np.array_equal(f[~finite], w[~finite], equal_nan=True) or not np.isfinite(f[finite]).all():
        return np.inf
    return float(np.abs(f[finite] - w[finite]).max(initial=0.0) / max(np.abs(w[finite]).max(initial=0.0), least))


def growth(rig: Rig) -> Say:
    """Memory of the device and of this process after many steps, compared with that after a few."""
    step = Step.of(rig, next(iter(rig.workloads.values()))())
    for _ in range(10):
        step.run()
    free, resident = rig.driver.free_bytes(), _resident()
    for _ in range(rig.steps):
        step.run()
    device, host = free - rig.driver.free_bytes(), _resident() - resident
    yield {"steps": rig.steps, "ok": max(device, host) <= GROWTH, "device_bytes": device, "host_bytes": host}


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
