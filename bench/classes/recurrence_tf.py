"""The losses of bench/classes/recurrence.py in TensorFlow: loops, after the products of the inputs of all steps."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bench.peers.tf_ops import cross_entropy, product

__all__ = ["LOSSES"]


def lstm_lengths(p: Any, feeds: Any) -> Any:
    x, lengths = feeds["x"], feeds["lengths"]
    w = tf.transpose(p["wh"])

    def step(before: Any, seen: Any) -> Any:
        h, c = before
        x, i = seen
        gate, forget, new, out = tf.split(x + h @ w, 4, 1)
        here = (lengths > i)[:, None]
        later = tf.sigmoid(forget) * c + tf.sigmoid(gate) * tf.tanh(new)
        return tf.where(here, tf.sigmoid(out) * tf.tanh(later), h), tf.where(here, later, c)

    start = tf.zeros((x.shape[1], w.shape[0]))
    seen = product(x, tf.transpose(p["wx"])) + (p["bx"] + p["bh"])
    h, _ = tf.foldl(step, (seen, tf.range(x.shape[0], dtype=lengths.dtype)), (start, start))
    return cross_entropy(h @ p["w"] + p["b"], feeds["y"])


def seq2seq(p: Any, feeds: Any) -> Any:
    inputs, hidden = p["words"].shape[1], p["encoder.wh"].shape[1]
    of_read, of_written, of_encoder, of_decoder = (
        tf.transpose(p[name]) for name in ("encoder.wx", "decoder.wx", "encoder.wh", "decoder.wh")
    )
    start = tf.zeros((feeds["source"].shape[1], hidden))

    def encode(h: Any, x: Any) -> Any:
        return gru(x, h @ of_encoder + p["encoder.bh"], h)

    read = product(tf.nn.embedding_lookup(p["words"], feeds["source"]), of_read) + p["encoder.bx"]
    states = tf.scan(encode, read, start)
    last, by_batch = states[-1], tf.transpose(states, (1, 0, 2))
    of_context = of_written[inputs:]

    def decode(before: Any, x: Any) -> Any:
        h, context = before
        h = gru(x + context @ of_context, h @ of_decoder + p["decoder.bh"], h)
        attention = tf.nn.softmax(tf.linalg.matvec(by_batch, h))
        return h, tf.linalg.matvec(by_batch, attention, transpose_a=True)

    written = product(tf.nn.embedding_lookup(p["words"], feeds["target"]), of_written[:inputs]) + p["decoder.bx"]
    seen = tf.concat(tf.scan(decode, written, (last, start)), -1)
    return cross_entropy(product(seen, p["out"]), feeds["following"])


def gru(x: Any, state: Any, h: Any) -> Any:
    """The new state from the products of all gates with the input and with the state."""
    (xr, xz, xn), (hr, hz, hn) = tf.split(x, 3, 1), tf.split(state, 3, 1)
    z = tf.sigmoid(xz + hz)
    new = tf.tanh(xn + tf.sigmoid(xr + hr) * hn)
    return new + z * (h - new)


LOSSES = {"lstm_lengths": lstm_lengths, "seq2seq": seq2seq}
