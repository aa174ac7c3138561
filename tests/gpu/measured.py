"""Times on a GPU: of steps as a session runs them, and of each instruction on one block and on all."""

from __future__ import annotations

import fcntl
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.backpass import planned
from bench.peers.backpass_gpu import GpuTrainer
from core.analysis.profile import profile_of
from core.compiler.compile import key_of
from core.device.backend import DeviceBackend
from core.device.rules import Rules
from core.plan.plan import Plan
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from core.runtime.times import Times
from tests.gpu.rig import Rig

__all__ = ["rates", "times"]

WARM = 5
MEASURED_S = 0.02
"""Seconds of the steps of one measurement; at least one step."""

MEASUREMENTS = 7
BUSY = 8192
"""Rows of the product that keeps a GPU busy while the host gives it all launches of a step, some 20 milliseconds."""

SCOPES = ("one block", "all blocks")


@contextmanager
def alone(rig: Rig) -> Iterator[None]:
    """No other process measures inside."""
    with open(Path(tempfile.gettempdir()) / f"backpass-{rig.driver.properties.name.split()[0]}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def times(rig: Rig, name: str) -> dict[str, Any]:
    """The time of a step whose feeds lie on the GPU, and the seconds until the first one has ended."""
    workload = rig.workloads[name]()
    started = time.perf_counter()
    trainer = GpuTrainer(planned(workload).on(rig.backend()), workload)

    def steps(n: int) -> float:
        before = time.perf_counter()
        trainer.run(n)
        rig.wait()
        return time.perf_counter() - before

    made = time.perf_counter() - started
    with alone(rig):
        first = made + steps(1)
        steps(WARM)
        n = max(1, round(MEASURED_S / (steps(2) / 2)))
        taken = statistics.median(steps(n) / n for _ in range(MEASUREMENTS))
    machine = trainer.executable.machine
    region = machine.region if machine is not None else None
    launches = len(region.code.work) if region is not None else 0
    return {"ok": True, "us": taken * 1e6, "first_s": first, "launches": launches, "steps": n}


class _Scoped(DeviceBackend):
    """Runs each instruction that can leave a launch on one block, or on all."""

    scope = SCOPES[0]

    def _how(self, plan: Plan) -> tuple[Plan, int, int, Rules]:
        if self.scope == SCOPES[0]:
            return plan, 1, self._block, self.rules
        return plan, self._blocks, self._block, replace(self.rules, launch=0.0, block_bandwidth=1.0, block_flops=1.0)


def rates(rig: Rig, name: str) -> dict[str, Any]:
    """For one block and for all: kernel, operations, bytes and microseconds of each instruction, in their order."""
    workload, xp = rig.workloads[name](), rig.driver.xp
    executable = planned(workload)
    values = {**executable.initial_state(), **workload.parameters, **workload.feeds}
    args = [key_of(0, 0) if each.role == "key" else np.asarray(values[each.name]) for each in executable.inputs]
    found: dict[str, Any] = {"ok": True}
    for scope in SCOPES:
        backend = _Scoped(rig.driver, rig.make, rig.blocks, rig.block, rig.disk)
        backend.scope = scope
        native = native_interpreter(executable.interpreter.block, backend, timed=True)
        given = [rig.to_device(each) for each in args]
        runs = []
        with alone(rig):
            for _ in range(2):
                native(Run(xp), *given)
            big = xp.ones((BUSY, BUSY), "float32") if xp is not np else None
            for _ in range(MEASUREMENTS):
                if big is not None:
                    big @ big
                measured = Times()
                native(Run(xp, times=measured), *given)
                runs.append(measured)
        rows = []
        for parts in runs[0].together:
            one = Times(together={parts: runs[0].together[parts]})
            (row,) = profile_of(one, on_cpu=False)["kernels"]
            us = statistics.median(each.together[parts].seconds for each in runs) * 1e6
            rows.append([row["kernel"], row["flops"], row["bytes"], round(us, 2)])
        found[scope] = rows
    return found
