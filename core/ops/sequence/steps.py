"""Sequences of different lengths, step by step.

The longest sequence comes first, so that the sequences that have a step are always the first ones.
"""

from __future__ import annotations

import numpy as np

from core.ir import StackType, TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.lengths import check_lengths, ends_of, row_numbers
from core.ops.control.array_common import array_of, check_elements
from core.ops.control.array_cotangents import array_fill
from core.ops.control.array_joins import array_split_as, present
from core.ops.indexing.gather import gather
from core.ops.indexing.scatter_gather import scatter
from core.ops.shape.creation import fill_constant_batch_size_like, fill_zeros_like

__all__: list[str] = []

X = np.array([[1.0, -2.0], [3.0, 0.5], [4.0, -1.5], [0.25, 2.0], [1.5, -0.5], [2.5, 0.75]])
N = np.array([3, 1, 2])
GAPS = np.array([3, 0, 1, 2])
ROWS = (X, X[:, 0], X[:, :, None])
"""Examples of rows: vectors, single numbers, and matrices."""
_INTEGER = "its result is an integer"


@op(no_gradient=_INTEGER)
def rank_table(xp, lengths):
    """The numbers of the sequences, int64, from the longest to the shortest; equally long ones keep their order."""
    return xp.argsort(-lengths, kind="stable").astype("int64")


@rank_table.infer
def rank_table_infer(lengths):
    check_lengths(lengths)
    return lengths


rank_table.example(
    lambda: [Example((N,), (np.array([0, 2, 1]),)), Example((np.array([1, 2, 2]),), (np.array([1, 2, 0]),))]
)


@composite
def reorder_by_rank(x, lengths):
    """``out = x[rank_table(lengths)]``: the rows of x, one for each sequence, in the order of `rank_table`."""
    return gather(x, rank_table(lengths))


reorder_by_rank.example(
    lambda: [
        Example((x, n), (x[np.argsort(-n, kind="stable")],)) for x, n in ((X[:3], N), (X[:4, 0], GAPS), (X[:0], N[:0]))
    ]
)


@op(outputs=("rows", "counts"), no_gradient=_INTEGER)
def step_rows(xp, lengths, x):
    """The positions of the rows of step 0 of all sequences, then of step 1, ..., and the number of rows of each step.

    Within a step the sequences are in the order of `rank_table`.
    """
    ends = ends_of(xp, lengths, x.shape[0])
    order = xp.argsort(-lengths, kind="stable")
    steps = int(lengths.max()) if lengths.size else 0
    counts = xp.asarray([int((lengths > t).sum()) for t in range(steps)], dtype="int64")
    starts = (ends - lengths)[order]
    rows = [starts[: int(n)] + t for t, n in enumerate(counts.tolist())]
    return (xp.concatenate(rows) if rows else xp.zeros(0)).astype("int64"), counts


@step_rows.infer
def step_rows_infer(lengths, x):
    return row_numbers(lengths, x), TensorType((-1,), "int64")


step_rows.example(lambda: [Example((N, X), (np.array([0, 4, 3, 1, 5, 2]), np.array([3, 2, 1])))])


@op(stacks=True)
def array_cut(xp, x, counts, within=None):
    """x split along its first axis into an array of sections with `counts` rows each.

    within: an array with at least as many rows as each section. A longer section is an error.
    """
    ends = ends_of(xp, counts, x.shape[0]).tolist()
    if within is not None and counts.size and int(counts.max()) > within.shape[0]:
        raise ExecutionError(
            f"a section has {int(counts.max())} rows, but `within` has {within.shape[0]}", "shape_mismatch"
        )
    return [x[end - n : end] for end, n in zip(ends, counts.tolist(), strict=True)]


@array_cut.infer
def array_cut_infer(x, counts, within):
    if isinstance(within, StackType) or (within is not None and within.rank == 0):
        raise ProgramError(f"{within} has no rows", "shape_mismatch")
    if isinstance(counts, StackType) or not isinstance(x, TensorType) or x.rank == 0:
        raise ProgramError(f"{x} has no rows", "shape_mismatch")
    check_lengths(counts)
    return StackType(TensorType((-1, *x.shape[1:]), x.dtype))


