"""A GPU by cupy, for the host's part of a step. The ops have their cupy from `core.ops.common.on_cuda`."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from core.device.cublaslt import CublasLt, check_products, load_cublaslt, workspace_bytes
from core.device.driver import DeviceFault, DeviceFull, DeviceProperties
from core.device.early_launch import EarlyLaunch, early_launch, starts_early
from core.device.launches import Launch
from core.device.multiplication import Multiplication
from core.ir.errors import ExecutionError

__all__ = ["CupyDriver"]

log = logging.getLogger("backpass.device")

T = TypeVar("T")

ALIGNMENT = 256
NO_MEMORY = 2
"""The status of both interfaces of CUDA for too little memory."""


class CupyDriver:
    """See `core.device.driver.Driver`. number: of the GPU among those that the process sees."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.xp: ModuleType = import_module("cupy")
        self._runtime: Any = self.xp.cuda.runtime
        self._api: Any = import_module("cupy_backends.cuda.api.driver")

    @cached_property
    def properties(self) -> DeviceProperties:
        found = self._runtime.getDeviceProperties(self.number)
        return DeviceProperties(
            found["name"].decode(),
            f"sm_{found['major']}{found['minor']}",
            found["multiProcessorCount"],
            found["sharedMemPerBlockOptin"],
            self._runtime.driverGetVersion(),
        )

    def allocate(self, nbytes: int) -> _Pooled:
        with self._faults(nbytes):
            memory = self.xp.cuda.alloc(nbytes + ALIGNMENT)
        return _Pooled(memory, -(-int(memory.ptr) // ALIGNMENT) * ALIGNMENT, nbytes)

    def pinned(self, nbytes: int) -> _Pooled:
        with self._faults(nbytes):
            memory = self.xp.cuda.alloc_pinned_memory(nbytes)
        return _Pooled(memory, int(memory.ptr), nbytes)

    def free_bytes(self) -> int:
        with self._faults():
            free, _ = self._runtime.memGetInfo()
        return int(free + self.xp.get_default_memory_pool().free_bytes())

    def stream(self) -> _CupyStream:
        return self._with_room(lambda: _CupyStream(self, self.xp.cuda.Stream(non_blocking=True)))

    def current(self) -> _CupyStream:
        return _CupyStream(self, self.xp.cuda.get_current_stream())

    def load(self, code: bytes, launches: Sequence[Launch]) -> list[_CupyFunction]:
        """Any thread may call it. The module stays loaded as long as one of its functions lives."""

        def loaded() -> list[_CupyFunction]:
            module = self.xp.cuda.function.Module()
            module.load(code)
            return [self._function(module, each) for each in launches]

        with self.xp.cuda.Device(self.number):
            return self._with_room(loaded, loads=True)

    @cached_property
    def multiplies(self) -> bool:
        try:
            check_products(self)
        except DeviceFault:
            raise
        except Exception as error:
            log.warning("large products run as generated code, because cuBLASLt cannot be used: %s", error)
            return False
        return True

    @cached_property
    def products(self) -> CublasLt:
        """The library for products. Raises ImportError, OSError or RuntimeError where it is missing, DeviceFull."""
        return CublasLt(load_cublaslt(), self.allocate, workspace_bytes(self.properties.architecture))

    @cached_property
    def launch_early(self) -> EarlyLaunch | None:
        """A launch whose blocks may start before the launch before it has ended; None where that is impossible."""
        properties = self.properties
        return early_launch(self._api.CUDADriverError, properties.architecture, properties.driver)

    def prepare(self, product: Multiplication, addresses: Sequence[int]) -> None:
        self.products.prepare(product, addresses)

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def _function(self, module: Any, launch: Launch) -> _CupyFunction:
        api = self._api
        function = module.get_function(launch.entry)
        if launch.shared > self.properties.shared_bytes:
            raise ExecutionError(
                f"a block of {launch.kernel} needs {launch.shared} bytes of shared memory, "
                f"but this GPU has {self.properties.shared_bytes}",
                "compiler_failed",
            )
        api.funcSetAttribute(function.ptr, api.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared)
        each = api.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, launch.block, launch.shared)
        return _CupyFunction(module, function, int(each) * self.properties.processors)

    def _with_room(self, action: Callable[[], T], loads: bool = False) -> T:
        """The result of an action that needs memory outside of cupy's pool.

        If there is none, the pool gives its free memory back, and the action runs again.
        """
        try:
            with self._faults(loads=loads):
                return action()
        except DeviceFull:
            self.xp.get_default_memory_pool().free_all_blocks()
            with self._faults(loads=loads):
                return action()

    def _faults(self, nbytes: int = 0, loads: bool = False) -> _Faults:
        """Errors of CUDA as those of `core.device.driver`. loads: whether a refusal may be that of a module."""
        return _Faults(self, nbytes, loads)


class _Faults:
    """See `CupyDriver._faults`: a context. A step enters several, and those of `contextlib` take a microsecond more."""

    __slots__ = ("_driver", "_loads", "_nbytes")

    def __init__(self, driver: CupyDriver, nbytes: int, loads: bool) -> None:
        self._driver, self._nbytes, self._loads = driver, nbytes, loads

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        driver = self._driver
        if error is None:
            return
        if isinstance(error, driver.xp.cuda.memory.OutOfMemoryError):
            raise DeviceFull(self._nbytes) from error
        if isinstance(error, (driver._runtime.CUDARuntimeError, driver._api.CUDADriverError)):
            if error.status == NO_MEMORY:
                raise DeviceFull(self._nbytes) from error
            if self._loads:
                raise ExecutionError(f"the GPU's driver refuses the code: {error}", "compiler_failed") from error
            raise DeviceFault(f"the GPU failed: {error}") from error


class _Pooled:
    """See `core.device.driver.Memory`. owner: keeps it allocated."""

    __slots__ = ("_owner", "address", "nbytes")

    def __init__(self, owner: Any, address: int, nbytes: int) -> None:
        self._owner, self.address, self.nbytes = owner, address, nbytes


class _CupyFunction:
    """See `core.device.driver.Function`. module: unloaded when no function refers to it."""

    __slots__ = ("_module", "most_blocks", "pointer")

    def __init__(self, module: Any, function: Any, most_blocks: int) -> None:
        self._module = module, function
        self.pointer, self.most_blocks = int(function.ptr), most_blocks


class _CupyStream:
    """See `core.device.driver.Stream`."""

    def __init__(self, driver: CupyDriver, stream: Any) -> None:
        self._driver, self.cupy = driver, stream

    def copy(self, target: int, source: int, nbytes: int) -> None:
        runtime = self._driver._runtime
        with self._driver._faults():
            runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDefault, self.cupy.ptr)

    def launch(self, function: _CupyFunction, launch: Launch, addresses: Sequence[int], follows: bool = False) -> None:
        api, early = self._driver._api, self._driver.launch_early
        count = len(addresses) + len(launch.numbers)
        words = (ctypes.c_int64 * count)(*addresses, *launch.numbers)
        at = ctypes.addressof(words)
        parameters = (ctypes.c_void_p * count)(*(at + 8 * i for i in range(count)))
        shape = (launch.grid, 1, 1, launch.block, 1, 1, launch.shared, self.cupy.ptr, ctypes.addressof(parameters))
        with self._driver._faults():
            if launch.cooperative:
                api.launchCooperativeKernel(function.pointer, *shape)
            elif follows and early is not None and starts_early(launch, self._driver.properties.processors):
                early(function.pointer, *shape)
            else:
                api.launchKernel(function.pointer, *shape, 0)

    def multiply(self, product: Multiplication, addresses: Sequence[int]) -> None:
        self._driver.products.run(product, addresses, self.cupy.ptr)

    def record(self, timed: bool = False, again: _CupyEvent | None = None) -> _CupyEvent:
        with self._driver._faults():
            found = again or _CupyEvent(self._driver, self._driver.xp.cuda.Event(disable_timing=not timed))
            found.cupy.record(self.cupy)
        return found

    def wait(self, event: _CupyEvent) -> None:
        with self._driver._faults():
            self.cupy.wait_event(event.cupy)

    def synchronize(self) -> None:
        with self._driver._faults():
            self.cupy.synchronize()

    def begin_capture(self) -> None:
        with self._driver._faults():
            self.cupy.begin_capture()

    def end_capture(self) -> _CupyGraph:
        with self._driver._faults():
            return _CupyGraph(self._driver, self.cupy.end_capture())


class _CupyEvent:
    """See `core.device.driver.Event`."""

    def __init__(self, driver: CupyDriver, event: Any) -> None:
        self._driver, self.cupy = driver, event

    def synchronize(self) -> None:
        with self._driver._faults():
            self.cupy.synchronize()

    def seconds_since(self, earlier: _CupyEvent) -> float:
        with self._driver._faults():
            return float(self._driver.xp.cuda.get_elapsed_time(earlier.cupy, self.cupy)) / 1e3


class _CupyGraph:
    """See `core.device.driver.Graph`."""

    def __init__(self, driver: CupyDriver, graph: Any) -> None:
        self._driver, self._graph = driver, graph

    def launch(self, stream: _CupyStream) -> None:
        with self._driver._faults():
            self._graph.launch(stream.cupy)
