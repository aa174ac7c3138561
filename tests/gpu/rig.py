"""What the checks run on: a GPU through cupy, or the emulated driver, with programs of a size that fits it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.workload import Workload
from bench.workloads import WORKLOADS, mlp, rnn_while
from core.codegen.cache import DiskCache
from core.device.backend import DeviceBackend
from core.device.rules import Rules
from tests.cupy_stand_in import installed, to_host

__all__ = ["NoGpu", "Rig", "Say", "emulated", "real"]

Say = Iterator[dict[str, Any]]
"""The lines of a check. Each has `ok`, and the numbers that were found."""


class NoGpu(Exception):
    """There is no GPU that can be used; the message gives the reason."""


@dataclass(frozen=True)
class Rig:
    """A device and the amounts of work for it.

    driver:    see `core.device.driver.Driver`.
    make:      makes machine code; None takes the one for GPUs.
    arrays:    a context with the array module for ops that run one by one; `host` makes NumPy arrays of its arrays.
    launches:  of a measurement. steps: without growth of memory. ops: names of ops; None for all.
    waits:     seconds that a stop may take.
    child:     the command of a process that runs steps until it is killed.
    worker:    the command of a process that runs units; `workers` of them run at a time.
    examples:  of an op that become machine code. seeds: of programs and mixtures. programs: for each seed.
    disk:      keeps machine code, so that each step is compiled once.
    """

    driver: Any
    make: Callable[..., bytes] | None
    blocks: int | None
    block: int
    arrays: Callable[[], AbstractContextManager[Any]]
    host: Callable[[Any], Any]
    workloads: Mapping[str, Callable[[], Workload]]
    launches: int
    steps: int
    waits: float
    ops: tuple[str, ...] | None = None
    child: list[str] = field(default_factory=list)
    worker: list[str] = field(default_factory=list)
    workers: int = 2
    examples: int = 1
    seeds: int = 1
    programs: int = 1
    disk: DiskCache | None = None

    def backend(self, rules: Rules | None = None) -> DeviceBackend:
        return DeviceBackend(self.driver, self.make, self.blocks, self.block, self.disk, rules)

    def wait(self) -> None:
        """Wait for the work of the array module, such as that of `keep`."""
        self.driver.current().synchronize()

    def free(self) -> None:
        """Give back memory that waits for later arrays, which other processes may need."""
        if self.driver.xp is not np:
            self.driver.xp.get_default_memory_pool().free_all_blocks()

    def to_device(self, x: Any) -> Any:
        return self.driver.xp.asarray(x)

    def to_host(self, x: Any) -> np.ndarray:
        return np.asarray(x) if self.driver.xp is np else self.driver.xp.asnumpy(x)


def real() -> Rig:
    """The first GPU of this process. Raises NoGpu."""
    from core.device.cupy_driver import CupyDriver

    try:
        driver = CupyDriver()
        if not driver.xp.is_available():
            raise NoGpu("cupy finds no CUDA device; `backpass doctor --device cuda` tells what is missing")
        driver.xp.zeros(1)
    except ImportError as error:
        raise NoGpu(f"cupy cannot be loaded: {error}") from error
    except driver.xp.cuda.runtime.CUDARuntimeError as error:
        raise NoGpu(f"the GPU does not work: {error}") from error
    return Rig(
        driver, None, None, 256, lambda: nullcontext(driver.xp), driver.xp.asnumpy, WORKLOADS, launches=1000,
        steps=10_000, waits=0.05, child=[sys.executable, "-m", "tests.gpu.child"],
        worker=[sys.executable, "-m", "tests.gpu.worker"], workers=max(2, (os.cpu_count() or 2) - 1),
        examples=2, seeds=60, programs=10,
        disk=DiskCache(Path(tempfile.gettempdir()) / "backpass-gpu-tests", 1 << 30),
    )  # fmt: skip


def emulated() -> Rig:
    """The emulated driver, with small programs: it shows that the checks work, and measures nothing."""
    from tests.device.driver import EmulatedDriver

    driver = EmulatedDriver(capacity=1 << 22)
    small = {"mlp": lambda: mlp("mlp", 5, (7, 33, 4)), "rnn_while": lambda: rnn_while(3, 2, 3, 5)}
    return Rig(
        driver, driver.make, 2, 64, installed, to_host, small, launches=3, steps=5, waits=20.0,
        ops=("add", "matmul", "segment_max"), child=[sys.executable, "-m", "tests.gpu.child", "--emulated"],
        worker=[sys.executable, "-m", "tests.gpu.worker", "--emulated"],
    )  # fmt: skip
