"""Results on their way from the GPU to the host: pinned copies on a stream of their own."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.device.driver import DeviceFull, Driver, Event, Memory
from core.ir.errors import OutOfMemory

__all__ = ["Leaving", "host_array", "send"]

ALIGNMENT = 256
"""Bytes between the starts of two results in pinned memory."""


@dataclass(slots=True)
class Leaving:
    """Results on their way. sent: the end of their copies. They stay alive until `arrays` was called."""

    sent: Event
    _pinned: Memory
    _places: Mapping[str, tuple[int, tuple[int, ...], np.dtype]]
    _results: Mapping[str, Any]

    def arrays(self) -> dict[str, np.ndarray]:
        """Wait for the copies, and return arrays of the caller's own. Raises DeviceFault."""
        self.sent.synchronize()
        found = {}
        for name, (offset, shape, dtype) in self._places.items():
            found[name] = host_array(self._pinned.address + offset, shape, dtype).copy()
        self._results = {}
        return found


def send(driver: Driver, stream: Any, results: Mapping[str, Any]) -> Leaving:
    """Copy arrays without gaps to the host, on `stream`, which does not wait for the work that computes them.

    Raises OutOfMemory, DeviceFault.
    """
    places, size = {}, 0
    for name, array in results.items():
        places[name] = (size, tuple(array.shape), np.dtype(array.dtype))
        size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    try:
        pinned = driver.pinned(max(size, 1))
    except DeviceFull as full:
        message = f"the results need {size} bytes of pinned memory, which the system does not have"
        raise OutOfMemory(message, wanted=size, allowed=0) from full
    for name, array in results.items():
        if array.nbytes:
            stream.copy(pinned.address + places[name][0], driver.address(array), array.nbytes)
    return Leaving(stream.record(), pinned, places, dict(results))


def host_array(address: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array in pinned memory at `address`."""
    if not math.prod(shape):
        return np.empty(shape, dtype)
    room = (ctypes.c_uint8 * (math.prod(shape) * dtype.itemsize)).from_address(address)
    return np.frombuffer(memoryview(room), np.uint8).view(dtype).reshape(shape)
