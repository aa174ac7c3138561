"""Functions that several losses in TensorFlow use."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["binary_cross_entropy", "cross_entropy", "layer_norm", "product"]


def binary_cross_entropy(logits: Any, y: Any) -> Any:
    """The mean over all elements."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, logits))


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The mean over all rows; classes are the last axis."""
    logits = tf.cast(logits, tf.float32)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    """Over the last axis."""
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, bias, scale, 1e-5)


def product(x: Any, w: Any) -> Any:
    """[..., m] times [m, n] as one matrix product."""
    return tf.reshape(tf.reshape(x, (-1, x.shape[-1])) @ w, (*x.shape[:-1], w.shape[-1]))
