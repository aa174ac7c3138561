"""The arguments of machine code: numpy arrays, and the words that it is entered with."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from core.runtime.array_header import header_address

__all__ = ["Arguments", "readable"]


class Arguments:
    """Arrays that machine code runs on, and the words that it is entered with, at `address`.

    The first word is the address of a table of array headers. The second is the address of the arena.
    """

    __slots__ = ("_table", "_words", "address", "arrays")

    def __init__(self, arrays: Sequence[Any], words: tuple[int, ...]) -> None:
        """words: all but the first."""
        self.arrays = list(arrays)
        self._table = (ctypes.c_void_p * len(arrays))(*map(header_address, arrays))
        self._words = (ctypes.c_void_p * (1 + len(words)))(ctypes.addressof(self._table), *words)
        self.address = ctypes.addressof(self._words)

    def put(self, i: int, array: np.ndarray) -> None:
        """Replace array `i`."""
        self.arrays[i], self._table[i] = array, header_address(array)

    def put_arena(self, address: int) -> None:
        """Set the address of the arena."""
        self._words[1] = address

    def drop(self, i: int) -> None:
        """Release array `i`; another one must be put there before the next run."""
        self.arrays[i] = None


def readable(array: Any) -> np.ndarray:
    """`array` itself if machine code can read it in place, else a contiguous and aligned copy."""
    if type(array) is np.ndarray and array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.require(array, requirements=["C", "A"])
