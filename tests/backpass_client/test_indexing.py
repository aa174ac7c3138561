"""The ops of an index, run with numpy, give the same part of an array as numpy's own indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backpass_client.indexing import index_ops

A = np.arange(60.0).reshape(3, 4, 5)


def run(x: np.ndarray, type: str, others: tuple[Any, ...], attrs: dict[str, Any]) -> np.ndarray:
    """One op as the catalogue defines it."""
    if type == "slice":
        for axis, start, end, step in zip(*(attrs[k] for k in ("axes", "starts", "ends", "steps")), strict=True):
            # numpy reads a negative end as an offset, but the smallest one as "before the first element"
            stop = None if step < 0 and end < -x.shape[axis] else end
            x = x[(slice(None),) * axis + (slice(start, stop, step),)]
        return x
    if type == "gather":
        assert np.min(others[0], initial=0) >= 0, "gather counts positions from 0"
        return np.take(x, others[0], axis=attrs.get("axis", 0))
    if type == "squeeze":
        return np.squeeze(x, tuple(attrs["axes"]))
    if type == "transpose":
        return np.transpose(x, attrs["axes"])
    assert type == "unsqueeze"
    for axis in attrs["axes"]:
        x = np.expand_dims(x, axis)
    return x


@pytest.mark.parametrize(
    "index",
    [0, -1, (1, 2, 3), (slice(None), -1), (slice(2, 0, -1), 1), slice(None, None, -1), (..., 2), (0, ..., slice(1, 3)),
     None, (None, 1, None, slice(1, None)), (..., None), [2, 0], np.array([[0, 1], [2, 2]]),
     (np.int64(1), np.int32(-2)), (slice(None), [1, 2, 0]), (..., np.array([0, 3, 3])),
     (slice(1), None, [[0, 1]], None), (0, [1, 3]), ([2, 0], 1, slice(2)), [-1, 0],
     (slice(None, None, -1), [-1, 2], 1), (1, [-4, 2], -1), ..., (0, ...), (..., None, 1), [], [[]],
     (slice(None), np.array([[-1]]), ..., 1), (0, slice(None), [1, 2]), (slice(None), 1, None, [3, 0, 1]),
     (None, slice(None), [[0], [1]], None, -1), (0, slice(None), np.array(2)),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("rank", [None, 3])
def test_the_ops_of_an_index_select_the_same_part_as_numpy(index: Any, fixed: bool, rank: int | None):
    found = A
    for op in index_ops(index, lambda: A.ndim, lambda axis: A.shape[axis], fixed, rank=rank):
        found = run(found, *op)

    np.testing.assert_array_equal(found, A[index])


@pytest.mark.parametrize("index", [0, (slice(1, 2), 1), None, [1, 2], (0, ...), (0, slice(None))], ids=repr)
def test_an_index_without_negative_positions_needs_no_shape(index: Any):
    def unknown(*_: Any) -> int:
        raise AssertionError("the index asked for the shape")

    assert index_ops(index, unknown, unknown)


@pytest.mark.parametrize("index", ["x", 1.5, True, (0, True), A > 1, [0.5], ([0], [1]), np.array([])], ids=repr)
def test_an_index_of_other_types_than_integers_raises_type_error(index: Any):
    with pytest.raises(TypeError, match="cannot index"):
        index_ops(index, lambda: 3, lambda axis: A.shape[axis])


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(
    "index", [-4, (0, -5), (..., -6), [-4, 0], (slice(None), [[3, -5]]), (slice(None), [-1, 4]), (1, [0], -6)], ids=repr
)
def test_a_position_out_of_range_raises_index_error(index: Any, fixed: bool):
    with pytest.raises(IndexError, match=r"position -?\d is out of range for axis \d of size \d"):
        index_ops(index, lambda: A.ndim, lambda axis: A.shape[axis], fixed)


@pytest.mark.parametrize("index", [-4, [-4, 0], (slice(None), [2, -9])], ids=repr)
def test_a_negative_position_stays_as_it_is_where_the_size_is_open(index: Any):
    ops = index_ops(index, lambda: A.ndim, lambda axis: None)

    (op,) = [op for op in ops if op[0] == "gather"]
    assert np.array_equal(op[1][0], index[-1] if isinstance(index, tuple) else index)


@pytest.mark.parametrize(
    "index", [(slice(None),) * 4, (0, slice(None), 1, slice(None)), (0, 1, ..., 2, slice(None)), (0, 0, 0, 0)], ids=repr
)
def test_more_indices_than_axes_raise_index_error(index: Any):
    with pytest.raises(IndexError, match="too many indices: 4 for an array of rank 3"):
        index_ops(index, lambda: A.ndim, lambda axis: A.shape[axis], rank=3)


@pytest.mark.parametrize("index", [slice(None), (0, slice(None)), (0, slice(None), None)], ids=repr)
def test_a_last_slice_is_an_op_where_the_rank_is_not_known(index: Any):
    """The service then refuses an axis that the array does not have."""
    ops = index_ops(index, lambda: A.ndim, lambda axis: A.shape[axis])

    assert ops[0][0] == "slice"
    assert ops[0][2]["axes"] == [0 if isinstance(index, slice) else 1]


@pytest.mark.parametrize(
    ("index", "error"),
    [(slice(1, 2, 0), ValueError), (slice(0, 1.5), TypeError), ((..., ...), IndexError)],
    ids=["step 0", "decimal end", "two ellipses"],
)
def test_a_wrong_slice_is_refused_as_in_numpy(index: Any, error: type[Exception]):
    for refused in (lambda: A[index], lambda: index_ops(index, lambda: A.ndim, lambda axis: A.shape[axis])):
        with pytest.raises(error):
            refused()
