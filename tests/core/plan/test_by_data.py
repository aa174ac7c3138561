"""Choices, slices and places that data determine: machine code agrees with the kernels of the ops, errors included."""

from __future__ import annotations

import numpy as np
import pytest

from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from tests.core.plan.agreement import agree, with_ops


def test_one_of_several_arrays_is_chosen_and_placed():
    rng = np.random.default_rng(0)
    types = {"i": TensorType((1,), "int32"), **{n: TensorType((3, 5), "float32") for n in "xyz"}}
    block = with_ops(types, ("select_input", "ixyz", {}), ("select_output", "ixyz", {}))
    arrays = [rng.normal(size=(3, 5)).astype("float32") for _ in range(3)]

    agree(block, *([np.array([i], "int32"), *arrays] for i in (0, 1, 2, -1, 3)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("yes", "no"), [(1, 1), (3, 8), (20, 13)])
def test_rows_are_merged_by_any_mask(yes, no):
    rng = np.random.default_rng(yes)
    types = {
        "m": TensorType((yes + no,), "bool"),
        "x": TensorType((yes, 3), "float64"),
        "y": TensorType((no, 3), "float64"),
    }
    block = with_ops(types, ("merge_by_mask", "mxy", {}))
    masks = [rng.permutation(np.arange(yes + no) < n) for n in (yes, yes, yes - 1, yes + 1)]

    agree(block, *([mask, rng.normal(size=(yes, 3)), rng.normal(size=(no, 3))] for mask in masks))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_slices_at_positions_that_are_data_and_their_inverses(dtype):
    rng = np.random.default_rng(3)
    types = {"x": TensorType((7, 3, 20), dtype), **{n: TensorType((2,), "int64") for n in "bes"}}
    types["v"] = TensorType((2, 3, 6), dtype)
    block = with_ops(
        types,
        ("dynamic_slice", "xbes", {"axes": (0, -1), "shape": (2, 3, 6)}),
        ("dynamic_slice_into", "vxbes", {"axes": (0, 2)}),
    )
    x, v = (rng.integers(-9, 9, types[n].shape).astype(as_dtype(dtype)) for n in "xv")
    far = 2**62
    places = [
        ([1, 3], [3, 9], [1, 1]), ([-2, 19], [far, 1], [1, -3]),
        ([6, -far], [-4, 12], [-2, 2]), ([0, 0], [7, far], [6, 4]),
        ([1, 3], [3, 9], [0, 1]), ([1, 3], [4, 9], [1, 1]), ([3, 3], [3, 9], [1, 1]), ([far, far], [0, 0], [-6, -4]),
    ]  # fmt: skip

    agree(block, *([x, *(np.array(p) for p in place), v] for place in places))


@pytest.mark.parametrize(("dtype", "other"), [("float32", "float16"), ("bfloat16", "float32")])
def test_a_placed_slice_keeps_its_dtype_beside_an_array_of_another_one(dtype, other):
    types = {"v": TensorType((2,), dtype), "x": TensorType((5,), other)}
    types |= {n: TensorType((1,), "int64") for n in "bes"}
    block = with_ops(types, ("dynamic_slice_into", "vxbes", {"axes": (0,)}))

    agree(block, [np.ones(2, as_dtype(dtype)), np.ones(5, as_dtype(other)), *(np.array([n]) for n in (1, 3, 1))])


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("count", [3, 5, 8, 9])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_gradient_of_the_first_rows_of_a_table_is_zero_in_the_others(count, dtype):
    """The slice has an open size of at most 9, and its cotangent the size of a feed: the memory has no rows beyond."""
    b = BlockBuilder()
    x, table, zero, end, step = (
        b.param(TensorType(shape, of), name)
        for shape, of, name in (
            ((2, count, 3), dtype, "x"),
            ((9, 3), dtype, "table"),
            *(((1,), "int64", n) for n in "bes"),
        )
    )
    rows = b.emit("dynamic_slice", table, zero, end, step, axes=(0,), shape=(-1, 3))
    ct = b.emit("sum_to_like", x, rows)
    block = b.build([b.emit("dynamic_slice_into", ct, table, zero, end, step, axes=(0,))])
    arrays = [np.random.default_rng(count).normal(size=v.type.shape).astype(as_dtype(dtype)) for v in (x, table)]

    agree(block, [*arrays, *(np.array([n]) for n in (0, count, 1))])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [1, 2, 16, 33])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_places_in_a_sorted_vector(size, dtype):
    rng = np.random.default_rng(size)
    types = {"s": TensorType((size,), dtype), "v": TensorType((4, 9), dtype)}
    block = with_ops(types, *(("searchsorted", "sv", {"right": right}) for right in (False, True)))
    table, values = rng.integers(0, 12, size).astype(dtype), rng.integers(-1, 13, (4, 9)).astype(dtype)
    batches = [[np.sort(table), values]]
    if dtype != "int32":
        odd = np.array([np.nan, np.inf, -np.inf], dtype)
        batches.append([np.sort(np.concatenate([table, odd])[-size:]), np.resize(odd, (4, 9))])

    agree(block, *batches)


