"""Columns under construction: arrays in files, so that memory holds only the pages in use."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from service.datasets.mistakes import Mistakes
from service.datasets.options import Limits
from service.ids import new_id
from service.problems import HttpProblem

__all__ = ["BLOCK", "allocate", "check_columns", "row_blocks", "too_large"]

BLOCK = 4 * 2**20
"""Bytes of a column to work on at a time."""

ALIGNMENT = 64
MAX_NAME = 128  # characters
Kind = tuple[np.dtype, tuple[int, ...]]


def allocate(columns: Mapping[str, Kind], rows: int, scratch: Path, limits: Limits) -> dict[str, np.ndarray]:
    """Writable arrays [rows, *shape] in a new file of the folder `scratch`. columns: name -> dtype and shape of a row.

    Raises HttpProblem 422 above the limit of bytes, OSError when the disk has no room.
    """
    places, end = {}, 0
    for name, (dtype, shape) in columns.items():
        places[name] = end
        end += -(-rows * math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        if end > limits.size + len(columns) * ALIGNMENT:
            raise too_large(limits)
    with (scratch / new_id("columns_")).open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, end))  # a write to a mapping without room would end the process
        room = memoryview(mmap.mmap(file.fileno(), max(1, end)))
    return {
        name: np.frombuffer(room, dtype, rows * math.prod(shape), places[name]).reshape(rows, *shape)
        for name, (dtype, shape) in columns.items()
    }


def too_large(limits: Limits) -> HttpProblem:
    """The refusal of a dataset whose tensors take more bytes than the limit."""
    return HttpProblem("limit-exceeded", f"the columns take more than the limit of {limits.size} bytes")


def check_columns(names: list[str], limits: Limits, mistakes: Mistakes) -> None:
    """Report names that columns cannot have. Raises HttpProblem 422 for too many."""
    if not names:
        mistakes.add("the file has no columns")
    if len(names) > limits.columns:
        raise HttpProblem("limit-exceeded", f"the file has {len(names)} columns; the limit is {limits.columns}")
    seen: set[str] = set()
    for number, name in enumerate(names, 1):
        if not name:
            mistakes.add(f"column {number} has no name")
        elif name in seen:
            mistakes.add(f"column {number} has the name of an earlier one", name, code="duplicate")
        elif len(name) > MAX_NAME or not name.isprintable() or name == "__metadata__":
            mistakes.add(f"the name of column {number} is longer than {MAX_NAME} characters, has a control character, "
                         "or is reserved")  # fmt: skip
        seen.add(name)


def row_blocks(array: np.ndarray) -> list[slice]:
    """Slices of rows with at most BLOCK bytes each, one row at least."""
    step = max(1, BLOCK // max(1, array.nbytes // max(1, len(array))))
    return [slice(begin, min(begin + step, len(array))) for begin in range(0, len(array), step)]
