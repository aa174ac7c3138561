"""The losses of bench/classes/systems.py in TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bench.peers.tf_ops import product

__all__ = ["LOSSES"]


def gaussian_process(p: Any, feeds: Any) -> Any:
    x = feeds["x"] * tf.exp(p["scales"])
    squares = tf.reduce_sum(tf.square(x), 1)
    apart = tf.nn.relu(squares[:, None] + squares - 2.0 * tf.matmul(x, x, transpose_b=True))
    k = tf.exp(p["height"] - 0.5 * apart) + tf.exp(p["noise"]) * feeds["eye"]
    factor = tf.linalg.cholesky(k)
    white = tf.linalg.triangular_solve(factor, feeds["y"][:, None])
    logs = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))
    return (0.5 * tf.reduce_sum(tf.square(white)) + logs) / x.shape[0]


def least_squares(p: Any, feeds: Any) -> Any:
    def features(x: Any) -> Any:
        return tf.tanh(product(tf.tanh(product(x, p["w1"]) + p["b1"]), p["w2"]) + p["b2"])

    seen = features(feeds["x"])
    matrix = tf.matmul(seen, seen, transpose_a=True) + tf.exp(p["ridge"]) * feeds["eye"]
    weights = tf.linalg.solve(matrix, tf.matmul(seen, feeds["y"], transpose_a=True))
    return tf.reduce_mean(tf.square(features(feeds["asked"]) @ weights - feeds["answer"]))


LOSSES = {"gaussian_process": gaussian_process, "least_squares": least_squares}
