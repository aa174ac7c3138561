"""Steps bound to arrays of a GPU: as one region, or as regions with ops between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.device.backend import DeviceBackend
from core.device.bound_step import DeviceBoundStep, bind_region
from core.device.parted_step import PartedStep, bind_parts
from core.runtime.executable import Executable
from core.runtime.memory_limit import MemoryLimit

__all__ = ["bind_device_step"]


def bind_device_step(
    executable: Executable, values: Mapping[str, Any], memory: MemoryLimit | None = None
) -> DeviceBoundStep | PartedStep | None:
    """`executable` bound to its parameters and states; None if no part of it is machine code for a GPU, or if there is
    no memory for the arrays that a bound step keeps.

    values: all inputs but feeds, by name: arrays of the GPU, which are overwritten from now on.
    memory: limits the arrays; None for no limit.
    Raises ProgramError (feed_shape, feed_dtype), DeviceFault.
    """
    backend = executable.backend
    if executable.machine is None or not isinstance(backend, DeviceBackend):
        return None
    region = executable.machine.region
    if region is not None and not region.plan.cuts:  # results of open sizes have no place of their own
        return bind_region(executable, values, memory)
    return bind_parts(executable, backend.driver, values)
