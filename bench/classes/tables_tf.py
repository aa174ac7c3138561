"""The losses of bench/classes/tables.py in TensorFlow. The gradient of a lookup is sparse."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bench.peers.tf_ops import binary_cross_entropy

__all__ = ["LOSSES"]


def word2vec(p: Any, feeds: Any) -> Any:
    centre = tf.nn.embedding_lookup(p["centres"], feeds["centre"])
    score = tf.linalg.matvec(tf.nn.embedding_lookup(p["contexts"], feeds["context"]), centre)
    return -tf.reduce_sum(tf.math.log_sigmoid(score * feeds["sign"]))


def factorisation(p: Any, feeds: Any) -> Any:
    weights = tf.nn.embedding_lookup(p["weights"], feeds["features"])
    vectors = tf.nn.embedding_lookup(p["vectors"], feeds["features"])
    pairs = 0.5 * tf.reduce_sum(tf.square(tf.reduce_sum(vectors, 1)) - tf.reduce_sum(tf.square(vectors), 1), 1)
    return binary_cross_entropy(tf.reduce_sum(weights, (1, 2)) + pairs + p["bias"], feeds["y"])


LOSSES = {"word2vec": word2vec, "factorisation": factorisation}
