"""Embedding tables, and sparse gradients of tables: the numbers of the rows, and the values of these rows."""

from __future__ import annotations

import math

import numpy as np

from core.ir import TensorType
from core.ir.builder import SparseRows
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ir.slot_roles import Table
from core.ops.common.scatter_rows import scatter_rows
from core.ops.common.types import matches, same_dtype, same_size
from core.ops.elementwise.logic import where
from core.ops.indexing.gather import check_index, gather, in_range, scatter_add_like
from core.ops.indexing.scatter_gather import wrapped_index
from core.ops.shape.creation import fill_zeros_like
from core.ops.shape.reshape import reshape, squeeze, unsqueeze

__all__: list[str] = []

TABLE = np.array([[0.1, 0.2], [0.3, -0.4], [0.5, 0.6], [-0.7, 0.8]])
IDS = np.array([[1, 3, 1], [-1, 0, 1]])
CT = np.arange(12.0).reshape(2, 3, 2) - 4
NONE = np.array([], int)


def _check_lookup(x: TensorType, ids: TensorType, like: TensorType) -> None:
    """Raises ProgramError (shape_mismatch) unless x [*ids, *row] has a row of `like` [size, *row] for each of `ids`.

    Their dtypes may differ: gradients of 16-bit tables are added up in float32.
    """
    check_index(ids, "ids")
    if like.rank == 0:
        raise ProgramError(f"a table has rows, not {like}", "shape_mismatch")
    wanted = TensorType((*ids.shape, *like.shape[1:]), x.dtype)
    if not matches(x, wanted):
        raise ProgramError(f"{x} does not hold a row of {like} for each of {ids}", "shape_mismatch")


def _padding(padding_idx: int, size: int) -> int:
    """`padding_idx` counted from the front.

    Raises ExecutionError if it is outside the table; the size may be unknown before the run.
    """
    if not -size <= padding_idx < size:
        raise ExecutionError(f"padding_idx {padding_idx} is outside a table of {size} rows", "index_out_of_range")
    return padding_idx % size


@op(no_gradient="its result is a constant of its integer input")
def is_padding(xp, ids, like, *, padding_idx: int):
    """For each of `ids` whether it means the row `padding_idx` of a table like `like`; both may count from the end."""
    return in_range(xp, xp.asarray(ids), like.shape[0]) == _padding(padding_idx, like.shape[0])


@is_padding.infer
def is_padding_infer(ids, like, *, padding_idx):
    check_index(ids, "ids")
    if like.rank == 0:
        raise ProgramError(f"a table has rows, not {like}", "shape_mismatch")
    size = like.shape[0]
    if size >= 0 and not -size <= padding_idx < size:
        raise ProgramError(f"padding_idx {padding_idx} is outside the table {like}", "bad_attr")
    return TensorType(ids.shape, "bool")


is_padding.example(
    lambda: [
        Example((IDS, TABLE), ((IDS == 3) | (IDS == -1),), {"padding_idx": -1}),
        Example((NONE, TABLE), (NONE == 0,), {"padding_idx": 0}),
    ]
)


@composite
def embedding(weight: Table, ids, *, padding_idx: int | None = None, is_sparse: bool = False):
    """``out[..., :] = weight[ids[...], :]``: rows of a table, looked up.

    An id outside the table is an error; negative ones count from its end, and so does `padding_idx`. Rows of
    `padding_idx` come out as zeros and get no gradient.

    is_sparse: keep the gradient of the table as the rows that were looked up, each once, with their values. Every use
    of the table must be such a lookup, in loops and branches too; otherwise the gradient becomes a whole table, and the
    answer reports that under `densified`. Both forms have the same bits.
    """
    check_index(ids.type, "ids")
    if weight.rank != 2:
        raise ProgramError(f"the table must have two axes, not {weight.type}", "shape_mismatch")
    return _without_padding(gather(weight, ids, axis=0), weight, ids, padding_idx)


def _without_padding(rows, weight, ids, padding_idx: int | None):
    if padding_idx is None:
        return rows
    padded = is_padding(ids, weight, padding_idx=padding_idx)
    return where(unsqueeze(padded, axes=(-1,)), fill_zeros_like(rows), rows)


@embedding.vjp
def embedding_vjp(ct, out, weight, ids, *, padding_idx, is_sparse):
    if not is_sparse:
        return scatter_add_like(_without_padding(ct, weight, ids, padding_idx), ids, weight, axis=0), None
    if padding_idx is None and math.prod(ids.shape) == 1 and -1 not in ids.shape:  # a single row needs no merge
        row = reshape(wrapped_index(ids, weight), shape=(1,))
        return SparseRows(row, reshape(ct, shape=(1, weight.shape[1]))), None
    return SparseRows(*merge_rows(ct, ids, weight, padding_idx=padding_idx)), None


