"""The losses of bench/classes/recurrence.py in TensorFlow, after the products of the inputs of all steps.

Without XLA the loops are unrolled: a step of `tf.scan` takes 1.2 to 1.5 times as long. XLA takes minutes to compile the
unrolled losses on a busy machine.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bench.peers.tf_ops import cross_entropy, product

__all__ = ["COMPILED", "LOSSES"]


def lstm_lengths(p: Any, feeds: Any) -> Any:
    """The state at the last step of a sequence does not depend on the padding."""
    x, lengths = feeds["x"], feeds["lengths"]
    w = tf.transpose(p["wh"])
    h = c = tf.zeros((x.shape[1], w.shape[0]))
    states = []
    for each in tf.unstack(product(x, tf.transpose(p["wx"])) + (p["bx"] + p["bh"])):
        gate, forget, new, out = tf.split(each + h @ w, 4, 1)
        c = tf.sigmoid(forget) * c + tf.sigmoid(gate) * tf.tanh(new)
        h = tf.sigmoid(out) * tf.tanh(c)
        states.append(h)
    at = tf.stack([lengths - 1, tf.range(x.shape[1], dtype=lengths.dtype)], 1)
    return cross_entropy(tf.gather_nd(tf.stack(states), at) @ p["w"] + p["b"], feeds["y"])


def lstm_loop(p: Any, feeds: Any) -> Any:
    """As a loop, for XLA."""
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
    h = context = tf.zeros((feeds["source"].shape[1], hidden))
    states, seen = [], []
    read = product(tf.nn.embedding_lookup(p["words"], feeds["source"]), of_read) + p["encoder.bx"]
    for x in tf.unstack(read):
        h = gru(x, h @ of_encoder + p["encoder.bh"], h)
        states.append(h)
    by_batch = tf.stack(states, 1)
    written = product(tf.nn.embedding_lookup(p["words"], feeds["target"]), of_written[:inputs]) + p["decoder.bx"]
    for x in tf.unstack(written):
        h = gru(x + context @ of_written[inputs:], h @ of_decoder + p["decoder.bh"], h)
        attention = tf.nn.softmax(tf.linalg.matvec(by_batch, h))
        context = tf.linalg.matvec(by_batch, attention, transpose_a=True)
        seen.append(tf.concat([h, context], 1))
    return cross_entropy(product(tf.stack(seen), p["out"]), feeds["following"])


def seq2seq_loops(p: Any, feeds: Any) -> Any:
    """As two loops, for XLA."""
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


def language_model(p: Any, feeds: Any) -> Any:
    x = tf.nn.embedding_lookup(p["words"], feeds["x"])
    for i in range(2):
        w = tf.transpose(p[f"wh{i}"])
        h = c = tf.zeros((x.shape[1], x.shape[2]))
        states = []
        for each in tf.unstack(product(x, tf.transpose(p[f"wx{i}"])) + (p[f"bx{i}"] + p[f"bh{i}"])):
            h, c = lstm(each + h @ w, c)
            states.append(h)
        x = tf.stack(states)
    return cross_entropy(product(x, p["out"]), feeds["y"])


def language_model_loops(p: Any, feeds: Any) -> Any:
    """As two loops, for XLA."""
    x = tf.nn.embedding_lookup(p["words"], feeds["x"])
    for i in range(2):
        w = tf.transpose(p[f"wh{i}"])
        start = tf.zeros((x.shape[1], x.shape[2]))
        seen = product(x, tf.transpose(p[f"wx{i}"])) + (p[f"bx{i}"] + p[f"bh{i}"])
        x, _ = tf.scan(lambda before, each, w=w: lstm(each + before[0] @ w, before[1]), seen, (start, start))
    return cross_entropy(product(x, p["out"]), feeds["y"])


def lstm(gates: Any, c: Any) -> Any:
    """(the new state, the new cell) from the sums of all gates."""
    gate, forget, new, out = tf.split(gates, 4, 1)
    c = tf.sigmoid(forget) * c + tf.sigmoid(gate) * tf.tanh(new)
    return tf.sigmoid(out) * tf.tanh(c), c


def gru(x: Any, state: Any, h: Any) -> Any:
    """The new state from the products of all gates with the input and with the state."""
    (xr, xz, xn), (hr, hz, hn) = tf.split(x, 3, 1), tf.split(state, 3, 1)
    z = tf.sigmoid(xz + hz)
    new = tf.tanh(xn + tf.sigmoid(xr + hr) * hn)
    return new + z * (h - new)


LOSSES = {"lstm_lengths": lstm_lengths, "seq2seq": seq2seq, "language_model": language_model}
COMPILED = {"lstm_lengths": lstm_loop, "seq2seq": seq2seq_loops, "language_model": language_model_loops}
"""Family of workloads -> its loss for XLA, where that is another one."""
