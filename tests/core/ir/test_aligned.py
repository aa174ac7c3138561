"""Arrays that start at a cache line."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest

from core.ir.aligned import LINE, aligned_copy, aligned_empty, aligned_zeros, array_in, bytes_for


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (7, 5), (40_000,)])
@pytest.mark.parametrize("dtype", ["bool", "int64", "float64", ml_dtypes.bfloat16])
def test_arrays_start_at_a_cache_line(shape, dtype):
    dtype = np.dtype(dtype)
    held = [make(shape, dtype) for make in (aligned_empty, aligned_zeros) for _ in range(8)]
    for array in held:
        assert (array.shape, array.dtype) == (shape, dtype)
        assert array.ctypes.data % LINE == 0
        assert array.flags.c_contiguous and array.flags.writeable
    assert not any(array.any() for array in held[8:])


def test_a_copy_of_a_transposed_array_is_row_major():
    source = np.arange(15, dtype="float32").reshape(3, 5).T
    copy = aligned_copy(source)
    assert copy.flags.c_contiguous and copy.ctypes.data % LINE == 0
    np.testing.assert_array_equal(copy, source)
    copy[:] = 0
    assert source.any()


def test_all_views_of_an_array_refer_to_its_memory():
    shape, dtype = (4, 4), np.dtype("float32")
    memory = np.empty(bytes_for(shape, dtype), np.uint8)
    before = sys.getrefcount(memory)
    view = array_in(memory, shape, dtype)[1:].T
    assert sys.getrefcount(memory) == before + 1
    del view
    assert sys.getrefcount(memory) == before
