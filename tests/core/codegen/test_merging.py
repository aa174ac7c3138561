"""Rows are merged by their numbers as numpy merges them, in every dtype, in chunks and in one piece."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen import backend, parallel
from core.codegen.backend import CPU
from core.codegen.row_writer import row_writer
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.ops.common.types import as_dtype
from core.plan.instructions import Rows
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.walls import before_a_wall


@pytest.fixture(params=[1, 3], ids=["1 thread", "3 threads"], autouse=True)
def _threads(request, monkeypatch):
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
    monkeypatch.setattr(backend, "thread_count", lambda: request.param)


def merged(x, ids, size, kept=None, padding=None):
    b = BlockBuilder()
    given = [x, ids, np.zeros((size, *x.shape[ids.ndim :]), x.dtype), *([] if kept is None else [kept])]
    params = [b.param(TensorType(a.shape, str(a.dtype))) for a in given]
    native = native_interpreter(b.build(b.emit("merge_rows_padded", *params, padding_idx=padding)), CPU)
    assert native.region is not None and not native.region.plan.interpreted
    return native(Run(), *given)


def by_numpy(x, ids, size, kept=None, padding=None):
    """Row by row, in the order of the ids; 16-bit floats in float32."""
    places = np.ones(ids.size, bool) if kept is None else kept.ravel()
    flat, found = x.reshape(ids.size, *x.shape[ids.ndim :]), {}
    for i, row in enumerate(ids.ravel() % size):
        if places[i] and (padding is None or row != padding % size):
            found.setdefault(int(row), []).append(flat[i])
    room = min(ids.size, size)
    rows, values = np.zeros(room, "int64"), np.zeros((room, *flat.shape[1:]), x.dtype)
    wide = np.float32 if x.dtype.itemsize == 2 else x.dtype
    for k, row in enumerate(sorted(found)):
        total = np.zeros(flat.shape[1:], wide)
        for each in found[row]:
            total = total + each.astype(wide)
        rows[k], values[k] = row, total.astype(x.dtype)
    return rows, values, len(found)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int64", "int8"])
@pytest.mark.parametrize(
    ("count", "size", "width"),
    [(1, 1, 1), (1, 9, 3), (40, 7, 16), (40, 1030, 17), (7, 2**21, 1), (300, 5, 33), (64, 64, 150), (50, 2000, 300)],
)
def test_merged_rows_equal_numpys_to_the_bit(dtype, count, size, width):
    r = np.random.default_rng(count)
    x = (8 * r.standard_normal((count, width))).astype(as_dtype(dtype))
    ids = r.integers(-size, size, count).astype("int32" if count % 2 else "int64")
    cases = [(None, None), (r.random(count) < 0.5, None), (None, int(ids[0])), (np.zeros(count, bool), -1)]
    for kept, padding in cases:
        found = merged(x, ids, size, kept, padding)
        for f, want in zip(found, by_numpy(x, ids, size, kept, padding), strict=True):
            np.testing.assert_array_equal(f, want)


def updated(x, ids, table, kept=None, padding=None, scans=False):
    """The rows of `table` that are looked up less the sum of those of `x`, and whether the update adds them up.

    scans: another kernel reads the sums, too.
    """
    b = BlockBuilder()
    given = [x, ids, table, *([] if kept is None else [kept])]
    params = [b.param(TensorType(a.shape, str(a.dtype))) for a in given]
    rows, sums, count = b.emit("merge_rows_padded", *params, padding_idx=padding)
    new = b.emit("sub", b.emit("gather", params[2], rows, axis=0), sums)
    more = [b.emit("cumsum", sums, axis=1)] if scans else []
    native = native_interpreter(b.build([new, rows, count, *more]), CPU)
    assert native.region is not None and not native.region.plan.interpreted
    kernels = [each.kernel for each in native.region.plan.body.instructions if isinstance(each, Rows)]
    found, rows, count, *_ = native(Run(), *given)
    return found[: int(count)], rows[: int(count)], any(each.merged for each in kernels)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize(
    ("count", "size", "width"), [(2, 2, 16), (40, 7, 16), (40, 1030, 17), (300, 5, 33), (64, 64, 150), (50, 2000, 3000)]
)
def test_an_update_adds_up_its_rows_to_the_bit(dtype, count, size, width):
    r = np.random.default_rng(count)
    nbytes = count * width * np.dtype(dtype).itemsize
    x = before_a_wall(nbytes)[-nbytes:].view(dtype).reshape(count, width)
    x[...] = 8 * r.standard_normal((count, width))
    x[r.random((count, width)) < 0.2] *= 0  # also -0
    table = (8 * r.standard_normal((size, width))).astype(dtype)
    table[r.random((size, width)) < 0.2] *= 0
    ids = r.integers(-size, size, count)
    cases = [(None, None), (r.random(count) < 0.5, None), (None, int(ids[0])), (np.zeros(count, bool), -1)]
    for kept, padding in cases:
        found, rows, merges = updated(x, ids, table, kept, padding)
        wanted, sums, distinct = by_numpy(x, ids, size, kept, padding)

        assert merges
        np.testing.assert_array_equal(rows, wanted[:distinct])
        new = table[wanted[:distinct]] - sums[:distinct]
        np.testing.assert_array_equal(found, new)
        if x.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(found), np.signbit(new))


@pytest.mark.parametrize(
    ("width", "dtype", "scans"), [(3, "float32", False), (32, "bfloat16", False), (32, "float32", True)]
)
def test_sums_that_an_update_does_not_add_up_are_stored(width, dtype, scans):
    """Passes over short rows know no rows; 16-bit sums are rounded; a scan reads its operand from memory."""
    r = np.random.default_rng(width)
    x, table = (r.integers(-8, 8, (n, width)).astype(as_dtype(dtype)) for n in (40, 30))
    ids = r.integers(0, 30, 40)

    found, rows, merges = updated(x, ids, table, scans=scans)

    assert not merges
    _, sums, distinct = by_numpy(x, ids, 30)
    np.testing.assert_array_equal(found, table[rows] - sums[:distinct])


def test_rows_of_several_axes_and_ids_of_none_are_merged():
    x = np.arange(48.0).reshape(2, 2, 3, 4)
    for found, want in zip(
        merged(x, np.array([[1, 0], [-1, 1]]), 5), by_numpy(x, np.array([[1, 0], [4, 1]]), 5), strict=True
    ):
        np.testing.assert_array_equal(found, want)
    rows, values, count = merged(np.array([2.0, 3.0]), np.array(-2), 4)
    assert (rows.tolist(), values.tolist(), int(count)) == ([2], [[2.0, 3.0]], 1)


@pytest.mark.parametrize("wrong", [5, -6, 2**40])
def test_a_wrong_id_fails_unless_it_is_left_out(wrong):
    x, ids = np.ones((3, 2)), np.array([1, wrong, 2])

    with pytest.raises(ExecutionError) as caught:
        merged(x, ids, 5)

    assert caught.value.code == "index_out_of_range"
    rows, _, count = merged(x, ids, 5, kept=np.array([True, False, True]))
    assert rows[: int(count)].tolist() == [1, 2]


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 7, 16, 63, 64, 65, 150, 400, 1024, 1500])
def test_rows_are_written_to_their_places_and_nowhere_else(nbytes):
    r = np.random.default_rng(nbytes)
    table, values = before_a_wall(11 * nbytes, 64), before_a_wall(4 * nbytes, 64)
    table[...], values[...] = r.integers(0, 256, table.size), r.integers(0, 256, values.size)
    rows, one, three = np.array([0, 3, 4, 10]), np.array(1), np.array(3)
    wanted = table.copy()
    wanted[-11 * nbytes :].reshape(11, nbytes)[rows[:3]] = values[-4 * nbytes :].reshape(4, nbytes)[:3]
    part = table[-11 * nbytes :]

    row_writer(nbytes)(part.ctypes.data, rows.ctypes.data, values[-4 * nbytes :].ctypes.data, three.ctypes.data)

    np.testing.assert_array_equal(table, wanted)
    part_of_last = values[-4 * nbytes :]
    row_writer(nbytes)(part.ctypes.data, rows[3:].ctypes.data, part_of_last[-nbytes:].ctypes.data, one.ctypes.data)
    np.testing.assert_array_equal(part[-nbytes:], part_of_last[-nbytes:])
