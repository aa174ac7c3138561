"""Gathers, scatters and segments equal numpy's, in chunks and in one piece, and their bits do not depend on threads."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen import backend, parallel
from core.ir.errors import ExecutionError
from tests.core.codegen.stepwise import compiled

WIDTHS = [1, 3, 16, 17, 70]


@pytest.fixture(params=[1, 3], ids=["1 thread", "3 threads"], autouse=True)
def _threads(request, monkeypatch):
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
    monkeypatch.setattr(backend, "thread_count", lambda: request.param)


def rows(count, width, dtype="float32"):
    x = np.random.default_rng(0).standard_normal((count, width)).astype(dtype)
    return x, np.random.default_rng(1).integers(0, 7, count)


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_are_added_in_order(width):
    x, ids = rows(40, width)
    wanted = np.zeros((9, width), "float32")
    np.add.at(wanted, ids, x)

    np.testing.assert_array_equal(compiled("segment_sum", x, ids, num_segments=9), wanted)
    np.testing.assert_array_equal(compiled("scatter_add_like", x, ids - 9, wanted), wanted[[*range(9)]])


@pytest.mark.parametrize("width", [1, 17])
def test_extremes_and_products_of_segments_equal_numpys(width):
    x, ids = rows(40, width, "float64")
    x[3, 0] = np.nan
    most, product = np.zeros((9, width)), np.ones((9, width))
    for k in range(7):
        most[k] = x[ids == k].max(0)
        product[k] = x[ids == k].prod(0)

    np.testing.assert_array_equal(compiled("segment_max", x, ids, num_segments=9), most)
    np.testing.assert_allclose(compiled("segment_prod", x, ids, num_segments=9), product, rtol=1e-14)


@pytest.mark.parametrize("shape", [(5,), (2, 5, 3), (4, 5, 17)])
def test_gathered_slices_and_their_sums_equal_numpys_on_a_middle_axis(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    axis = len(shape) // 2
    index = np.array([[4, 0], [-1, 2], [0, 0]])

    found = compiled("gather", x, index, axis=axis)
    back = compiled("scatter_add_like", found, index, x, axis=axis)

    np.testing.assert_array_equal(found, np.take(x, index, axis))
    wanted = np.zeros_like(x)
    flat = found.reshape(*shape[:axis], index.size, *shape[axis + 1 :])
    np.add.at(np.moveaxis(wanted, axis, 0), index.ravel(), np.moveaxis(flat, axis, 0))
    np.testing.assert_array_equal(back, wanted)


@pytest.mark.parametrize("bad", [-1, 9])
def test_an_id_outside_the_segments_is_an_error(bad):
    x, ids = rows(40, 70)
    ids[17] = bad
    with pytest.raises(ExecutionError, match="outside 0 to 8"):
        compiled("segment_sum", x, ids, num_segments=9)


def test_positions_of_several_elements_of_each_row_are_computed():
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype("float32")
    index = np.random.default_rng(1).integers(-4, 4, (3, 6, 5))

    at = compiled("positions_along", index, x, axis=1)

    np.testing.assert_array_equal(x.ravel()[at], np.take_along_axis(x, index, 1))


def test_positions_by_coordinates_are_computed():
    x, index = np.zeros((3, 4, 2)), np.array([[[2, -1], [0, 3]], [[1, 1], [-3, 0]]])

    wanted = np.ravel_multi_index((index[..., 0] % 3, index[..., 1] % 4), (3, 4))

    np.testing.assert_array_equal(compiled("positions_nd", index, x), wanted)
    with pytest.raises(ExecutionError, match="out of range"):
        compiled("positions_nd", index + 2, x)
