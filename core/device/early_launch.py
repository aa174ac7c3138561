"""Launches whose blocks may start before the launch before them has ended, which cupy does not offer.

Source: `cuLaunchKernelEx` of the driver, with the attribute for programmatic stream serialization (CUDA 12.3 and later
record it in graphs, too). The code of such a launch waits for the end of the one before (`core.device.ptx`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from core.device.launches import Launch
from core.device.rules import follows_early

__all__ = ["EarlyLaunch", "early_launch", "starts_early"]

EarlyLaunch = Callable[..., None]
"""``(function, grid x, y, z, block x, y, z, shared bytes, stream, parameters)``"""

FIRST_DRIVER = 12030
"""The version of the driver from which on graphs take such launches."""

PROGRAMMATIC_SERIALIZATION = 6
"""The number of the attribute."""


FEW = 8
"""Blocks that find room of their own on any GPU."""


def starts_early(launch: Launch, processors: int) -> bool:
    """Whether a launch is faster if it starts early, on a GPU of so many processors.

    Its blocks come to the processors that have room then, several to one. That takes no longer if they are few, or if
    each processor has several anyway: on an H100 a kernel ended 0.4 us earlier. But one block for each processor took
    up to three times as long (20 to 150 us instead of 10 to 48). Products that share a launch have about two blocks for
    each processor, so they start late as well (`Launch.early`).
    """
    return launch.early and (launch.grid <= FEW or launch.grid > processors)


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16)]


class _Config(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


def early_launch(error: Callable[[int], Exception], architecture: str, driver: int) -> EarlyLaunch | None:
    """The launch on a GPU of this architecture, or None if it or its driver has none.

    error: makes the exception for a status of the driver.
    """
    if not follows_early(architecture) or driver < FIRST_DRIVER:
        return None
    try:
        call: Any = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.POINTER(_Config), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    attribute = _Attribute(PROGRAMMATIC_SERIALIZATION)
    attribute.value[0] = 1

    def launch(function: int, *shape_and_parameters: int) -> None:
        *shape, parameters = shape_and_parameters
        config = _Config(*shape, ctypes.pointer(attribute), 1)
        status = call(config, function, parameters, None)
        if status:
            raise error(status)

    return launch
