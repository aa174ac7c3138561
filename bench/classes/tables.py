"""Models over large tables of which a step reads few rows."""

from __future__ import annotations

import numpy as np

import backpass_client as bp
from bench.classes.made import Symbols, made, normal, zeros
from bench.workload import Workload

__all__ = ["WORKLOADS", "factorisation", "word2vec"]

ROWS = 100_000


def word2vec(batch: int = 512, negatives: int = 5, width: int = 100) -> Workload:
    """Skip-gram with negative sampling (Mikolov et al. 2013): words near the centre, and drawn ones, which are fed."""
    rng = np.random.default_rng(50)
    feeds = {"centre": _drawn(rng, batch), "context": _drawn(rng, batch, 1 + negatives)}
    feeds["sign"] = np.array([1.0] + negatives * [-1.0], "float32")
    parameters = {"centres": normal(rng, ROWS, width, scale=0.3), "contexts": normal(rng, ROWS, width, scale=0.3)}

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        centre = bp.embedding(p["centres"], given["centre"], is_sparse=True)
        context = bp.embedding(p["contexts"], given["context"], is_sparse=True)
        score = bp.squeeze(bp.matmul(context, bp.unsqueeze(centre, axes=[2])), axes=[2])
        return -bp.logsigmoid(score * given["sign"]).sum()

    return made("word2vec", loss, feeds, parameters, lookups={"centres": "centre", "contexts": "context"})


def factorisation(batch: int = 512, fields: int = 20, width: int = 16) -> Workload:
    """A factorisation machine (Rendle 2010): a weight and a vector for each feature, and products of all pairs."""
    rng = np.random.default_rng(51)
    feeds = {"features": _drawn(rng, batch, fields), "y": rng.integers(0, 2, batch).astype("float32")}
    parameters = {
        "weights": normal(rng, ROWS, 1, scale=0.1),
        "vectors": normal(rng, ROWS, width, scale=0.1),
        "bias": zeros(),
    }

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        weights = bp.embedding(p["weights"], given["features"], is_sparse=True)
        vectors = bp.embedding(p["vectors"], given["features"], is_sparse=True)
        pairs = 0.5 * (bp.square(vectors.sum(1)) - bp.square(vectors).sum(1)).sum(1)
        logits = weights.sum([1, 2]) + pairs + p["bias"]
        return bp.mean(bp.sigmoid_cross_entropy_with_logits(logits, given["y"]))

    return made("factorisation", loss, feeds, parameters, lookups={"weights": "features", "vectors": "features"})


def _drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Row numbers, small ones more often: the square root of a number is uniform."""
    return (ROWS * rng.random(shape) ** 2).astype("int64")


WORKLOADS = {"word2vec": word2vec, "factorisation": factorisation}
