"""A worker whose GPU is emulated: its steps equal those of a worker on the processor, and its failures are answered."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="the stand-in is made from the installed cupy")
from core.codegen.cache import DiskCache
from core.compiler.backends import CHOSEN, use_backend
from core.device.backend import DeviceBackend
from core.device.bound_step import DeviceBoundStep
from core.device.driver import DeviceFault, DeviceFull
from core.ir.errors import ExecutionError
from service.settings import Settings
from service.worker import fit, gpu, sessions, snapshot, training
from service.worker.programs import machine_for
from service.worker.state import WorkerState
from tests.cupy_stand_in import Array, installed
from tests.device.driver import EmulatedDriver
from tests.device.emulator import compiler
from tests.device.worker_gpu import backend_on, emulated_cuda
from tests.service.worker.test_last_step import Side, feeds, going, noisy, same

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")


@pytest.fixture
def cupy():
    with installed() as module:
        yield module


@pytest.fixture
def driver(cupy):
    return EmulatedDriver(xp=cupy)


@pytest.fixture
def backend(driver):
    backend = backend_on(driver)
    before = use_backend(backend)
    with emulated_cuda(driver):
        yield backend
    use_backend(before)


class GpuSide(Side):
    """A session in a worker on the emulated GPU."""

    def __init__(self, sketch: Any, backend: DeviceBackend) -> None:
        xp = backend.driver.xp
        settings = Settings(compile="always").model_dump(mode="json")
        self.state = WorkerState("w", "cuda", xp, settings, going(), gpu=backend)  # type: ignore[arg-type]
        adam = {"type": "adam", "attrs": {"learning_rate": 0.05}}
        asked = {"id": "s", "document": sketch.document, "query": {"loss": "loss"}, "optimizer": adam, "clip": None}
        given = {n: v for n, v in sketch.values.items() if n not in ("x", "i")}
        sessions.create(self.state, {**asked, "seed": 3, "initializers": {}}, given)

    def step(self, feeds: dict[str, Any], returned: str = "none", **args: Any) -> Any:
        found = super().step(feeds, returned, **args)
        return found

    def held(self) -> dict[str, np.ndarray]:
        s = self.session
        held = {k: v for each in (s.parameters, s.states, s.slots) for k, v in each.items()}
        assert all(isinstance(v, Array) for v in held.values()), "values stay on the GPU"
        return {k: self.state.to_host(v) for k, v in held.items()}


@pytest.fixture
def sides(backend):
    sketch = noisy()
    return GpuSide(sketch, backend), Side(sketch, "never")


def test_steps_on_a_gpu_equal_those_on_the_processor(sides, driver):
    on_gpu, on_cpu = sides
    for number in range(6):
        given = feeds()
        same(on_gpu.step(given, "all"), on_cpu.step(given, "all"))
        assert on_gpu.is_bound == (number > 0)
        same(on_gpu.held(), on_cpu.held())
    assert isinstance(on_gpu.session.last_step.bound, DeviceBoundStep)
    assert driver.graph_launches
