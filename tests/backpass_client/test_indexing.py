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
        assert np.min(others[0]) >= 0, "gather counts positions from 0"
        return np.take(x, others[0], axis=attrs.get("axis", 0))
    if type == "squeeze":
        return np.squeeze(x, tuple(attrs["axes"]))
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
     (slice(None, None, -1), [-1, 2], 1), (1, [-4, 2], -1),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("fixed", [False, True])
def test_the_ops_of_an_index_select_the_same_part_as_numpy(index: Any, fixed: bool):
    found = A
    for op in index_ops(index, lambda: A.ndim, lambda axis: A.shape[axis], fixed):
        found = run(found, *op)

    np.testing.assert_array_equal(found, A[index])


@pytest.mark.parametrize("index", [0, (slice(1, 2), 1), None, [1, 2]], ids=repr)
def test_an_index_without_negative_positions_needs_no_shape(index: Any):
    def unknown(*_: Any) -> int:
        raise AssertionError("the index asked for the shape")

    assert index_ops(index, unknown, unknown)


@pytest.mark.parametrize(
    "index", ["x", 1.5, True, (0, True), A > 1, [0.5], ([0], [1]), (0, slice(None), [1])], ids=repr
)
def test_an_index_of_other_types_than_integers_raises_type_error(index: Any):
    with pytest.raises(TypeError, match="cannot index"):
        index_ops(index, lambda: 3, lambda axis: A.shape[axis])