PADDED = np.array([[0, 1], [2, -4]])
LOOKED_UP = TABLE[PADDED] * [[[0], [1]], [[1], [0]]]
embedding.example(
    lambda: [
        Example((TABLE, np.array([0, 1, 0])), (TABLE[[0, 1, 0]],)),
        Example((TABLE, PADDED), (LOOKED_UP,), {"padding_idx": 0}),
        Example((TABLE, PADDED), (LOOKED_UP,), {"padding_idx": -4, "is_sparse": True}),
        Example((TABLE, NONE), (TABLE[:0],), {"is_sparse": True}),
    ]
)


@composite
def lookup_table(w, ids, *, padding_idx: int | None = None, is_sparse: bool = False):
    """`embedding` of ids [..., 1]: their last axis becomes that of the rows."""
    if ids.rank == 0 or ids.shape[-1] not in (1, -1):
        raise ProgramError(f"the last axis of the ids must be 1, not {ids.type}", "shape_mismatch")
    flat = squeeze(ids, axes=(-1,))
    return embedding(w, flat, padding_idx=padding_idx, is_sparse=is_sparse)


lookup_table.example(
    lambda: [
        Example((TABLE, PADDED[..., None]), (LOOKED_UP,), {"padding_idx": 0}),
        Example((TABLE, PADDED[..., None]), (TABLE[PADDED],), {"is_sparse": True}),
        Example((TABLE[:, 0][:, None], PADDED[0][:, None]), (TABLE[PADDED[0], :1],)),
        Example((TABLE, NONE[:, None]), (TABLE[:0],)),
    ]
)


# --- gradients as rows -----------------------------------------------------------------------------------------


@op(outputs=("rows", "values"))
def merge_rows(xp, x, ids, like, *, padding_idx: int | None = None):
    """The rows of a table like `like` that `ids` names, each once and ascending, and for each the sum of its x.

    ``values[i] = sum of x[k] over all k with ids[k] == rows[i]``.

    x is [*ids, *row]. Rows of one id are added in the order of `ids`, 16-bit floats in float32; sums of many float32
    numbers are added in blocks. Rows of `padding_idx` are left out.
    """
    size = like.shape[0]
    index = in_range(xp, xp.asarray(ids), size).ravel()
    flat = x.reshape(index.size, *like.shape[1:])
    if padding_idx is not None:
        kept = index != _padding(padding_idx, size)
        index, flat = index[kept], flat[kept]
    rows, place = xp.unique(index, return_inverse=True)
    return rows.astype("int64"), scatter_rows(xp, rows.size, place.ravel(), flat)


@merge_rows.infer
def merge_rows_infer(x, ids, like, *, padding_idx):
    _check_lookup(x, ids, like)
    if padding_idx is not None:
        is_padding_infer(ids, like, padding_idx=padding_idx)
    return TensorType((-1,), "int64"), TensorType((-1, *like.shape[1:]), x.dtype)


@merge_rows.vjp
def merge_rows_vjp(ct, out, x, ids, like, *, padding_idx):
    return read_rows(ct[1], out[0], ids, like), None, None


merge_rows.example(
    lambda: [
        Example(
            (CT, IDS, TABLE),
            (np.array([0, 1, 3]), np.stack([CT[1, 1], CT[0, 0] + CT[0, 2] + CT[1, 2], CT[0, 1] + CT[1, 0]])),
        ),
        Example((CT, IDS, TABLE), (np.array([0, 3]), [CT[1, 1], CT[0, 1] + CT[1, 0]]), {"padding_idx": 1}),
        Example((CT[0, 1], np.array(-1), TABLE), (np.array([3]), CT[0, 1:2])),
        Example((TABLE[:0], NONE, TABLE), (NONE, TABLE[:0])),
        Example((np.ones(3), np.array([2, 0, 2]), TABLE[:, 0]), (np.array([0, 2]), np.array([1.0, 2.0]))),
    ]
)


