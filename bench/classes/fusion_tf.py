"""The losses of bench/classes/fusion.py in TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bench.peers.tf_ops import cross_entropy, layer_norm, product

__all__ = ["LOSSES"]


def gpt_block(p: Any, feeds: Any) -> Any:
    h = feeds["x"]
    batch, length, width = h.shape

    def split(x: Any) -> Any:
        return tf.transpose(tf.reshape(x, (batch, length, 4, width // 4)), (0, 2, 1, 3))

    n = layer_norm(h, p["s1"], p["c1"])
    q, k, v = (split(product(n, p[name])) for name in "qkv")
    scores = tf.matmul(q, k, transpose_b=True) * (width // 4) ** -0.5 + feeds["mask"]
    mixed = tf.reshape(tf.transpose(tf.nn.softmax(scores) @ v, (0, 2, 1, 3)), (batch, length, width))
    h = h + product(mixed, p["o"])
    h = h + product(tf.nn.gelu(product(layer_norm(h, p["s2"], p["c2"]), p["up"])), p["down"])
    return tf.reduce_mean(tf.square(h - feeds["y"]))


def lm_head(p: Any, feeds: Any) -> Any:
    h = tf.nn.gelu(feeds["x"] @ p["w"] + p["b"])
    return cross_entropy(tf.matmul(h, p["table"], transpose_b=True), feeds["y"])


def message_net(p: Any, feeds: Any) -> Any:
    h, source, target = feeds["x"], feeds["source"], feeds["target"]
    for i in range(sum(name.startswith("own") for name in p)):
        ends = tf.gather(h @ p[f"from{i}"], source) + tf.gather(h @ p[f"to{i}"], target)
        message = tf.nn.relu(ends + (feeds["edge"] @ p[f"along{i}"] + p[f"b{i}"]))
        seen = tf.math.unsorted_segment_sum(message, target, h.shape[0])
        h = tf.nn.relu(h @ p[f"own{i}"] + seen @ p[f"seen{i}"])
    return cross_entropy(h @ p["out"], feeds["y"])


def embed_norm(p: Any, feeds: Any) -> Any:
    words = tf.nn.embedding_lookup(p["table"], feeds["words"])
    h = words + p["positions"] + tf.nn.embedding_lookup(p["parts"], feeds["segments"])
    h = tf.nn.gelu(layer_norm(h, p["s"], p["c"]))
    return cross_entropy(tf.reduce_mean(h, 1) @ p["w"], feeds["y"])


def adam_small(p: Any, feeds: Any) -> Any:
    h = feeds["x"]
    for i in range(len(p) // 4):
        h = h + tf.tanh(h @ p[f"w{i}"] + p[f"b{i}"]) * p[f"s{i}"] + p[f"c{i}"]
    return tf.reduce_mean(tf.square(h - feeds["y"]))


def small_batch(p: Any, feeds: Any) -> Any:
    h = tf.nn.relu(feeds["x"] @ p["w0"] + p["b0"])
    h = tf.nn.relu(h @ p["w1"] + p["b1"])
    return cross_entropy(h @ p["w2"] + p["b2"], feeds["y"])


def padded_attention(p: Any, feeds: Any) -> Any:
    x = feeds["x"]
    batch, queries, width = x.shape
    q = tf.transpose(tf.reshape(product(x, p["q"]), (batch, queries, 4, width // 4)), (0, 2, 1, 3))
    k, v = (product(feeds["seen"], p[name])[:, None] for name in "kv")
    scores = tf.matmul(q, k, transpose_b=True) * (width // 4) ** -0.5 + feeds["mask"][:, None, None]
    mixed = tf.reshape(tf.transpose(tf.nn.softmax(scores) @ v, (0, 2, 1, 3)), (batch, queries, width))
    return tf.reduce_mean(tf.square(x + product(mixed, p["o"]) - feeds["y"]))


def softmax_regression(p: Any, feeds: Any) -> Any:
    return cross_entropy(feeds["x"] @ p["w"] + p["b"], feeds["y"])


def wide_output(p: Any, feeds: Any) -> Any:
    return cross_entropy(tf.tanh(feeds["x"] @ p["w"]) @ p["out"], feeds["y"])


LOSSES = {
    "gpt_block": gpt_block,
    "lm_head": lm_head,
    "message_net": message_net,
    "embed_norm": embed_norm,
    "adam_small": adam_small,
    "small_batch": small_batch,
    "padded_attention": padded_attention,
    "softmax_regression": softmax_regression,
    "wide_output": wide_output,
}