@pytest.mark.parametrize("count", [1, 6])
def test_rows_of_a_sparse_table_are_read(count):
    rng = np.random.default_rng(count)
    types = {
        "v": TensorType((count, 2), "float32"), "r": TensorType((count,), "int64"),
        "i": TensorType((3, 4), "int32"), "t": TensorType((11, 2), "float32"),
    }  # fmt: skip
    block = with_ops(types, ("read_rows", "vrit", {}))
    values, table = rng.normal(size=(count, 2)).astype("float32"), np.zeros((11, 2), "float32")
    batches = []
    for k in range(5):
        rows, ids = np.sort(rng.permutation(11)[:count]), rng.integers(-11, 11, (3, 4)).astype("int32")
        if k == 2:
            ids[1, 1] = 11
        if k == 3:
            rows = rows[::-1].copy()
        if k == 4:
            rows[0] = -12
        batches.append([values, rows, ids, table])

    agree(block, *batches)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("shape", "axis"), [((1,), 0), ((4, 7), 1), ((6, 3, 5), 0), ((3, 150), -1)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_the_most_frequent_element_is_that_of_the_reference_executor(shape, axis, dtype):
    rng = np.random.default_rng(5)
    block = with_ops({"x": TensorType(shape, dtype)}, ("mode_position", "x", {"axis": axis}))
    batches = [[rng.integers(0, most, shape).astype(dtype)] for most in (2, 4, 1000)]
    if dtype == "float32":
        batches.append([np.where(rng.random(shape) < 0.5, np.nan, batches[0][0]).astype(dtype)])

    agree(block, *batches)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_largest_element_of_each_bin_of_each_box_is_that_of_the_reference_executor(dtype):
    rng = np.random.default_rng(6)
    kind = as_dtype(dtype)
    types = {"x": TensorType((2, 3, 9, 11), dtype), "b": TensorType((5, 4), dtype), "i": TensorType((5,), "int64")}
    block = with_ops(types, ("roi_positions", "xbi", {"output_size": (3, 4), "spatial_scale": 0.5}))
    batches = []
    for k in range(5):
        x = rng.integers(-4, 5, (2, 3, 9, 11)).astype(kind)
        if k == 1:
            x[rng.random(x.shape) < 0.1] = np.nan
            x[:, 0] = -np.inf
        boxes, image = rng.uniform(-4, 26, (5, 4)).astype(kind), rng.integers(-2, 2, 5)
        if k == 3:
            boxes[2, 1] = np.inf
        if k == 4:
            image[0] = 2
        batches.append([x, boxes, image])

    agree(block, *batches)


@pytest.mark.parametrize("k", [1, 3])
def test_the_share_of_labels_among_the_highest_scores(k):
    rng = np.random.default_rng(7)
    types = {"x": TensorType((33, 6), "float32"), "l": TensorType((33,), "int64")}
    block = with_ops(types, ("accuracy", "xl", {"k": k}))
    batches = []
    for i in range(4):
        x = rng.integers(0, 5, (33, 6)).astype("float32")
        if i:
            x[rng.random(x.shape) < 0.3] = [np.nan, np.inf, -np.inf][i - 1]
        batches.append([x, rng.integers(-1, 7, 33)])

    agree(block, *batches)


def test_running_maxima_of_integers_begin_with_the_first_one():
    rng = np.random.default_rng(8)
    block = with_ops({"x": TensorType((5, 9), "int64")}, ("running_argmax", "x", {"axis": 1}))

    agree(block, *([rng.integers(-9, 0, (5, 9))] for _ in range(3)))


def test_an_assertion_that_does_not_hold_ends_the_run():
    types = {"x": TensorType((3,), "float32"), "c": TensorType((2, 2), "bool")}
    block = with_ops(types, ("assert", "xc", {}))
    x = np.arange(3, dtype="float32")

    agree(block, [x, np.ones((2, 2), bool)], [x, np.eye(2) > 0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_division_and_shifts_of_integers_for_all_operands(dtype):
    rng = np.random.default_rng(9)
    limits = np.iinfo(dtype)
    types = {n: TensorType((37,), dtype) for n in "xy"}
    divided = with_ops(types, *((name, "xy", {}) for name in ("mod", "fmod", "floor_div")))
    shifted = with_ops(types, *((f"bitwise_{side}_shift", "xy", {}) for side in ("left", "right")))
    x = rng.integers(limits.min, limits.max, 37, dtype, endpoint=True)
    y = rng.integers(max(limits.min, -5), 6, 37).astype(dtype)
    x[:2], y[y == 0] = limits.min, 1
    y[0] = max(limits.min, -1) or 1
    bits = 8 * np.dtype(dtype).itemsize

    agree(divided, [x, y], [y, np.where(x == 0, 1, x).astype(dtype)], [x, np.where(y == 1, 0, y).astype(dtype)])
    agree(shifted, [x, (np.arange(37) % (bits + 3)).astype(dtype)], [x, y])


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("rows", [1, 2, 7, 500])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_areas_under_curves_of_tied_scores_and_of_labels_of_one_kind_equal_the_reference_executor(rows, dtype):
    rng = np.random.default_rng(rows)
    types = {"x": TensorType((rows,), dtype), "y": TensorType((rows, 2), dtype), "k": TensorType((rows, 1), "int32")}
    block = with_ops(types, ("auc", "xk", {}), ("auc", "yk", {}))
    labels = [rng.integers(0, 2, (rows, 1)) * 3, np.zeros((rows, 1)), np.ones((rows, 1))]
    scores = rng.integers(0, 9, (2, rows)).astype(dtype)
    odd = np.where(rng.random((2, rows)) < 0.5, rng.choice([np.nan, np.inf, -np.inf], (2, rows)), scores).astype(dtype)

    agree(block, *([x, np.stack([x, y], 1), k.astype("int32")] for x, y in (scores, odd) for k in labels))
