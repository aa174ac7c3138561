"""Counts of n-grams of numbers."""

from __future__ import annotations

import numpy as np

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor


@converter("TfIdfVectorizer")
def tf_idf(node: Node) -> Tensor:
    """How often each n-gram of the pool occurs in each row, with up to max_skip_count elements left out in between."""
    if node.has("pool_strings"):
        raise node.refuse("n-grams of strings have no counterpart in a program")
    x, mode = node[0], node.attr("mode")
    if x.rank not in (1, 2) or x.shape[-1] == -1:
        raise node.refuse(f"it needs rows of a known length, not {x.type}")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise node.refuse(f"mode must be TF, IDF or TFIDF, not {mode!r}")
    rows = node.emit("unsqueeze", x, axes=[0]) if x.rank == 1 else x
    columns = np.asarray(node.attr("ngram_indexes"))
    if columns.size == 0 or columns.min() < 0:
        raise node.refuse("ngram_indexes must be numbers of columns")
    width = int(columns.max()) + 1
    total = node.emit("fill_constant_batch_size_like", rows, shape=[rows.shape[0], width], dtype="float32", value=0.0)
    for grams, places in _pool(node, columns):
        found = _counts(node, rows, grams)
        if found is not None:
            to_column = node.const(np.eye(width)[places], "float32")
            total = node.emit("add", total, node.emit("matmul", found, to_column))
    result = _weighted(node, total, mode, columns)
    return node.emit("squeeze", result, axes=[0]) if x.rank == 1 else result


def _pool(node: Node, columns: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each size in use: the n-grams [grams, n] and their columns."""
    pool, starts = np.asarray(node.attr("pool_int64s")), [int(n) for n in node.attr("ngram_counts")]
    least, most = int(node.attr("min_gram_length")), int(node.attr("max_gram_length"))
    found, first = [], 0
    for n, (start, end) in enumerate(zip(starts, [*starts[1:], pool.size], strict=True), 1):
        if not 0 <= start <= end <= pool.size or (end - start) % n:
            raise node.refuse(f"ngram_counts {starts} do not divide a pool of {pool.size} numbers")
        grams = pool[start:end].reshape(-1, n)
        places = columns[first : first + len(grams)]
        first += len(grams)
        if len(places) < len(grams) or len(np.unique(grams, axis=0)) < len(grams):
            raise node.refuse("an n-gram has no column, or occurs twice")
        if least <= n <= most and len(grams):
            found.append((grams, places))
    return found


def _counts(node: Node, rows: Tensor, grams: np.ndarray) -> Tensor | None:
    """How often each n-gram occurs in each row: [rows, grams]. None if no row is long enough."""
    n, length = grams.shape[1], rows.shape[1]
    total: Tensor | None = None
    for step in range(1, 2 if n == 1 else int(node.attr("max_skip_count")) + 2):
        count = length - (n - 1) * step
        if count < 1:
            break
        met: Tensor | None = None
        for j in range(n):
            part = node.emit("slice", rows, axes=[1], starts=[j * step], ends=[j * step + count])
            same = node.emit("equal", node.emit("unsqueeze", part, axes=[2]), node.const(grams[:, j], rows.dtype))
            met = same if met is None else node.emit("logical_and", met, same)
        assert met is not None
        found = node.emit("reduce_sum", node.cast(met, "float32"), axes=[1])
        total = found if total is None else node.emit("add", total, found)
    return total


def _weighted(node: Node, counts: Tensor, mode: str, columns: np.ndarray) -> Tensor:
    if mode == "TF":
        return counts
    if mode == "IDF":
        counts = node.cast(node.emit("greater_than", counts, node.const(0, "float32")), "float32")
    weights = np.asarray(node.attr("weights", []), "float32")
    if not weights.size:
        return counts
    if weights.size != columns.size or len(np.unique(columns)) < columns.size:
        raise node.refuse(f"{weights.size} weights do not fit {columns.size} n-grams with a column each")
    by_column = np.zeros(int(columns.max()) + 1)
    by_column[columns] = weights
    result: Tensor = node.emit("mul", counts, node.const(by_column, "float32"))
    return result