@array_cut.vjp
def array_cut_vjp(ct, out, x, counts, within):
    return array_paste(array_fill(ct, out), x), None, None


array_cut.example(
    lambda: [
        *(Example((x, N), ([x[:3], x[3:4], x[4:]],)) for x in ROWS),
        Example((X, N, X[:3]), ([X[:3], X[3:4], X[4:]],)),
    ]
)


@op(stacks=True)
def array_paste(xp, array, like):
    """The sections of an array, concatenated, with the shape of `like`: the inverse of `array_cut`."""
    out = xp.concatenate(present(array)) if array else xp.zeros((0, *like.shape[1:]), like.dtype)
    if out.shape != like.shape:
        raise ExecutionError(
            f"the sections have the shape {list(out.shape)}, but `like` has {list(like.shape)}", "shape_mismatch"
        )
    return out


@array_paste.infer
def array_paste_infer(array, like):
    if not isinstance(array, StackType) or not isinstance(like, TensorType):
        raise ProgramError(
            f"array_paste takes an array of sections and an array like their concatenation, not {array} and {like}",
            "type_mismatch",
        )
    check_elements(array.element, TensorType((-1, *like.shape[1:]), like.dtype), "array_paste")
    return like


array_paste.vjp(lambda ct, out, array, like: (array_split_as(ct, array), None))
array_paste.example(lambda: [Example(([x[:3], x[3:4], x[4:]], x), (x,)) for x in ROWS])


@composite
def sequence_to_array(x, lengths):
    """A tensor array: element t has row t of each sequence that is long enough, in the order of `rank_table`."""
    rows, counts = step_rows(lengths, x)
    return array_cut(gather(x, rows), counts, lengths)  # a step has a row of each sequence at most


sequence_to_array.example(lambda: [Example((x, N), ([x[[0, 4, 3]], x[[1, 5]], x[[2]]],)) for x in ROWS])


@composite(stacks=True)
def array_to_sequence(array, lengths, like):
    """The inverse of `sequence_to_array`. Only the number of rows of `like` matters."""
    element = array_of(array.type, "array_to_sequence").element
    if not isinstance(element, TensorType) or element.rank == 0:
        raise ProgramError(f"array_to_sequence needs elements with rows, not {element}", "shape_mismatch")
    rows, _ = step_rows(lengths, like)
    shape = (like.shape[0], *element.shape[1:])
    dtype = element.dtype
    base = fill_zeros_like(like) if shape == like.shape and like.dtype == dtype else None
    if base is None:
        base = fill_constant_batch_size_like(like, shape=shape, dtype=dtype)
    return scatter(base, rows, array_paste(array, base))


array_to_sequence.example(lambda: [Example(([x[[0, 4, 3]], x[[1, 5]], x[[2]]], N, x), (x,)) for x in ROWS])


@op(no_gradient=_INTEGER)
def active_rows(xp, lengths, step):
    """``0, 1, ..., n - 1``, where n sequences are longer than `step`, one integer."""
    return xp.arange(int((lengths > int(step.reshape(()))).sum())).astype("int64")


@active_rows.infer
def active_rows_infer(lengths, step):
    check_lengths(lengths)
    if step.dtype not in ("int32", "int64") or any(n not in (1, -1) for n in step.shape):
        raise ProgramError(f"step must be one integer, not {step}", "dtype_mismatch")
    return TensorType((-1,), "int64")


active_rows.example(lambda: [Example((N, np.array(1)), (np.array([0, 1]),))])


@composite
def shrink_rnn_memory(x, lengths, step):
    """The first rows of x, one for each sequence longer than `step`; x is in the order of `rank_table`.

    The other rows get no gradient.
    """
    return gather(x, active_rows(lengths, step))


shrink_rnn_memory.example(
    lambda: [
        *(Example((X[:3], N, np.array(t)), (X[: (t < N).sum()],)) for t in range(4)),
        *(Example((x[:3], N, np.array(1)), (x[:2],)) for x in ROWS[1:]),
    ]
)