@op(
    outputs=("rows", "values", "count"),
    unavailable="it stands for merge_rows in machine code, which is written after differentiation",
)
def merge_rows_padded(xp, x, ids, like, kept=None, *, padding_idx: int | None = None):
    """`merge_rows` with results of known size: as many rows as there may be, and `count`, how many there are.

    The rows from `count` on have number 0 and zero values. kept: a bool for each of `ids`; the others are left out.
    """
    index, flat = xp.asarray(ids).ravel(), x.reshape(-1, *like.shape[1:])
    room = min(index.size, like.shape[0])
    if kept is not None:
        index, flat = index[kept.ravel()], flat[kept.ravel()]
    found, sums = merge_rows.body(xp, flat, index, like, padding_idx=padding_idx)
    rows, values = xp.zeros(room, "int64"), xp.zeros((room, *like.shape[1:]), x.dtype)
    rows[: len(found)], values[: len(found)] = found, sums
    return rows, values, xp.asarray(len(found), "int64")


@merge_rows_padded.infer
def merge_rows_padded_infer(x, ids, like, kept, *, padding_idx):
    merge_rows_infer(x, ids, like, padding_idx=padding_idx)
    if kept is not None and (kept.dtype != "bool" or not matches(kept, TensorType(ids.shape, "bool"))):
        raise ProgramError(f"kept must be a bool for each of {ids}, not {kept}", "shape_mismatch")
    open_size = -1 in (*ids.shape, like.shape[0])
    room = -1 if open_size else min(math.prod(ids.shape), like.shape[0])
    return TensorType((room,), "int64"), TensorType((room, *like.shape[1:]), x.dtype), TensorType((), "int64")


merge_rows_padded.example(
    lambda: [
        Example(
            (CT, IDS, TABLE),
            (
                np.array([0, 1, 3, 0]),
                np.stack([CT[1, 1], CT[0, 0] + CT[0, 2] + CT[1, 2], CT[0, 1] + CT[1, 0], 0 * CT[0, 0]]),
                np.array(3),
            ),
        ),
        Example(
            (CT, IDS, TABLE, np.array([[True, True, False], [True, False, True]])),
            (
                np.array([3, 0, 0, 0]),
                np.stack([CT[0, 1] + CT[1, 0], *(0 * CT[0])]),
                np.array(1),
            ),
            {"padding_idx": -3},
        ),
        Example((CT[0, 1], np.array(-1), TABLE), (np.array([3]), CT[0, 1:2], np.array(1))),
    ]
)


@op
def read_rows(xp, values, rows, ids, like):
    """Look up `ids` in a table like `like` whose rows number `rows` are `values`, and whose other rows are zero.

    rows: each once, ascending, as `merge_rows` returns them.
    """
    index = in_range(xp, xp.asarray(ids), like.shape[0])
    if len(rows) != len(values):
        raise ExecutionError(f"{len(rows)} rows, but {len(values)} values", "shape_mismatch")
    if values.shape[1:] != like.shape[1:]:
        raise ExecutionError(
            f"values of shape {list(values.shape)} are no rows of {list(like.shape)}", "shape_mismatch"
        )
    rows = in_range(xp, rows, like.shape[0])
    if len(rows) > 1 and bool(xp.any(rows[1:] <= rows[:-1])):
        raise ExecutionError("rows must be ascending, each once", "rows_unordered")
    if not len(rows):
        return xp.zeros((*index.shape, *values.shape[1:]), values.dtype)
    place = xp.minimum(xp.searchsorted(rows, index), len(rows) - 1)
    found = (rows[place] == index).reshape(*index.shape, *(1 for _ in values.shape[1:]))
    return xp.where(found, values[place], values.dtype.type(0))


@read_rows.infer
def read_rows_infer(values, rows, ids, like):
    check_index(rows, "rows")
    check_index(ids, "ids")
    if rows.rank != 1 or values.rank == 0 or values.rank != like.rank:
        raise ProgramError(f"needs rows of {like} and their numbers, not {values} and {rows}", "shape_mismatch")
    same_dtype(values, like)
    same_size(rows.shape[0], values.shape[0], "rows and values of different number")
    row = tuple(
        same_size(m, n, "rows of different size") for m, n in zip(values.shape[1:], like.shape[1:], strict=True)
    )
    return TensorType((*ids.shape, *row), values.dtype)


@read_rows.vjp
def read_rows_vjp(ct, out, values, rows, ids, like):
    found, added = merge_rows(ct, ids, like)
    return read_rows(added, found, rows, like), None, None, None


read_rows.example(
    lambda: [
        Example(
            (TABLE[:2], np.array([1, 3]), IDS, TABLE),
            (np.array([[TABLE[0], TABLE[1], TABLE[0]], [TABLE[1], 0 * TABLE[0], TABLE[0]]]),),
        ),
        Example((TABLE[:0], NONE, IDS, TABLE), (0 * CT,)),
        Example((TABLE[:1], np.array([2]), np.array(2), TABLE), (TABLE[0],)),
    ]
)
