"""The losses of bench/classes/fusion.py in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bench.peers.jax_ops import cross_entropy, layer_norm

__all__ = ["LOSSES"]


def gpt_block(p: Any, feeds: Any) -> Any:
    h = feeds["x"]
    batch, length, width = h.shape
    split = lambda x: x.reshape(batch, length, 4, width // 4).transpose(0, 2, 1, 3)
    n = layer_norm(h, p["s1"], p["c1"])
    q, k, v = (split(n @ p[name]) for name in "qkv")
    scores = q @ k.swapaxes(-1, -2) * (width // 4) ** -0.5 + feeds["mask"]
    mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
    h = h + mixed @ p["o"]
    h = h + jax.nn.gelu(layer_norm(h, p["s2"], p["c2"]) @ p["up"], approximate=False) @ p["down"]
    return jnp.square(h - feeds["y"]).mean()


def lm_head(p: Any, feeds: Any) -> Any:
    h = jax.nn.gelu(feeds["x"] @ p["w"] + p["b"], approximate=False)
    return cross_entropy(h @ p["table"].T, feeds["y"])


def message_net(p: Any, feeds: Any) -> Any:
    h, source, target = feeds["x"], feeds["source"], feeds["target"]
    for i in range(sum(name.startswith("own") for name in p)):
        ends = (h @ p[f"from{i}"])[source] + (h @ p[f"to{i}"])[target]
        message = jax.nn.relu(ends + feeds["edge"] @ p[f"along{i}"] + p[f"b{i}"])
        seen = jax.ops.segment_sum(message, target, len(h))
        h = jax.nn.relu(h @ p[f"own{i}"] + seen @ p[f"seen{i}"])
    return cross_entropy(h @ p["out"], feeds["y"])


def embed_norm(p: Any, feeds: Any) -> Any:
    h = p["table"][feeds["words"]] + p["positions"] + p["parts"][feeds["segments"]]
    h = jax.nn.gelu(layer_norm(h, p["s"], p["c"]), approximate=False)
    return cross_entropy(h.mean(1) @ p["w"], feeds["y"])


def adam_small(p: Any, feeds: Any) -> Any:
    h = feeds["x"]
    for i in range(len(p) // 4):
        h = h + jnp.tanh(h @ p[f"w{i}"] + p[f"b{i}"]) * p[f"s{i}"] + p[f"c{i}"]
    return jnp.square(h - feeds["y"]).mean()


def small_batch(p: Any, feeds: Any) -> Any:
    h = jax.nn.relu(feeds["x"] @ p["w0"] + p["b0"])
    h = jax.nn.relu(h @ p["w1"] + p["b1"])
    return cross_entropy(h @ p["w2"] + p["b2"], feeds["y"])


def padded_attention(p: Any, feeds: Any) -> Any:
    x = feeds["x"]
    batch, queries, width = x.shape
    q = (x @ p["q"]).reshape(batch, queries, 4, width // 4)
    k, v = (feeds["seen"] @ p[name] for name in "kv")
    scores = jnp.einsum("bqhe,bke->bhqk", q, k) * (width // 4) ** -0.5 + feeds["mask"][:, None, None]
    mixed = jnp.einsum("bhqk,bke->bqhe", jax.nn.softmax(scores), v).reshape(batch, queries, width)
    return jnp.square(x + mixed @ p["o"] - feeds["y"]).mean()


def softmax_regression(p: Any, feeds: Any) -> Any:
    return cross_entropy(feeds["x"] @ p["w"] + p["b"], feeds["y"])


def wide_output(p: Any, feeds: Any) -> Any:
    return cross_entropy(jnp.tanh(feeds["x"] @ p["w"]) @ p["out"], feeds["y"])


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
