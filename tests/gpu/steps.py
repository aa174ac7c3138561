"""Steps of the bench are right and repeat to the bit, ops run one by one, and 10,000 steps need no more memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.workload import OPTIMIZERS, Workload
from core.codegen.backend import CPU
from core.compiler.compile import GradientQuery, Optimizer, compile_training, key_of
from core.runtime.native import native_interpreter
from core.runtime.reference import execute
from core.runtime.run import Run, RunLimits
from core.wire import read
from tests.gpu.rig import Rig, Say
from tests.laws.test_cupy import on_device, programs
from tests.laws.test_ops import OPS, examples_of

__all__ = ["Step", "growth", "ops", "steps"]

REPEATS = 3
"""Runs with equal bits: the first one by launches, the last one as a graph."""

TIMED = 20
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
        executable = compile_training(
            read(workload.program),
            GradientQuery(loss="loss"),
            Optimizer(workload.optimizer, dict(OPTIMIZERS[workload.optimizer])),
            gives_gradients=False,
            shapes={name: value.shape for name, value in workload.feeds.items()},
        )
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


def steps(rig: Rig) -> Say:
    """One line for each workload: the worst difference from the processor, the bits, and the time of a step."""
    for name, make in rig.workloads.items():
        try:
            yield {"step": name, **_step(Step.of(rig, make()), rig)}
        except Exception as error:
            yield {"step": name, "ok": False, "error": f"{type(error).__name__}: {error}"[:300]}


def _step(step: Step, rig: Rig) -> dict[str, Any]:
    runs = [step.run() for _ in range(REPEATS)]
    same = all(one.tobytes() == other.tobytes() for each in runs[1:] for one, other in zip(runs[0], each, strict=True))
    worst = max(map(difference, runs[0], step.wanted()), default=0.0)
    taken = []
    for _ in range(min(TIMED, rig.launches)):
        started = time.perf_counter()
        step.run()
        taken.append(time.perf_counter() - started)
    right = worst <= step.workload.tolerance
    return {
        "ok": right and same, "worst": worst, "allowed": step.workload.tolerance, "same_bits": same,
        "us": statistics.median(taken) * 1e6, "whole": step.native.region is not None,
    }  # fmt: skip


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, as a part of the largest wanted number; infinite if NaN or infinities differ."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return np.inf
    f, w = found.astype("float64"), wanted.astype("float64")
    finite = np.isfinite(w)
    if not np.array_equal(f[~finite], w[~finite], equal_nan=True) or not np.isfinite(f[finite]).all():
        return np.inf
    return float(np.abs(f[finite] - w[finite]).max(initial=0.0) / max(np.abs(w[finite]).max(initial=0.0), 1e-30))


def ops(rig: Rig) -> Say:
    """One line for each op that is wrong, and one with their number: examples and gradients, in float64."""
    right = wrong = 0
    for name in rig.ops or sorted(OPS):
        for i in range(len(examples_of(OPS[name]))):
            try:
                worst = _op(rig, name, i)
            except Exception as error:
                worst, told = np.inf, f"{type(error).__name__}: {error}"[:300]
            else:
                told = f"differs by {worst}"
            if worst > 1e-9:
                wrong += 1
                yield {"op": name, "example": i, "ok": False, "error": told}
            else:
                right += 1
    yield {"ops": right + wrong, "ok": not wrong, "wrong": wrong}


def _op(rig: Rig, name: str, i: int) -> float:
    worst = 0.0
    for block, args in programs(name, i, "float64"):
        with np.errstate(all="ignore"):
            wanted = execute(block, args)
            with rig.arrays() as xp:
                found = [rig.host(each) for each in execute(block, on_device(xp, args), xp=xp)]
        pairs = zip(found, wanted, strict=True)
        worst = max([worst, *(difference(f, np.asarray(w)) for f, w in pairs if not isinstance(w, list))])
    return worst


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
