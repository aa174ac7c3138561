"""Large tensors in shared memory: one anonymous file per direction, which both processes map.

The file is a memfd and not named shared memory, because a memfd needs no cleanup when a process dies, and because the
mount for named shared memory is often small (exceeding it raises SIGBUS instead of an error). One side owns and writes
the file; the other side maps it read-only. The file never changes size: a larger file replaces it, and the descriptor
goes with the first frame that uses it. The frames of one call never overlap in the file, because the reader does not
report when it has read a frame.

Arrays that are small in total go into the frame itself, which is faster.
"""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import ml_dtypes
import numpy as np

from core.ir.aligned import aligned_copy
from service.ipc.messages import Tensor

__all__ = ["INLINE_BYTES", "KEEP_BYTES", "Placed", "SharedMemoryReader", "SharedMemoryWriter", "extent"]

Placed = tuple[tuple[Tensor, ...], bytearray, int | None]
"""(places of the arrays, bytes to send in the frame, descriptor to send with the frame if the file is new)."""

ALIGNMENT = 64
INLINE_BYTES = 2**15
SMALLEST = 2**20
KEEP_BYTES = 128 * 2**20  # a larger file is dropped after one call, so that one huge request does not keep its memory

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@cache
def _dtype(name: str) -> np.dtype:
    return _BFLOAT16 if name == "bfloat16" else np.dtype(name)


@cache
def _name(dtype: np.dtype) -> str:
    return dtype.name  # cached, because numpy builds the string at each access


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def extent(tensors: Iterable[Tensor]) -> int:
    """The end of the last of the described arrays, in bytes from the start of the file or of the frame's data."""
    return max((t.offset + math.prod(t.shape) * _dtype(t.dtype).itemsize for t in tensors), default=0)


class SharedMemoryWriter:
    """The writing side of one direction. It owns the current file."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._map: mmap.mmap | None = None
        self._size = 0
        self._used = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self._size

    def reserve(self, arrays: Iterable[np.ndarray]) -> int | None:
        """Make room for `arrays`. Returns the descriptor to send if the file is new, else None.

        Arrays written since the last `trim` stay valid: in this file, or in the previous one, which the reader still
        maps.
        Raises MemoryError if the memory cannot be allocated; there is no file then, and `reserve` can be called again.
        """
        needed = sum(_aligned(array.nbytes) for array in arrays)
        if needed == 0 or self._used + needed <= self._size:
            return None
        wanted = max(needed, min(2 * self._used, KEEP_BYTES))  # doubling: many frames of one call need few files
        self.close()
        # Powers of two, so that slowly growing batches rarely need a new file.
        size = max(SMALLEST, 1 << (wanted - 1).bit_length()) if wanted <= KEEP_BYTES else wanted
        descriptor = None
        try:
            descriptor = os.memfd_create("backpass-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, size)
            # Sealed: if the other side could shrink the file, an access here would raise SIGBUS.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(descriptor, size)
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
            reason = os.strerror(error.errno or errno.ENOMEM)
            raise MemoryError(f"cannot allocate {size} bytes of shared memory for tensors: {reason}") from error
        self._descriptor, self._size = descriptor, size
        return descriptor

    def put(self, arrays: Mapping[str, np.ndarray]) -> Placed:
        """Copy small `arrays` into the frame's data, large ones into the file. Raises MemoryError as `reserve` does."""
        if sum([array.nbytes for array in arrays.values()]) <= INLINE_BYTES:
            return *_inline(arrays), None
        descriptor = self.reserve(arrays.values())
        return self.write(arrays), bytearray(), descriptor

    def write(self, arrays: Mapping[str, np.ndarray]) -> tuple[Tensor, ...]:
        """Copy `arrays` into the file; returns their places.

        Raises RuntimeError if `reserve` has not made room for them.
        """
        tensors, offset = [], self._used
        for name, array in arrays.items():
            if array.nbytes:
                if self._map is None or offset + array.nbytes > self._size:
                    end = offset + array.nbytes
                    raise RuntimeError(
                        f"cannot write bytes {offset} to {end} of a {self._size}-byte file: call reserve()"
                    )
                target = np.ndarray(array.shape, array.dtype, buffer=self._map, offset=offset)
                np.copyto(target, array)
            tensors.append(Tensor(name, _name(array.dtype), array.shape, offset))
            offset += _aligned(array.nbytes)
        self._used = offset
        return tuple(tensors)

    def trim(self) -> None:
        """Allow overwriting, and free a large file. Call it when the other side has read all arrays."""
        self._used = 0
        if self._size > KEEP_BYTES:
            self.close()

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._map, self._descriptor, self._size, self._used = None, None, 0, 0


class SharedMemoryReader:
    """The reading side of one direction. It maps the file that was sent last when an array in it is read."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        self._descriptor: int | None = None  # of a file that is not mapped yet: a later read tries again

    def attach(self, descriptor: int) -> None:
        """Use the file of `descriptor` in place of the previous file. The reader closes the descriptor."""
        self.close()
        self._descriptor = descriptor

    def read(self, tensors: Sequence[Tensor], data: bytearray) -> dict[str, np.ndarray]:
        """The described arrays: views of the frame's `data` if that is not empty, else copies from the file.

        They are copies because the writer may overwrite the file.

        Raises ValueError for a place outside the data or the file, MemoryError if this process cannot map the file.
        The next call maps it then, if it can.
        """
        if data:
            return {t.name: _view(data, len(data), t) for t in tensors}
        if self._descriptor is not None and extent(tensors):
            self._map_file(self._descriptor)
        size = 0 if self._map is None else len(self._map)
        arrays = {}
        for tensor in tensors:
            # a copy, because a live view would prevent the map from closing
            arrays[tensor.name] = aligned_copy(_view(self._map, size, tensor))
        return arrays

    def _map_file(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        try:
            self._map = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        except OSError as error:
            raise MemoryError(f"cannot map {size} bytes of tensors") from error
        self._descriptor = None
        os.close(descriptor)

    def trim(self) -> None:
        """Free a file that is too large to keep. The writer frees it by the same rule."""
        if self._nbytes > KEEP_BYTES:
            self.close()

    @property
    def _nbytes(self) -> int:
        """Bytes of the file."""
        if self._descriptor is not None:
            return os.fstat(self._descriptor).st_size
        return 0 if self._map is None else len(self._map)

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._map = self._descriptor = None


def _view(data: bytearray | mmap.mmap | None, size: int, tensor: Tensor) -> np.ndarray:
    dtype = _dtype(tensor.dtype)
    count = math.prod(tensor.shape)
    if not count:
        return np.empty(tensor.shape, dtype)
    if tensor.offset < 0 or tensor.offset + count * dtype.itemsize > size:
        raise ValueError(f"tensor {tensor.name!r} is outside the {size} bytes of its frame or file")
    return np.frombuffer(data, dtype, count, tensor.offset).reshape(tensor.shape)  # type: ignore[arg-type]


def _inline(arrays: Mapping[str, np.ndarray]) -> tuple[tuple[Tensor, ...], bytearray]:
    tensors, data = [], bytearray()
    for name, array in arrays.items():
        tensors.append(Tensor(name, _name(array.dtype), array.shape, len(data)))
        data += array.tobytes()
        data += bytes(-len(data) % ALIGNMENT)
    return tuple(tensors), data
