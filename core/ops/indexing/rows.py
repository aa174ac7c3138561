"""Rows split by a mask, and merged again."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, op
from core.ops.common.types import joined_type, same_size
from core.ops.shape.reshape import reshape_to

__all__: list[str] = []

X = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
MASK = np.array([True, False, True])
CASES = [(X, MASK), (X[:, 0], ~MASK), (X, MASK & False), (X[:0], MASK[:0])]


def _check(x: TensorType, mask: TensorType) -> int:
    """The number of rows. Raises ProgramError (shape_mismatch) if the mask does not have one bool for each row."""
    if mask.dtype != "bool" or mask.rank != 1 or x.rank == 0:
        raise ProgramError(f"the mask must be one bool for each row of {x}, not {mask}", "shape_mismatch")
    return same_size(mask.shape[0], x.shape[0], "mask and rows differ in number")


@op(outputs=("true", "false"))
def split_by_mask(xp, x, mask):
    """``x[mask]`` and ``x[~mask]``: the rows of x [n, ...] where `mask` [n] is true, and the other rows, in their
    order.
    """
    if len(mask) != len(x):
        raise ExecutionError(f"x has {len(x)} rows, but the mask has {len(mask)}", "shape_mismatch")
    return x[mask], x[~mask]


@split_by_mask.infer
def split_by_mask_infer(x, mask):
    _check(x, mask)
    part = TensorType((-1, *x.shape[1:]), x.dtype)
    return part, part


split_by_mask.vjp(lambda ct, out, x, mask: (merge_by_mask(mask, *ct), None))
split_by_mask.example(lambda: [Example((x, m), (x[m], x[~m])) for x, m in CASES])


@op
def merge_by_mask(xp, mask, true, false):
    """The inverse of `split_by_mask`: rows of `true`, in order, where `mask` [n] is true, and rows of `false`
    elsewhere.
    """
    count = int(mask.sum())
    if len(true) != count or len(false) != len(mask) - count:
        raise ExecutionError(
            f"there are {len(true)} and {len(false)} rows, but the mask asks for {count} and {len(mask) - count}",
            "shape_mismatch",
        )
    if len(true) and len(false) and true.shape != (count, *false.shape[1:]):
        raise ExecutionError(f"rows of shapes {list(true.shape)} and {list(false.shape)} differ", "shape_mismatch")
    shaped = true if count else false
    out = xp.empty((len(mask), *shaped.shape[1:]), dtype=shaped.dtype)
    out[mask] = true if count else out[mask]
    out[~mask] = false if len(false) else out[~mask]
    return out


@merge_by_mask.infer
def merge_by_mask_infer(mask, true, false):
    if mask.dtype != "bool" or mask.rank != 1 or true.rank == 0 or false.rank == 0:
        raise ProgramError(
            f"mask must be bool[n], and true and false must have rows, not {mask}, {true} and {false}", "shape_mismatch"
        )
    joined_type(true, false, "type_mismatch", "the rows to merge differ")
    return TensorType((mask.shape[0], *_row_shape(mask, true, false)), true.dtype)


def _row_shape(mask: TensorType, true: TensorType, false: TensorType) -> tuple[int, ...]:
    """The shape of a row. A side without rows has no say; if both sides have none, the row is one of `false`."""
    yes, no = true.shape[0], false.shape[0]
    if yes > 0 and no > 0:
        pairs = zip(true.shape[1:], false.shape[1:], strict=True)
        return tuple(same_size(m, n, f"rows of {true} and {false} differ") for m, n in pairs)
    if yes == 0 or no > 0:
        return false.shape[1:]
    if yes > 0 or (no == 0 and mask.shape[0] > 0):
        return true.shape[1:]
    return tuple(m if m == n else -1 for m, n in zip(true.shape[1:], false.shape[1:], strict=True))


@merge_by_mask.vjp
def merge_by_mask_vjp(ct, out, mask, true, false):
    parts = zip(split_by_mask(ct, mask), (true, false), strict=True)
    # a side without rows may have rows of another shape than the cotangent
    return None, *(part if part.shape[1:] == x.shape[1:] else reshape_to(part, x) for part, x in parts)


merge_by_mask.example(lambda: [Example((m, x[m], x[~m]), (x,)) for x, m in CASES])
