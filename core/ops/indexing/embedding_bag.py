"""Embedding bags: rows of a table, reduced over bags of ids."""

from __future__ import annotations

from typing import Literal

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.common.types import matches
from core.ops.elementwise.arithmetic import cast
from core.ops.elementwise.logic import greater_equal
from core.ops.indexing.embedding import embedding
from core.ops.indexing.gather import check_index
from core.ops.indexing.sort import searchsorted
from core.ops.reduction.cumulative import shift
from core.ops.reduction.segments import segment_max, segment_mean, segment_sum
from core.ops.reduction.statistics import reduce_all
from core.ops.reduction.sums import reduce_max, reduce_mean, reduce_sum
from core.ops.shape.agreeing import agreed
from core.ops.shape.reshape import unsqueeze

__all__: list[str] = []


@composite
def embedding_bag(
    weight,
    ids,
    offsets=None,
    sample_weight=None,
    *,
    mode: Literal["sum", "mean", "max"] = "mean",
    is_sparse: bool = False,
):
    """Rows of the table `weight` reduced over bags of `ids`: ``out[b] = sum of weight[i] for i in bag b``.

    Each row of a matrix `ids` [bags, n] is a bag. A vector `ids` is cut into bags that start at the ascending
    `offsets` [bags], of which the first is 0. An empty bag gives 0. Offsets that are not ascending end the run
    (assertion_failed).

    - `sample_weight`: a factor for each id, for the mode `sum`.
    - `mode`: the sum, the mean or the maximum of the rows. Tied rows share the gradient of a maximum evenly.
    - `is_sparse`: give a row-sparse gradient of the table.
    """
    check_index(ids.type, "ids")
    if weight.rank != 2 or ids.rank not in (1, 2) or (ids.rank == 1) != (offsets is not None):
        raise ProgramError(
            f"needs a table [rows, d], and ids [bags, n] or ids [n] and offsets, not {weight.type} and {ids.type}",
            "shape_mismatch",
        )
    rows = embedding(weight, ids, is_sparse=is_sparse)
    if sample_weight is not None:
        if mode != "sum" or not matches(sample_weight.type, TensorType(ids.shape, weight.dtype)):
            raise ProgramError(
                f"sample_weight must be {weight.dtype} in the shape of {ids.type}, with mode sum, "
                f"not {sample_weight.type} with mode {mode}",
                "type_mismatch",
            )
        sample_weight, ids = agreed(sample_weight, ids, *((i, i) for i in range(ids.rank)))
        rows = rows * unsqueeze(sample_weight, axes=(ids.rank,))
    if offsets is None:
        return {"sum": reduce_sum, "mean": reduce_mean, "max": reduce_max}[mode](rows, axes=(1,))
    check_index(offsets.type, "offsets")
    number = ids.builder.emit("roll_positions", ids, shift=0, axis=0)
    start = cast(offsets, dtype="int64")
    ascending = reduce_all(greater_equal(start, shift(start, axis=0)))
    bag = searchsorted(start.builder.emit("assert", start, ascending), number, right=True) - 1.0
    return {"sum": segment_sum, "mean": segment_mean, "max": segment_max}[mode](rows, bag, offsets)


TABLE = np.sin(np.arange(8.0) * 3 + 1).reshape(4, 2)
IDS = np.array([[3, 0, 3], [1, 2, 1]])
FLAT = np.array([3, 0, 2, 1, 1, 2])
STARTS = np.array([0, 2, 2, 5])


def _bags(f, times=None):
    rows = TABLE[FLAT] * (1 if times is None else times[:, None])
    ends = [*STARTS[1:], len(FLAT)]
    return np.stack([f(rows[a:b]) if b > a else np.zeros(2) for a, b in zip(STARTS, ends, strict=True)])


_TIMES = np.array([0.5, -1.0, 2.0, 0.25, 1.5, -0.75])
embedding_bag.example(
    lambda: [
        Example((TABLE, IDS), (TABLE[IDS].mean(1),)),
        Example((TABLE, FLAT, STARTS), (_bags(lambda r: r.mean(0)),)),
        Example((TABLE, FLAT[:4], STARTS[:2]), (np.stack([TABLE[[3, 0]].max(0), TABLE[[2, 1]].max(0)]),),
                {"mode": "max"}),
        Example((TABLE, FLAT, STARTS, _TIMES), (_bags(lambda r: r.sum(0), _TIMES),), {"mode": "sum"}),
        Example((TABLE[:3], IDS[1:]), (TABLE[IDS[1:]].sum(1),), {"mode": "sum"}),
    ]
)  # fmt: skip
