"""Gathers, scatters and segments equal numpy's, in chunks and in one piece, and their bits do not depend on threads."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from core.codegen import backend, parallel
from core.codegen.gather_scatter import gather_function
from core.codegen.machine import load
from core.codegen.module import Module
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.ir.precision import HALVES
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.instructions import Gather, ScatterAdd
from core.plan.memory import Root, View, contiguous
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.core.codegen.stepwise import block_of, compiled

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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [*WIDTHS, 127, 300])
@pytest.mark.parametrize("size", [9, 64, 200, 1000])
def test_16_bit_rows_are_added_in_float32_and_their_sums_are_rounded_once(size, width, dtype):
    x, _ = rows(300, width, as_dtype(dtype))
    ids = np.random.default_rng(1).integers(-size, size // 2, 300)
    ids[ids == 3] = 4
    wanted = np.zeros((size, width), "float32")
    np.add.at(wanted, ids, x.astype("float32"))
    wanted = wanted.astype(x.dtype)

    found = compiled("scatter_add_like", x, ids, wanted)
    assert found.tobytes() == wanted.tobytes()
    assert compiled("segment_sum", x, ids % size, num_segments=size).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", HALVES)
def test_16_bit_slices_are_added_up_on_a_middle_axis(dtype):
    x = np.random.default_rng(0).standard_normal((4, 90, 17)).astype(as_dtype(dtype))
    index = np.random.default_rng(1).integers(-70, 70, (2, 60))
    given = np.random.default_rng(2).standard_normal((4, 2, 60, 17)).astype(x.dtype)
    wanted = np.zeros(x.shape, "float32")
    np.add.at(np.moveaxis(wanted, 1, 0), index.ravel(), np.moveaxis(given.reshape(4, 120, 17), 1, 0).astype("float32"))

    found = compiled("scatter_add_like", given, index, x, axis=1)

    assert found.tobytes() == wanted.astype(x.dtype).tobytes()


@pytest.mark.parametrize("width", [3, 16])
@pytest.mark.parametrize("dtype", HALVES)
def test_16_bit_sums_keep_infinities_and_nan_and_lose_the_sign_of_zero(dtype, width):
    x = np.zeros((5, width), as_dtype(dtype))
    x[0], x[3], x[4] = -0.0, 60000, 60000
    x[1:3, :3] = (np.inf, np.inf, 1), (-np.inf, 1, np.nan)
    ids = np.array([70, 5, 5, 99, 99])

    found = compiled("scatter_add_like", x, ids, np.zeros((100, width), x.dtype)).astype("float32")

    most = np.inf if dtype == "float16" else float(np.float32(2 * np.float32(x[3, 0])).astype(x.dtype))
    np.testing.assert_array_equal(found[5, :3], [np.nan, np.inf, np.nan])
    np.testing.assert_array_equal(found[99], [most] * width)
    assert not np.signbit(found[70]).any()


@pytest.mark.parametrize("bad", [-101, 100, 2**40])
def test_an_index_outside_a_16_bit_result_is_an_error(bad):
    x, _ = rows(40, 70, "float16")
    ids = np.arange(40)
    ids[17] = bad
    with pytest.raises(ExecutionError, match="out of range for an axis of size 100"):
        compiled("scatter_add_like", x, ids, np.zeros((100, 70), "float16"))


@pytest.mark.parametrize("bad", [None, "source", "target"])
@pytest.mark.parametrize("dtype", HALVES)
def test_gathered_16_bit_rows_are_added_where_they_are(dtype, bad):
    x, _ = rows(80, 33, as_dtype(dtype))
    source, target = np.random.default_rng(1).integers(-80, 80, (2, 500))
    b = BlockBuilder()
    given = [b.param(TensorType(v.shape, v.dtype.name)) for v in (x, source, target)]
    gathered = b.emit("gather", given[0], given[1], axis=0)
    block = optimize(b.build([b.emit("scatter_add_like", gathered, given[2], given[0], axis=0)]))
    wanted = np.zeros(x.shape, "float32")
    np.add.at(wanted, target, x[source].astype("float32"))

    scatters = plan_block(block, backend.CPU.target).body.instructions
    assert [type(each) for each in scatters] == [ScatterAdd]
    if bad is not None:
        (source if bad == "source" else target)[7] = 80
        with pytest.raises(ExecutionError, match="out of range"):
            native_interpreter(block, backend.CPU)(Run(), x, source, target)
        return
    (found,) = native_interpreter(block, backend.CPU)(Run(), x, source, target)
    assert found.tobytes() == wanted.astype(x.dtype).tobytes()


def test_no_float32_array_is_as_large_as_a_16_bit_table():
    ids, table = np.arange(40), np.zeros((1000, 70), "float16")
    block = block_of("scatter_add_like", np.zeros((40, 70), "float16"), ids, table)

    roots = {root for each in plan_block(block, backend.CPU.target).body.instructions for root in each.writes()}

    assert max(root.nbytes for root in roots) == table.nbytes


def test_merged_rows_without_columns_are_added():
    b = BlockBuilder()
    given = [np.zeros((3, 0)), np.array([1, 1, 3]), np.zeros((4, 0))]
    x, ids, like = (b.param(TensorType(each.shape, str(each.dtype))) for each in given)
    rows, values = b.emit("merge_rows", x, ids, like)
    block = b.build([b.emit("scatter_add_like", values, rows, like)])

    assert native_interpreter(block, backend.CPU)(Run(), *given)[0].shape == (4, 0)


@pytest.mark.sampled(2, each="index")
@pytest.mark.parametrize("count", [1, 7, 8, 9, 40])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_rows_of_one_element_in_blocks_equal_numpys(count, index):
    r = np.random.default_rng(count)
    ids = r.integers(-5, 5, count).astype(index)
    for dtype in ("float32", "float64", "bfloat16", "int8"):
        table, x = (8 * r.standard_normal((2, max(count, 5)))).astype(as_dtype(dtype))
        np.testing.assert_array_equal(compiled("gather", table[:5], ids), table[:5][ids])
        wanted = np.zeros(5, x.dtype)
        if dtype != "bfloat16":
            np.add.at(wanted, ids, x[:count])
            np.testing.assert_array_equal(compiled("scatter_add_like", x[:count], ids, table[:5]), wanted)
    for wrong in (5, -6):
        for place in {0, count // 2, count - 1}:
            with pytest.raises(ExecutionError, match="index"):
                compiled("gather", table[:5], np.where(np.arange(count) == place, wrong, ids).astype(index))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("slabs", [2, 4, 5, 9])
@pytest.mark.parametrize("count", [1, 8, 19])
def test_elements_of_several_slabs_equal_numpys(slabs, count):
    r = np.random.default_rng(count)
    ids = r.integers(-5, 5, count)
    for dtype in ("float32", "float64", "bfloat16", "int8"):
        x, more = ((8 * r.standard_normal((slabs, n))).astype(as_dtype(dtype)) for n in (5, count))
        np.testing.assert_array_equal(compiled("gather", x, ids, axis=1), x[:, ids])
        wanted = np.zeros((slabs, 5), x.dtype)
        if dtype != "bfloat16":
            for k, at in enumerate(ids):
                wanted[:, at] += more[:, k]
            np.testing.assert_array_equal(compiled("scatter_add_like", more, ids, x, axis=1), wanted)
    for place in {0, count // 2, count - 1}:
        wrong = np.where(np.arange(count) == place, 5, ids)
        with pytest.raises(ExecutionError, match="index"):
            compiled("gather", x, wrong, axis=1)
        with pytest.raises(ExecutionError, match="index"):
            compiled("scatter_add_like", more, wrong, x, axis=1)


@pytest.mark.parametrize("width", [1, 3])
def test_a_range_of_gathered_rows_writes_only_these(width):
    sizes = {"x": (4, 5, width), "index": (19,), "out": (4, 19, width)}
    views = {
        name: View(Root(0), "int64" if name == "index" else "float32", shape, contiguous(shape))
        for name, shape in sizes.items()
    }
    f = gather_function("rows", Gather(**views, check=1))
    module = Module()
    module.functions.append(f)
    library = load(module.text())
    run = library.function("rows", *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 3)
    r = np.random.default_rng(0)
    x, index = r.standard_normal((4, 5, width)).astype("float32"), r.integers(-5, 5, 19)

    for first, end in ((0, 76), (3, 17), (17, 41), (19, 38), (70, 76), (30, 30)):
        out, error = np.full((76, width), 7, "float32"), np.zeros(8, "int64")
        run(x.ctypes.data, index.ctypes.data, out.ctypes.data, error.ctypes.data, 1, first, end)
        wanted = np.full_like(out, 7)
        wanted[first:end] = x[:, index].reshape(76, width)[first:end]
        np.testing.assert_array_equal(out, wanted)
