"""The losses of bench/classes/tables.py in JAX, of the rows that a step reads from its tables."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bench.peers.jax_ops import binary_cross_entropy

__all__ = ["LOSSES"]


def word2vec(p: Any, feeds: Any) -> Any:
    score = jnp.einsum("bkw,bw->bk", p["contexts"], p["centres"])
    return -jax.nn.log_sigmoid(score * feeds["sign"]).sum()


def factorisation(p: Any, feeds: Any) -> Any:
    vectors = p["vectors"]
    pairs = 0.5 * (jnp.square(vectors.sum(1)) - jnp.square(vectors).sum(1)).sum(1)
    return binary_cross_entropy(p["weights"].sum((1, 2)) + pairs + p["bias"], feeds["y"])


LOSSES = {"word2vec": word2vec, "factorisation": factorisation}
