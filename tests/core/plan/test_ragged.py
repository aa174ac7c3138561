"""Positions in sequences of different lengths and in lattices: machine code agrees with the kernels of the ops."""

from __future__ import annotations

import numpy as np
import pytest

from core.ir import TensorType
from core.ops.common.types import as_dtype
from tests.core.plan.agreement import agree, with_ops


def lengths_of(rng: np.random.Generator, count: int, rows: int) -> np.ndarray:
    """Lengths that add up to `rows`, some of them 0."""
    cuts = np.sort(rng.integers(0, rows + 1, count - 1))
    return np.diff(np.concatenate([[0], cuts, [rows]]))


def vector(n: int) -> TensorType:
    return TensorType((n,), "int64")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("count", "rows"), [(1, 1), (1, 5), (4, 1), (5, 17), (33, 70)])
def test_rows_of_sequences_are_found_for_all_lengths(count, rows):
    rng = np.random.default_rng(count)
    params = {"n": vector(count), "m": vector(count), "x": TensorType((rows, 2), "float32"), "y": vector(rows + 3)}
    block = with_ops(
        params,
        ("sequence_ids", "nx", {}),
        *(("sequence_rows", "nx", {"order": order}) for order in ("first", "last", "reverse")),
        ("sequence_slots", "nx", {}),
        ("context_rows", "nx", {"length": 3, "start": -1}),
        ("context_rows", "nx", {"length": 2, "start": -4}),
        ("interleaved_rows", "nmxy", {}),
        ("sequence_reset_lengths", "xn", {}),
        ("rank_table", "n", {}),
    )
    x, y = rng.normal(size=(rows, 2)).astype("float32"), np.arange(rows + 3)
    right = [[lengths_of(rng, count, rows), lengths_of(rng, count, rows + 3), x, y] for _ in range(4)]
    wrong = [
        [n + np.eye(1, count, dtype=n.dtype)[0] * by, *rest]
        for (n, *rest), by in zip(right, (1, -1, 2**62, -(2**62)), strict=True)
    ]

    agree(block, *right, *wrong)


@pytest.mark.parametrize("width", [4, 9])
def test_a_sequence_longer_than_the_width_is_refused(width):
    block = with_ops({"n": vector(3), "x": vector(9)}, ("sequence_slots", "nx", {"width": width}))

    agree(block, *([np.array(n), np.zeros(9, int)] for n in ([4, 4, 1], [3, 3, 3], [0, 9, 0], [5, 0, 4])))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("time", "batch", "longest", "dtype"), [(1, 1, 1, "int64"), (7, 3, 2, "int32"), (5, 4, 20, "int64")]
)
def test_the_lattice_of_ctc_is_found_for_all_labels(time, batch, longest, dtype):
    rng = np.random.default_rng(longest)
    params = {
        "l": TensorType((batch, longest), dtype),
        "t": vector(batch), "n": vector(batch),
        "x": TensorType((time, batch, 5), "float32"),
    }  # fmt: skip
    block = with_ops(params, ("ctc_lattice", "ltnx", {"blank": 2}))
    x, batches = np.zeros((time, batch, 5), "float32"), []
    for k in range(6):
        labels = rng.choice([0, 1, 3, 4], (batch, longest)).astype(dtype)
        times, counts = rng.integers(0, time + 1, batch), rng.integers(0, longest + 1, batch)
        labels[np.arange(longest)[None] >= counts[:, None]] = -7  # not read
        if k == 3:
            times[0] = time + 1
        if k > 3:
            counts[0], labels[0] = longest, 2 if k == 4 else 5
        batches.append([labels, times, counts, x])

    agree(block, *batches)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("batch", "time", "labels", "lengths"), [(1, 1, 1, False), (3, 6, 4, True), (5, 17, 20, True)])
def test_the_moves_of_a_crf_are_found_for_all_labels(batch, time, labels, lengths):
    rng = np.random.default_rng(time)
    params = {"l": TensorType((batch, time), "int32"), "e": TensorType((batch, time, labels), "float64")}
    if lengths:
        params["n"] = vector(batch)
    block = with_ops(params, ("crf_moves", "len", {}))
    batches = []
    for k in range(5):
        path, counts = rng.integers(0, labels, (batch, time)).astype("int32"), rng.integers(0, time + 1, batch)
        if lengths:
            path[np.arange(time)[None] >= counts[:, None]] = -9  # not read
        if k == 3:
            path[0, 0], counts[0] = labels, 1
        if k == 4:
            counts[-1] = -1
        batches.append([path, np.zeros((batch, time, labels)), counts][: 2 + lengths])

    agree(block, *batches)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("classes", [2, 3, 5, 1000, 2**40])
def test_paths_in_a_tree_of_classes_are_found_for_all_labels(classes):
    rng = np.random.default_rng(1)
    block = with_ops({"l": TensorType((37, 1), "int64")}, ("tree_path", "l", {"num_classes": classes}))
    labels = [rng.integers(0, classes, (37, 1)) for _ in range(2)]

    agree(block, *([each] for each in labels), [labels[0] * 0 + classes], [labels[0] - classes])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("labels", [1, 5, 16, 21])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_best_labels_are_found_for_all_scores(labels, dtype):
    rng = np.random.default_rng(labels)
    batch, time, kind = 4, 6, as_dtype(dtype)
    params = {
        "e": TensorType((batch, time, labels), dtype),
        "t": TensorType((labels + 2, labels), dtype),
        "n": vector(batch),
    }  # fmt: skip
    block = with_ops(params, ("crf_decoding", "etn", {}))
    batches = []
    for k in range(5):
        emission = rng.integers(-3, 4, (batch, time, labels)).astype(kind)  # many paths are equally good
        transition = rng.integers(-2, 3, (labels + 2, labels)).astype(kind)
        if k == 1:
            emission[rng.random(emission.shape) < 0.1] = np.nan
        if k == 2:
            transition[rng.random(transition.shape) < 0.5] = -np.inf
        batches.append([emission, transition, np.array([time, 0, 1, 3]) + (k == 4)])

    agree(block, *batches)
