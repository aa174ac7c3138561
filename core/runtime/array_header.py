"""Numpy array headers: compiled steps read the address of each array's data from the array object itself.

The caller passes the addresses of the array objects (`header_address`), and the step loads the address of the data,
which every numpy array stores right after the part that all Python objects have (`DATA_OFFSET`). This depends on
numpy's binary interface; no other module does. There are two reasons to depend on it:

* Speed. A step of eight elements that gets a new feed array on each call takes 1.60 us this way. It takes 2.07 us with
  addresses from `ctypes.c_char.from_buffer`, which refuses read-only arrays, and 2.65 us with addresses from
  `array.ctypes.data` (medians of 55 interleaved rounds of 3,000 calls).
* Safety. A bound array may be resized in place between two steps, which moves its data. An address that was taken
  before would then point to freed memory.

`check_layout` compares the stored address with the one that numpy reports, before any compiled code runs.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from core.ir.errors import InternalError

__all__ = ["DATA_OFFSET", "check_layout", "header_address"]

DATA_OFFSET = object.__basicsize__
"""Bytes from the begin of an array object to the address of its data: the size of the part that all objects have."""

header_address = id
"""The address of an array object, as CPython's `id` gives it. The array must outlive the call."""


@cache
def check_layout() -> None:
    """Raise InternalError if this numpy or this Python stores the address of an array's data elsewhere."""
    probe = np.zeros(3)
    found = ctypes.c_void_p.from_address(header_address(probe) + DATA_OFFSET).value
    if found != probe.ctypes.data:
        raise InternalError(
            f"numpy {np.__version__} does not store the address of an array's data at byte {DATA_OFFSET} of the array: "
            f"found {found}, wanted {probe.ctypes.data}"
        )
