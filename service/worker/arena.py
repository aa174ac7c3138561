"""Tensors in shared memory: an anonymous file per direction, mapped by both processes.

memfd and not named shared memory: nothing to clean up when a process dies, and no small default size of a
shared-memory mount to run into (which ends in SIGBUS, not in an error). One side writes and owns the file, the other
maps it read-only. The file never changes size: a larger one replaces it, and its descriptor travels with the frame
that first uses it. What one call writes in several frames lies side by side, because nobody says when it has been read.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Iterable, Mapping

import ml_dtypes
import numpy as np

from service.worker.messages import Tensor

__all__ = ["KEEP_BYTES", "ArenaReader", "ArenaWriter", "extent"]

ALIGNMENT = 64
SMALLEST = 2**20
KEEP_BYTES = 128 * 2**20  # larger files serve one call, so that one huge request does not pin its memory for ever

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def _dtype(name: str) -> np.dtype:
    return _BFLOAT16 if name == "bfloat16" else np.dtype(name)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def extent(tensors: Iterable[Tensor]) -> int:
    """How many bytes of an arena the described arrays reach over."""
    return max((t.offset + math.prod(t.shape) * _dtype(t.dtype).itemsize for t in tensors), default=0)


class ArenaWriter:
    """The writing side of one direction; owns the current file."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._map: mmap.mmap | None = None
        self._size = 0
        self._used = 0

    def reserve(self, arrays: Iterable[np.ndarray]) -> int | None:
        """Make room for `arrays`. Returns the descriptor to send along when the file is a new one, else None.

        What was written since the last `trim` stays as it is: in this file, or in the one before, which the other side
        still has mapped.
        Raises MemoryError when the room cannot be had; the arena is empty then, and can be used again.
        """
        needed = sum(_aligned(array.nbytes) for array in arrays)
        if needed == 0 or self._used + needed <= self._size:
            return None
        wanted = max(needed, min(2 * self._used, KEEP_BYTES))  # many frames of one call get few files
        self.close()
        # Powers of two: a client whose batches grow a little each time gets a new file rarely.
        size = max(SMALLEST, 1 << (wanted - 1).bit_length()) if wanted <= KEEP_BYTES else wanted
        descriptor = os.memfd_create("backpass-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            # Sealed, so that no bug of the other side can make an access here end in SIGBUS.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(descriptor, size)
        except OSError as error:
            os.close(descriptor)
            raise MemoryError(f"no room for {size} bytes of tensors") from error
        self._descriptor, self._size = descriptor, size
        return descriptor

    def write(self, arrays: Mapping[str, np.ndarray]) -> tuple[Tensor, ...]:
        """Copy `arrays` in, after `reserve` made room for them, and say where each lies."""
        tensors, offset = [], self._used
        for name, array in arrays.items():
            if array.nbytes:
                assert self._map is not None, "reserve() comes before write()"
                target = np.ndarray(array.shape, array.dtype, buffer=self._map, offset=offset)
                np.copyto(target, array)
            tensors.append(Tensor(name, array.dtype.name, array.shape, offset))
            offset += _aligned(array.nbytes)
        self._used = offset
        return tuple(tensors)

    def trim(self) -> None:
        """Call when the other side has read everything: the file is used again, or given back if it is too large."""
        self._used = 0
        if self._size > KEEP_BYTES:
            self.close()

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._map, self._descriptor, self._size, self._used = None, None, 0, 0


class ArenaReader:
    """The reading side of one direction; maps whatever file was sent last."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None

    def attach(self, descriptor: int) -> None:
        """Map the file behind `descriptor`, which is closed here, instead of the one before.

        Raises MemoryError when this process may not map that much; then there is no file until the next `attach`.
        """
        self.close()
        size = os.fstat(descriptor).st_size
        try:
            self._map = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        except OSError as error:
            raise MemoryError(f"cannot map {size} bytes of tensors") from error
        finally:
            os.close(descriptor)

    def read(self, tensors: Iterable[Tensor]) -> dict[str, np.ndarray]:
        """Copies of the described arrays: the file may be overwritten at once.

        Raises ValueError when a description reaches outside the file.
        """
        arrays = {}
        for tensor in tensors:
            array = np.empty(tensor.shape, _dtype(tensor.dtype))
            if array.nbytes:
                size = 0 if self._map is None else len(self._map)
                if tensor.offset < 0 or tensor.offset + array.nbytes > size:
                    raise ValueError(f"tensor {tensor.name!r} lies outside the arena of {size} bytes")
                count = math.prod(tensor.shape)
                source = np.frombuffer(self._map, array.dtype, count, tensor.offset)  # type: ignore[arg-type]
                np.copyto(array, source.reshape(tensor.shape))
                del source  # a view left alive would keep the map from closing
            arrays[tensor.name] = array
        return arrays

    def trim(self) -> None:
        """Drop a file that is too large to keep; the writer drops its side by the same rule."""
        if self._map is not None and len(self._map) > KEEP_BYTES:
            self.close()

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        self._map = None
