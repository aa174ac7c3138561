"""The losses of bench/classes/lattices.py in TensorFlow."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from bench.peers.tf_ops import product

__all__ = ["COMPILED", "LOSSES"]


def ctc(p: Any, feeds: Any) -> Any:
    """The kernel that takes sparse labels; XLA has none."""
    label, letters = tf.cast(feeds["label"], tf.int32), feeds["letters"]
    at = tf.where(tf.sequence_mask(letters, label.shape[1]))
    sparse = tf.SparseTensor(at, tf.gather_nd(label, at), label.shape)
    logits = tf.transpose(_logits(p, feeds), (1, 0, 2))
    losses = tf.nn.ctc_loss(sparse, logits, None, tf.cast(feeds["times"], tf.int32), blank_index=0)
    return tf.reduce_mean(losses / tf.cast(letters, tf.float32))


def ctc_dense(p: Any, feeds: Any) -> Any:
    """The form of `tf.nn.ctc_loss` for dense labels, made of loops: XLA compiles it."""
    label, letters, times = (tf.cast(feeds[name], tf.int32) for name in ("label", "letters", "times"))
    logits = _logits(p, feeds)
    losses = tf.nn.ctc_loss(label, logits, letters, times, logits_time_major=False, blank_index=0)
    return tf.reduce_mean(losses / tf.cast(letters, tf.float32))


def _logits(p: Any, feeds: Any) -> Any:
    """[batch, steps, classes]."""
    h = tf.transpose(feeds["x"], (0, 2, 1))
    for filter, bias in (("k1", "b1"), ("k2", "b2")):
        h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv1d(h, tf.transpose(p[filter], (2, 1, 0)), 1, "SAME"), p[bias]))
    return product(h, p["w"]) + p["b"]


def crf(p: Any, feeds: Any, unrolled: bool = True) -> Any:
    """Forward algorithm over all sentences at once; a sentence that has ended keeps its sums.

    unrolled: a step of `tf.foldl` takes 1.6 times as long, but XLA compiles a loop in less time.
    """
    label, lengths = feeds["label"], feeds["lengths"]
    emission = product(tf.tanh(product(feeds["x"], p["w1"]) + p["b1"]), p["w2"]) + p["b2"]
    first, last, move = p["transition"][0], p["transition"][1], p["transition"][2:]
    within = tf.sequence_mask(lengths, label.shape[1])

    def step(sums: Any, seen: Any) -> Any:
        here, live = seen
        new = tf.reduce_logsumexp(sums[:, :, None] + move, 1) + here
        return tf.where(live[:, None], new, sums)

    by_time = tf.transpose(emission[:, 1:], (1, 0, 2)), tf.transpose(within[:, 1:])
    sums = first + emission[:, 0]
    if unrolled:
        for seen in zip(*map(tf.unstack, by_time), strict=True):
            sums = step(sums, seen)
    else:
        sums = tf.foldl(step, by_time, sums)
    all_paths = tf.reduce_logsumexp(sums + last, 1)
    seen = tf.gather(emission, label, axis=2, batch_dims=2)
    seen = tf.reduce_sum(tf.where(within, seen, 0.0), 1)
    moved = tf.gather_nd(move, tf.stack([label[:, :-1], label[:, 1:]], -1))
    moved = tf.reduce_sum(tf.where(within[:, 1:], moved, 0.0), 1)
    ends = tf.gather(first, label[:, 0]) + tf.gather(last, tf.gather(label, lengths - 1, axis=1, batch_dims=1))
    return tf.reduce_mean(all_paths - seen - moved - ends)


LOSSES = {"ctc": ctc, "crf": crf}
COMPILED = {"ctc": ctc_dense, "crf": partial(crf, unrolled=False)}
"""Family of workloads -> its loss for XLA, where that is another one."""
