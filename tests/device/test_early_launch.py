"""Launches whose blocks start before the launch before them has ended: their code waits, and the host says which."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace

import numpy as np
import pytest

from core.compiler.compile import optimize
from core.device import early_launch
from core.device.backend import DeviceBackend
from core.device.gpu import DEVICE_TARGET
from core.device.launches import Launch
from core.device.ptx import ptx_of
from core.device.rules import Rules
from core.device.step import write_device_step
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.plan import plan_block
from core.runtime.run import Run
from core.runtime.times import Times
from tests.device.driver import EmulatedDriver
from tests.device.emulator import compiler
from tests.device.test_segments import APART

SHAPE = TensorType((40, 48), "float32")
EACH_ALONE = replace(APART, launch=0.0, product_flops=1, library=True)


def layers() -> Block:
    """Three ops, then a product, then two ops. Each is along another axis than the one before, and so a launch."""
    b = BlockBuilder()
    x = b.param(SHAPE)
    for axis in (0, 1, 0):
        x = b.emit("softmax", x, axis=axis)
    x = b.emit("matmul", x, b.param(TensorType((48, 48), "float32")))
    return optimize(b.build([b.emit("softmax", b.emit("softmax", x, axis=0), axis=1)]))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("architecture", "waits"), [("sm_80", False), ("sm_90", True), ("sm_100", True)])
def test_an_entry_waits_for_the_launch_before_it_and_then_lets_the_next_one_start(architecture, waits):
    code = write_device_step(plan_block(layers(), DEVICE_TARGET), 4, 64, Rules(launch=0.0))

    entries = ptx_of(code, architecture).split(".entry ")[1:]

    assert len(entries) > 1
    for each in entries:
        orders = re.findall(r"griddepcontrol\.(\w+)", each)
        assert orders == (["wait", "launch_dependents"] if waits else [])
        if waits:
            assert not re.search(r"\b(ld\.global|ld\.b|st\.|atom|bar)", each.split("griddepcontrol.launch")[0])


@pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")
def test_a_launch_may_start_early_behind_a_launch_only_and_never_where_times_are_measured():
    block = layers()
    driver = EmulatedDriver(multiplies=True)
    backend = DeviceBackend(driver, driver.make, blocks=2, block=64, rules=EACH_ALONE)
    plan = plan_block(block, DEVICE_TARGET)
    values = [np.ones(each.shape, "float32") for each in (SHAPE, TensorType((48, 48), "float32"))]
    region = backend.compile(plan)
    wanted = [False]
    for one, other in zip(region.code.work, region.code.work[1:], strict=False):
        wanted += [isinstance(one, Launch)] if isinstance(other, Launch) else []
    assert region.code.products and wanted.count(True) > 1 and wanted.count(False) == 2

    for _ in range(3):  # launches, a graph that is captured, and the graph again
        region(Run(), *values)
    assert driver.followed == [*wanted, *wanted]
    driver.followed.clear()
    backend.compile(plan, timed=True)(Run(times=Times()), *values)

    assert driver.followed and not any(driver.followed)


@pytest.mark.parametrize("grid", [1, 8, 9, 131, 132, 133, 1056])
def test_launches_of_one_block_for_each_processor_do_not_start_early(grid):
    launch = Launch("kernel", grid, 256)

    assert early_launch.starts_early(launch, 132) == (grid in (1, 8, 133, 1056))
    assert not early_launch.starts_early(replace(launch, early=False), 132)


def test_the_driver_is_told_the_shape_the_arguments_and_the_attribute(monkeypatch):
    """The layout of `CUlaunchConfig` and `CUlaunchAttribute`, by the offsets of their members in C."""
    seen = []

    def call(config, function, parameters, extra):
        at = lambda offset, kind: kind.from_address(config + offset).value
        attribute = at(40, ctypes.c_int64)
        seen.append([*(at(4 * i, ctypes.c_uint32) for i in range(7)), at(32, ctypes.c_int64), function, parameters])
        seen[-1] += [at(48, ctypes.c_uint32), *(ctypes.c_int.from_address(attribute + i).value for i in (0, 8)), extra]
        return 0 if function == 11 else 719

    address = ctypes.c_void_p
    made = ctypes.CFUNCTYPE(ctypes.c_int, *[address] * 4)(call)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: type("Library", (), {"cuLaunchKernelEx": made}))
    launch = early_launch.early_launch(lambda status: ValueError(status), "sm_90", 12030)
    assert launch is not None

    launch(11, 5, 1, 1, 256, 1, 1, 1024, 77, 99)
    with pytest.raises(ValueError, match="719"):
        launch(12, 5, 1, 1, 256, 1, 1, 1024, 77, 99)

    assert seen[0] == [5, 1, 1, 256, 1, 1, 1024, 77, 11, 99, 1, 6, 1, None]


@pytest.mark.parametrize(("architecture", "driver"), [("sm_80", 13000), ("sm_90", 12020)])
def test_older_gpus_and_drivers_have_no_early_launch(architecture, driver):
    assert early_launch.early_launch(ValueError, architecture, driver) is None
