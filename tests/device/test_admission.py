"""Admission to a GPU: the predicted peak of a step is compared with the free memory before it allocates any."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cupy", reason="the stand-in is made from the installed cupy")
from core.compiler.compile import GradientQuery, Optimizer, compile_training
from core.device.bind import bind_device_step
from core.ir.errors import OutOfMemory
from core.runtime.native import native_interpreter
from core.runtime.run import Run, RunLimits
from core.wire import read
from service.worker.memory import DeviceMemory
from tests.cupy_stand_in import installed
from tests.device.agreement import looping
from tests.device.driver import EmulatedDriver
from tests.device.emulator import compiler
from tests.device.worker_gpu import backend_on, emulated_cuda
from tests.programs import Sketch

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

SIZE = 640


@pytest.fixture
def driver():
    with installed() as cupy:
        driver = EmulatedDriver(xp=cupy, capacity=1 << 25)
        with emulated_cuda(driver):
            yield driver


def wide(backend):
    """A step whose products need some MiB of intermediate arrays; its values."""
    rng = np.random.default_rng(0)
    s = Sketch()
    x = s.feed("x", rng.standard_normal((SIZE, 3)))
    w = s.param("w", rng.standard_normal((3, SIZE)) / 2)
    s.total(s.op("softmax", s.op("matmul", x, w)))
    executable = compile_training(
        read(s.document), GradientQuery(loss="loss"), Optimizer("sgd", {"learning_rate": 0.1})
    )
    return executable.on(backend).compiled(), {n: np.asarray(s.values[n]) for n in ("x", "w")}


def on_device(driver, values):
    return {name: driver.xp.asarray(value) for name, value in values.items()}


def test_a_step_runs_again_when_its_idle_arena_takes_most_of_the_memory(driver):
    backend = backend_on(driver)
    executable, values = wide(backend)
    peak = executable.peak(as_machine_code=True).peak
    assert executable.machine.region.arena_bytes > peak // 2 > 1 << 20
    driver.capacity = peak * 3 // 2
    limits = RunLimits(memory=DeviceMemory(driver.xp, kept=backend))

    for _ in range(3):
        executable.step(on_device(driver, values), xp=driver.xp, limits=limits)

    assert backend.idle_bytes == executable.machine.region.arena_bytes


def test_a_step_is_refused_before_it_allocates_when_another_process_has_the_memory(driver):
    backend = backend_on(driver)
    executable, values = wide(backend)
    given = on_device(driver, values)
    memory = DeviceMemory(driver.xp, kept=backend)
    elsewhere = driver.allocate(driver.capacity - executable.peak(as_machine_code=True).peak // 2)
    allocations = driver.allocations

    with pytest.raises(OutOfMemory) as caught:
        executable.step(given, xp=driver.xp, limits=RunLimits(memory=memory))

    assert driver.allocations == allocations and not driver.launches
    assert caught.value.wanted == executable.peak(as_machine_code=True).peak
    del elsewhere
    executable.step(given, xp=driver.xp, limits=RunLimits(memory=memory))


def test_a_step_is_not_bound_when_its_second_set_of_results_finds_no_memory(driver):
    backend = backend_on(driver)
    executable, values = wide(backend)
    memory, held = DeviceMemory(driver.xp, kept=backend), on_device(driver, {"w": values["w"]})
    elsewhere = driver.allocate(driver.capacity - driver.capacity // 5)
    allocations = driver.allocations

    assert bind_device_step(executable, held, memory) is None
    assert driver.allocations == allocations
    del elsewhere
    assert bind_device_step(executable, held, memory) is not None


def test_idle_stacks_are_freed_for_another_step(driver):
    block, values = looping(trips=700)
    backend = backend_on(driver)
    region = native_interpreter(block, backend).region
    given = [driver.xp.asarray(value) for value in values]
    wanted = region(Run(driver.xp), *given)
    grown = region.idle_bytes

    backend.free_idle()

    assert grown > 0 and backend.idle_bytes == 0
    for one, want in zip(region(Run(driver.xp), *given), wanted, strict=True):
        assert one.array.tobytes() == want.array.tobytes()
