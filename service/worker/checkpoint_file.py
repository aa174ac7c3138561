"""Files of checkpoints in a worker: writing and reading with errors that clients understand."""

from __future__ import annotations

import errno
import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from core.ir.aligned import aligned_empty
from core.ir.errors import ExecutionError
from service.objects import Objects, Written
from service.objects.tensor_file import CHUNK, DamagedFile, Entry, chunks, read_entries
from service.worker.state import WorkerState

__all__ = ["CheckpointFile", "written"]

Kind = Literal["checkpoint", "values"]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class _OnDevice:
    """An array on a GPU that becomes a numpy array when it is written."""

    array: Any
    to_host: Callable[[Any], np.ndarray]

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def shape(self) -> Any:
        return self.array.shape

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.to_host(self.array)


def written(state: WorkerState, key: str, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> Written:
    """Write the file `key`. No more than one tensor is copied at a time.

    Raises ExecutionError (storage_full, storage_unavailable, canceled, deadline_exceeded); then there is no file.
    """

    def parts() -> Iterator[bytes | memoryview]:
        for part in chunks({name: _lazy(state, value) for name, value in tensors.items()}, metadata):
            state.stop.check()
            yield part

    with _told("checkpoint"):
        return _objects(state).write(key, parts())


class CheckpointFile:
    """A stored checkpoint or the stored values of a program, whose header is read.

    entries: name -> dtype, shape, begin and end in the file. metadata: strings by name. size: in bytes.
    """

    def __init__(self, state: WorkerState, key: str, kind: Kind = "checkpoint") -> None:
        """kind: the beginning of the codes of errors. Raises ExecutionError (<kind>_missing, <kind>_damaged,
        storage_unavailable).
        """
        self._state, self._key, self._kind = state, key, kind
        self._objects = _objects(state)
        with _told(kind):
            self.size = self._objects.size(key)
            with self._objects.open(key) as file:
                found: tuple[dict[str, Entry], dict[str, str]] = read_entries(file, self.size)
        self.entries, self.metadata = found

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(end - begin for _, _, begin, end in self.entries.values())

    def tensors(self, sha256: str | None = None, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
        """Tensors in memory of their own: those with these `names`, by default all.

        sha256: the digest that the file must have, in hexadecimal.

        Raises ExecutionError (<kind>_missing, <kind>_damaged, storage_unavailable, canceled, deadline_exceeded).
        """
        digest = hashlib.sha256()
        found = {}
        with _told(self._kind), self._objects.open(self._key) as file:
            ordered = sorted(self.entries.items(), key=lambda item: item[1][2:])
            digest.update(file.read(ordered[0][1][2] if ordered else self.size))
            for name, (dtype, shape, begin, end) in ordered:
                if file.tell() != begin:
                    raise DamagedFile(f"there are other bytes before {name!r}")
                if names is not None and name not in names:
                    self._skip(file, end - begin, digest)
                    continue
                array = aligned_empty((math.prod(shape),), dtype)
                self._fill(file, array.view(np.uint8).data, digest)
                assert end - begin == array.nbytes, "read_entries has checked it"
                found[name] = array.reshape(shape)
            if file.read(1):
                raise DamagedFile("bytes follow the last tensor")
        if sha256 is not None and digest.hexdigest() != sha256:
            text = f"the file of the {self._kind} has changed: its digest is wrong"
            raise ExecutionError(text, f"{self._kind}_damaged")
        return found

    def _fill(self, file: Any, room: memoryview, digest: Any) -> None:
        for at in range(0, len(room), CHUNK):
            self._state.stop.check()
            part = room[at : at + CHUNK]
            got = 0
            while got < len(part):
                n = file.readinto(part[got:])
                if not n:
                    raise DamagedFile("the file ends early")
                got += n
            digest.update(part)

    def _skip(self, file: Any, size: int, digest: Any) -> None:
        room = memoryview(bytearray(min(size, CHUNK)))
        while size:
            self._fill(file, room[:size], digest)
            size -= min(size, len(room))


def _objects(state: WorkerState) -> Objects:
    return Objects(state.settings["objects"])


def _lazy(state: WorkerState, array: Any) -> Any:
    return np.asarray(array) if state.device == "cpu" else _OnDevice(array, state.to_host)


@contextmanager
def _told(kind: Kind) -> Iterator[None]:
    """Errors of storage as errors of the call."""
    try:
        yield
    except FileNotFoundError:
        raise ExecutionError(f"the file of the {kind} is missing", f"{kind}_missing") from None
    except (DamagedFile, TypeError, ValueError) as error:  # the last two: impossible shapes in the header
        raise ExecutionError(f"the file of the {kind} is damaged: {error}", f"{kind}_damaged") from error
    except OSError as error:
        if error.errno in FULL:
            raise ExecutionError("no space is left for stored data", "storage_full") from error
        reason = error.strerror or type(error).__name__
        raise ExecutionError(f"stored data cannot be reached: {reason}", "storage_unavailable") from error
