"""Steps bound to the arrays of a session, on the processor or on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from core.runtime.bound_step import BoundStep, bind_step
from core.runtime.executable import Executable
from core.runtime.memory_limit import MemoryLimit

if TYPE_CHECKING:
    from core.device.bound_step import DeviceBoundStep
    from core.device.parted_step import PartedStep

__all__ = ["bind"]


def bind(
    executable: Executable, values: Mapping[str, Any], memory: MemoryLimit | None = None
) -> BoundStep | DeviceBoundStep | PartedStep | None:
    """`executable` bound to its parameters and states; None if its code cannot work in place, or packs its feeds, or if
    there is no memory for the arrays that it keeps.

    values: all inputs but feeds, by name. Their arrays are overwritten from now on.
    memory: limits the arrays on a GPU; None for no limit.
    Raises ProgramError (feed_shape, feed_dtype), DeviceFault.
    """
    if executable.packs is not None:
        return None
    if executable.backend.runs_on(np):
        return bind_step(executable, values)
    from core.device.bind import bind_device_step  # imported here, because most workers have no GPU

    return bind_device_step(executable, values, memory)
