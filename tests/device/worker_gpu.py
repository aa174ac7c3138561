"""An emulated GPU for a worker: in this process, or in the workers of a service that a test starts.

`on_path/sitecustomize.py` calls `install` in the processes of workers; `environment` makes Python import it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from core.device.backend import DeviceBackend
from core.device.driver import DeviceFault
from service.worker import gpu
from tests.cupy_stand_in import installed
from tests.cupy_stand_in.namespaces import CUPY
from tests.device.driver import EmulatedDriver
from tests.paths import ROOT

__all__ = ["backend_on", "emulated_cuda", "environment", "install"]

ORDERS = "BACKPASS_TEST_GPU"
FOREVER = ExitStack()


def environment(orders: Path) -> dict[str, str]:
    """Variables for a service whose worker has an emulated GPU.

    orders: a file that a test may write: calls of the driver that shall fail, as `EmulatedDriver.failing` in JSON. The
    worker removes it when it has read it.
    """
    path = os.pathsep.join([str(Path(__file__).parent / "on_path"), str(ROOT)])
    return {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "emulated", ORDERS: str(orders)}


def install() -> None:
    """Give this process an emulated GPU, until it ends."""
    driver = _OrderedDriver(xp=CUPY)
    FOREVER.enter_context(installed())
    FOREVER.enter_context(emulated_cuda(driver))
    gpu.open_gpu = lambda disk, tf32: backend_on(driver, disk, tf32)


def backend_on(driver: EmulatedDriver, disk: Any = None, tf32: bool = False) -> DeviceBackend:
    return DeviceBackend(driver, driver.make, blocks=2, block=64, disk=disk, tf32=tf32)


class _OrderedDriver(EmulatedDriver):
    """Fails as the file of orders says."""

    def fails(self, call: str) -> bool:
        orders = Path(os.environ[ORDERS])
        if orders.exists():
            self.failing |= json.loads(orders.read_text())
            orders.unlink()
        return super().fails(call)


class _CudaError(RuntimeError):
    """As `cupy.cuda.runtime.CUDARuntimeError`."""


class _Pool:
    """The memory pool of cupy. It limits nothing; the `capacity` of the driver does."""

    def __init__(self, driver: EmulatedDriver) -> None:
        self._driver = driver

    def set_limit(self, size: int) -> None:
        pass

    def used_bytes(self) -> int:
        return self._driver.allocated

    def total_bytes(self) -> int:
        return self._driver.allocated

    def free_bytes(self) -> int:
        return 0

    def free_all_blocks(self) -> None:
        pass


def _name(driver: EmulatedDriver) -> str:
    """The name of the GPU that this process uses, which tells several emulated ones apart."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") or driver.properties.name


@contextmanager
def emulated_cuda(driver: EmulatedDriver) -> Iterator[None]:
    """Inside, `cupy.cuda` and the memory pool of the stand-in are those of `driver`."""

    def synchronize() -> None:
        try:
            driver.check()
        except DeviceFault as error:
            raise _CudaError(str(error)) from error

    runtime = SimpleNamespace(
        memGetInfo=lambda: (driver.free_bytes(), driver.capacity),
        getDeviceProperties=lambda number: {"name": _name(driver).encode()},
        deviceSynchronize=synchronize,
        CUDARuntimeError=_CudaError,
    )
    pool = _Pool(driver)
    cuda = SimpleNamespace(runtime=runtime, get_current_stream=driver.current)
    given: dict[str, Any] = {"cuda": cuda, "get_default_memory_pool": lambda: pool}
    before = {name: CUPY.__dict__[name] for name in given if name in CUPY.__dict__}
    CUPY.__dict__.update(given)
    try:
        yield
    finally:
        for name in given:
            del CUPY.__dict__[name]
        CUPY.__dict__.update(before)
