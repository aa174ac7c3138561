"""Columns of a stored dataset as feeds: mapped files, lossless conversions, batches.

A file is mapped once and stays mapped while it is used; only the rows of a few batches are copied at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError
from core.ir.lru import LRU
from core.ops.common.types import as_dtype
from service.objects import DamagedFile, Objects
from service.objects.copies import local_file, place_of
from service.objects.tensor_file import mapped
from service.sampling import Rows, Sampling
from service.worker.checkpoint_file import FULL
from service.worker.memory import require
from service.worker.state import WorkerState

__all__ = ["Stored", "fitted", "forget_deleted", "is_lossless", "stored"]

FILES = 64
ORDER_BYTES = 256 * 2**20
CHECKED = 2**16  # elements that are compared at a time
FACTOR = 4  # bytes for the order of the rows while it is made, relative to the order itself

Arrays = dict[str, np.ndarray]


@dataclass(slots=True)
class Stored:
    """The mapped datasets of one worker, the orders of their rows, and the conversions known to be lossless.

    files: key -> the columns, and the number of the mapped file.
    """

    files: LRU[tuple[Arrays, int]]
    orders: LRU[Any]
    lossless: LRU[bool]

    def columns(self, state: WorkerState, key: str) -> Arrays:
        """The columns of the dataset with this key.

        Raises ExecutionError (dataset_unavailable, storage_full, storage_unavailable).
        """
        held = self.files.get(key)
        if held is not None:
            return held[0]
        self.forget_deleted(state)
        objects, _, directory = _place(state.settings, key)
        try:
            with objects.finding():
                path = local_file(objects, key, directory, state.stop.check)
                number = path.stat().st_ino
                found, _ = mapped(path)
        except FileNotFoundError as error:
            raise ExecutionError("the file of the dataset is missing", "dataset_unavailable") from error
        except DamagedFile as error:
            raise ExecutionError(f"the file of the dataset is damaged: {error}", "dataset_unavailable") from error
        except OSError as error:
            text = f"the file of the dataset cannot be read: {error.strerror or error}"
            raise ExecutionError(text, "storage_full" if error.errno in FULL else "storage_unavailable") from error
        self.files.put(key, (found, number))
        return found

    def forget_deleted(self, state: WorkerState) -> None:
        """Drop the files that have been deleted: the disk gets their space back when nobody maps them."""
        for key in self.files:
            held = self.files.get(str(key))
            if held is not None and held[1] != _number(place_of(*_place(state.settings, str(key)))):
                self.files.pop(key)

    def epoch(self, state: WorkerState, sampling: Sampling, number: int) -> Rows:
        """The rows of an epoch in order."""
        return self._order(state, sampling, ("epoch", number))

    def validation(self, state: WorkerState, sampling: Sampling) -> Rows:
        """The rows kept for validation."""
        return self._order(state, sampling, ("validation", 0))

    def _order(self, state: WorkerState, sampling: Sampling, part: tuple[str, int]) -> Rows:
        key = (sampling.rows, sampling.holdout, sampling.shuffle, sampling.seed, part)
        found: Rows | None = self.orders.get(key)
        if found is None:
            if sampling.shuffle:
                require(state.host_memory, FACTOR * 8 * sampling.rows, "the order of the rows of the dataset")
            found = sampling.validation() if part[0] == "validation" else sampling.epoch(part[1])
            self.orders.put(key, found)
        return found


def stored(state: WorkerState) -> Stored:
    """The datasets of this worker."""
    if state.datasets is None:
        state.datasets = Stored(LRU(FILES), LRU(ORDER_BYTES, _bytes, at_least=1), LRU(10_000))
    found: Stored = state.datasets
    return found


def forget_deleted(state: WorkerState, args: dict[str, Any], tensors: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
    """Drop the datasets whose files have been deleted."""
    if state.datasets is not None:
        stored(state).forget_deleted(state)
    return {}, {}


def _number(path: Path) -> int | None:
    """The number of the file at `path`; None if there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _bytes(rows: Rows) -> int:
    return 1 if isinstance(rows, slice) else max(1, rows.nbytes)


def _place(settings: Mapping[str, Any], key: str) -> tuple[Objects, str, Path]:
    """The arguments of `place_of` and `local_file` for a dataset."""
    directory = Path(settings["data_dir"])
    return Objects(settings["objects_url"] or str((directory / "objects").absolute())), key, directory


@dataclass(frozen=True, slots=True)
class Feed:
    """One feed made of columns. One column is the feed itself; several of them stand along its last axis.

    shape: of one row of the feed.
    """

    name: str
    columns: tuple[np.ndarray, ...]
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def batches(self, rows: Rows, count: int, size: int) -> np.ndarray:
        """The values of `rows` as [count, size, *shape]. A view of the file if that has them side by side."""
        if len(self.columns) == 1:
            found = _taken(self.columns[0], rows).astype(self.dtype, copy=False)
        else:
            found = np.empty((count * size, len(self.columns)), self.dtype)
            for i, column in enumerate(self.columns):
                found[:, i] = _taken(column, rows)
        return found.reshape(count, size, *self.shape)


def _taken(column: np.ndarray, rows: Rows) -> np.ndarray:
    return column[rows] if isinstance(rows, slice) else column.take(rows, axis=0)


def feed_of(name: str, type: TensorType, columns: Sequence[np.ndarray]) -> Feed:
    """The feed `name` made of `columns`, which fit its `type`."""
    shape = _row(columns)
    wanted = fitted(shape, type.shape[1:])
    return Feed(name, tuple(columns), as_dtype(type.dtype), shape if wanted is None else wanted)


def _row(columns: Sequence[np.ndarray]) -> tuple[int, ...]:
    return columns[0].shape[1:] if len(columns) == 1 else (len(columns),)


def fitted(row: Sequence[int], declared: Sequence[int]) -> tuple[int, ...] | None:
    """The shape of one row of a feed whose axes after the first are `declared`, from a column with rows of shape `row`.

    Axes of size 1 may be added or left out. None if the row does not fit.
    """
    if len(row) == len(declared) and all(n in (-1, m) for m, n in zip(row, declared, strict=True)):
        return tuple(row)
    if -1 not in declared and [n for n in row if n != 1] == [n for n in declared if n != 1]:
        return tuple(declared)
    return None


def is_lossless(state: WorkerState, key: str, name: str, dtype: np.dtype) -> bool:
    """Whether every value of the column `name` of the dataset `key` is a value of `dtype`, too."""
    known = stored(state)
    asked = (key, name, dtype.name)
    found = known.lossless.get(asked)
    if found is None:
        found = _converts(state, known.columns(state, key)[name], dtype)
        known.lossless.put(asked, found)
    return found


def _converts(state: WorkerState, column: np.ndarray, dtype: np.dtype) -> bool:
    if column.dtype == dtype:
        return True
    if np.bool_ in (column.dtype, dtype):
        return column.dtype == np.bool_
    flat = column.reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, flat.size, CHECKED):
            state.stop.check()
            part = flat[start : start + CHECKED]
            there = part.astype(dtype)
            back = there.astype(part.dtype)
            equal = (back == part) & _same_sign(there, part) | (part != part) & (there != there)
            if not equal.all():
                return False
    return True


def _same_sign(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether the numbers are on the same side of zero: an unsigned integer that wraps comes back unharmed."""
    result: np.ndarray = (a < 0) == (b < 0)
    return result
