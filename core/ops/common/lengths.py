"""Checks and helpers for the lengths of the sequences of a batch."""

from __future__ import annotations

from typing import Any

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ops.shape.reshape import unsqueeze

__all__ = ["check_lengths", "ends_of", "over_rows", "row_numbers"]


def check_lengths(lengths: TensorType) -> None:
    """Raises ProgramError (dtype_mismatch) for anything but an int64 vector."""
    if lengths.rank != 1 or lengths.dtype != "int64":
        raise ProgramError(f"lengths must be int64[n], not {lengths}", "dtype_mismatch")


def ends_of(xp: Any, lengths: Any, rows: int | None = None) -> Any:
    """For each sequence the position after its last row.

    Raises ExecutionError (shape_mismatch) if a length is negative or the lengths do not add up to `rows`.
    """
    if lengths.size and int(lengths.min()) < 0:
        raise ExecutionError("a length is negative", "shape_mismatch")
    if (
        lengths.size and rows is not None and int(lengths.max()) > rows
    ):  # checked first: the sum of large lengths may wrap around
        raise ExecutionError(f"a sequence has {int(lengths.max())} rows, but there are {rows} in all", "shape_mismatch")
    ends = xp.cumsum(lengths)
    total = int(ends[-1]) if lengths.size else 0
    if rows is not None and total != rows:
        raise ExecutionError(f"the lengths add up to {total} rows, but there are {rows}", "shape_mismatch")
    return ends


def over_rows(value: Any, like: Any) -> Any:
    """One number per row, reshaped to broadcast against the rows of `like`."""
    return unsqueeze(value, axes=tuple(range(1, like.rank))) if like.rank > 1 else value


def row_numbers(lengths: TensorType, x: TensorType) -> TensorType:
    """The type of one int64 for each row of x. Raises ProgramError where x has no rows."""
    check_lengths(lengths)
    if x.rank == 0:
        raise ProgramError(f"{x} has no rows", "shape_mismatch")
    return TensorType((x.shape[0],), "int64")
