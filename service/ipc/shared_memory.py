"""Tensors in shared memory: an anonymous file per direction, mapped by both processes.

memfd and not named shared memory: nothing to clean up when a process dies, and no small default size of a
shared-memory mount to run into (which ends in SIGBUS, not in an error). One side writes and owns the file, the other
maps it read-only. The file never changes size: a larger one replaces it, and its descriptor travels with the frame
that first uses it. What one call writes in several frames lies side by side, because nobody says when it has been read.

Arrays that are small together go into the frame itself, which costs less than any arena.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from functools import cache

import ml_dtypes
import numpy as np

from service.ipc.messages import Tensor

__all__ = ["INLINE_BYTES", "KEEP_BYTES", "ArenaReader", "ArenaWriter", "Placed", "extent"]

Placed = tuple[tuple[Tensor, ...], bytearray, int | None]
"""Where arrays lie; what of them goes into the frame; a descriptor to send with it, if the arena has a new file."""

ALIGNMENT = 64
INLINE_BYTES = 2**15
SMALLEST = 2**20
KEEP_BYTES = 128 * 2**20  # larger files serve one call, so that one huge request does not pin its memory for ever

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@cache
def _dtype(name: str) -> np.dtype:
    return _BFLOAT16 if name == "bfloat16" else np.dtype(name)


@cache
def _name(dtype: np.dtype) -> str:
    return dtype.name  # which numpy works out anew each time


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def extent(tensors: Iterable[Tensor]) -> int:
    """How many bytes of an arena, or of a frame, the described arrays reach over."""
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

    def put(self, arrays: Mapping[str, np.ndarray]) -> Placed:
        """Copy `arrays` to where the other side will find them. Raises MemoryError as `reserve` does."""
        if sum([array.nbytes for array in arrays.values()]) <= INLINE_BYTES:
            return *_inline(arrays), None
        descriptor = self.reserve(arrays.values())
        return self.write(arrays), bytearray(), descriptor

    def write(self, arrays: Mapping[str, np.ndarray]) -> tuple[Tensor, ...]:
        """Copy `arrays` in, after `reserve` made room for them, and say where each lies."""
        tensors, offset = [], self._used
        for name, array in arrays.items():
            if array.nbytes:
                assert self._map is not None, "reserve() comes before write()"
                target = np.ndarray(array.shape, array.dtype, buffer=self._map, offset=offset)
                np.copyto(target, array)
            tensors.append(Tensor(name, _name(array.dtype), array.shape, offset))
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

    def read(self, tensors: Iterable[Tensor], data: bytearray) -> dict[str, np.ndarray]:
        """The described arrays, of a frame with this `data`: parts of it, or copies, for the arena may be overwritten
        at once.

        Raises ValueError when a description reaches outside.
        """
        if data:
            return {t.name: _view(data, len(data), t) for t in tensors}
        size = 0 if self._map is None else len(self._map)
        arrays = {}
        for tensor in tensors:
            # a view left alive would keep the map from closing
            arrays[tensor.name] = _view(self._map, size, tensor).copy()
        return arrays

    def trim(self) -> None:
        """Drop a file that is too large to keep; the writer drops its side by the same rule."""
        if self._map is not None and len(self._map) > KEEP_BYTES:
            self.close()

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        self._map = None


def _view(data: bytearray | mmap.mmap | None, size: int, tensor: Tensor) -> np.ndarray:
    dtype = _dtype(tensor.dtype)
    count = math.prod(tensor.shape)
    if not count:
        return np.empty(tensor.shape, dtype)
    if tensor.offset < 0 or tensor.offset + count * dtype.itemsize > size:
        raise ValueError(f"tensor {tensor.name!r} lies outside the {size} bytes that there are")
    return np.frombuffer(data, dtype, count, tensor.offset).reshape(tensor.shape)  # type: ignore[arg-type]


def _inline(arrays: Mapping[str, np.ndarray]) -> tuple[tuple[Tensor, ...], bytearray]:
    tensors, data = [], bytearray()
    for name, array in arrays.items():
        tensors.append(Tensor(name, _name(array.dtype), array.shape, len(data)))
        data += array.tobytes()
        data += bytes(-len(data) % ALIGNMENT)
    return tuple(tensors), data
