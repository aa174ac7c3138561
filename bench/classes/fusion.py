"""Nets whose time goes to memory unless ops of several kinds become one kernel."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

import backpass_client as bp
from bench.classes.made import Symbols, made, normal, ones, zeros
from bench.workload import Arrays, Workload

__all__ = [
    "WORKLOADS",
    "adam_small",
    "embed_norm",
    "gpt_block",
    "lm_head",
    "message_net",
    "padded_attention",
    "small_batch",
    "softmax_regression",
    "wide_output",
]


def gpt_block(batch: int = 4, length: int = 256, width: int = 256, heads: int = 4) -> Workload:
    """A block of a transformer, its causal attention written with matmul, scale, mask, softmax and matmul."""
    rng = np.random.default_rng(20)
    each = width // heads
    parameters: Arrays = {
        name: normal(rng, m, n, scale=m**-0.5)
        for name, m, n in (("q", width, width), ("k", width, width), ("v", width, width), ("o", width, width),
                           ("up", width, 4 * width), ("down", 4 * width, width))
    } | {"s1": ones(width), "c1": zeros(width), "s2": ones(width), "c2": zeros(width)}  # fmt: skip
    feeds = {
        "x": normal(rng, batch, length, width),
        "y": normal(rng, batch, length, width),
        "mask": np.triu(np.full((length, length), -1e9, "float32"), 1),
    }

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        def split(x: bp.Symbol) -> bp.Symbol:
            return bp.transpose(bp.reshape(x, shape=[batch, length, heads, each]), axes=[0, 2, 1, 3])

        h = given["x"]
        n = bp.layer_norm(h, p["s1"], p["c1"], begin_norm_axis=2)
        scores = bp.matmul(split(n @ p["q"]), split(n @ p["k"]), transpose_y=True)
        attention = bp.softmax(bp.scale(scores, scale=each**-0.5) + given["mask"])
        mixed = bp.reshape(bp.transpose(attention @ split(n @ p["v"]), axes=[0, 2, 1, 3]), shape=[batch, length, width])
        h = h + mixed @ p["o"]
        n = bp.layer_norm(h, p["s2"], p["c2"], begin_norm_axis=2)
        return bp.mse_loss(h + bp.gelu(n @ p["up"]) @ p["down"], given["y"])

    return made("gpt_block", loss, feeds, parameters)


def lm_head(tokens: int = 128, width: int = 256, vocabulary: int = 32_000) -> Workload:
    """The end of a language model: a dense layer, products with all rows of the table of words, cross entropy."""
    rng = np.random.default_rng(21)
    feeds = {"x": normal(rng, tokens, width), "y": rng.integers(0, vocabulary, tokens)}
    parameters = {
        "w": normal(rng, width, width, scale=width**-0.5),
        "b": zeros(width),
        "table": normal(rng, vocabulary, width, scale=0.05),
    }

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        h = bp.gelu(given["x"] @ p["w"] + p["b"])
        return bp.softmax_with_cross_entropy(bp.matmul(h, p["table"], transpose_y=True), given["y"], reduction="mean")

    return made("lm_head", loss, feeds, parameters)


def message_net(nodes: int = 2000, edges: int = 16_000, width: int = 64, classes: int = 8, layers: int = 2) -> Workload:
    """Messages along the edges of a graph, of the states of both ends and features of the edge, added up at its end."""
    rng = np.random.default_rng(22)
    feeds = {
        "x": normal(rng, nodes, width),
        "edge": normal(rng, edges, 8),
        "source": rng.integers(0, nodes, edges),
        "target": rng.integers(0, nodes, edges),
        "y": rng.integers(0, classes, nodes),
    }
    parameters: Arrays = {"out": normal(rng, width, classes, scale=width**-0.5)}
    for i in range(layers):
        for name, m in (("from", width), ("to", width), ("along", 8), ("own", width), ("seen", width)):
            parameters[f"{name}{i}"] = normal(rng, m, width, scale=0.5 * m**-0.5)
        parameters[f"b{i}"] = zeros(width)

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        h = given["x"]
        for i in range(layers):
            ends = bp.gather(h @ p[f"from{i}"], given["source"]) + bp.gather(h @ p[f"to{i}"], given["target"])
            message = bp.relu(ends + given["edge"] @ p[f"along{i}"] + p[f"b{i}"])
            seen = bp.index_add(bp.zeros_like(h), given["target"], message)
            h = bp.relu(h @ p[f"own{i}"] + seen @ p[f"seen{i}"])
        return bp.softmax_with_cross_entropy(h @ p["out"], given["y"], reduction="mean")

    return made("message_net", loss, feeds, parameters)


def embed_norm(batch: int = 16, length: int = 128, vocabulary: int = 10_000, width: int = 256) -> Workload:
    """The start of BERT and a classifier: word, position and segment vectors, added and normalised; their mean."""
    rng = np.random.default_rng(23)
    feeds = {
        "words": rng.integers(0, vocabulary, (batch, length)),
        "segments": rng.integers(0, 2, (batch, length)),
        "y": rng.integers(0, 4, batch),
    }
    parameters = {
        "table": normal(rng, vocabulary, width, scale=0.1),
        "positions": normal(rng, length, width, scale=0.1),
        "parts": normal(rng, 2, width, scale=0.1),
        "s": ones(width),
        "c": zeros(width),
        "w": normal(rng, width, 4, scale=width**-0.5),
    }

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        h = bp.embedding(p["table"], given["words"]) + p["positions"] + bp.embedding(p["parts"], given["segments"])
        h = bp.gelu(bp.layer_norm(h, p["s"], p["c"], begin_norm_axis=2))
        return bp.softmax_with_cross_entropy(h.mean(1) @ p["w"], given["y"], reduction="mean")

    return made("embed_norm", loss, feeds, parameters)


def adam_small(layers: int = 50, batch: int = 32, width: int = 32) -> Workload:
    """A deep narrow residual net of 200 small tensors, trained with Adam."""
    rng = np.random.default_rng(24)
    feeds = {"x": normal(rng, batch, width), "y": normal(rng, batch, width)}
    parameters: Arrays = {}
    for i in range(layers):
        parameters |= {
            f"w{i}": normal(rng, width, width, scale=width**-0.5),
            f"b{i}": zeros(width),
            f"s{i}": 0.2 * ones(width),
            f"c{i}": zeros(width),
        }

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        h = given["x"]
        for i in range(layers):
            h = h + bp.tanh(h @ p[f"w{i}"] + p[f"b{i}"]) * p[f"s{i}"] + p[f"c{i}"]
        return bp.mse_loss(h, given["y"])

    return made("adam_small", loss, feeds, parameters, optimizer="adam")


def small_batch(batch: int = 32, inputs: int = 784, hidden: int = 1024, classes: int = 10) -> Workload:
    """A perceptron of wide layers, trained with Adam on a small batch: its weights are most of what a step reads."""
    rng = np.random.default_rng(25)
    sizes = (inputs, hidden, hidden, classes)
    feeds = {"x": normal(rng, batch, inputs), "y": rng.integers(0, classes, batch)}
    parameters: Arrays = {}
    for i, (m, n) in enumerate(pairwise(sizes)):
        parameters |= {f"w{i}": normal(rng, m, n, scale=m**-0.5), f"b{i}": normal(rng, n, scale=0.1)}

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        h = bp.relu(given["x"] @ p["w0"] + p["b0"])
        h = bp.relu(h @ p["w1"] + p["b1"])
        return bp.softmax_with_cross_entropy(h @ p["w2"] + p["b2"], given["y"], reduction="mean")

    return made("small_batch", loss, feeds, parameters, optimizer="adam", tolerance=1e-2)


def padded_attention(batch: int = 8, queries: int = 64, keys: int = 200, width: int = 128, heads: int = 4) -> Workload:
    """Queries of four heads attend to shared keys and values, of which a mask hides the padding."""
    rng = np.random.default_rng(26)
    each = width // heads
    lengths = rng.integers(keys // 2, keys + 1, batch)
    feeds = {
        "x": normal(rng, batch, queries, width),
        "seen": normal(rng, batch, keys, width),
        "mask": np.where(np.arange(keys) < lengths[:, None], 0.0, -1e9).astype("float32"),
        "y": normal(rng, batch, queries, width),
    }
    parameters = {
        "q": normal(rng, width, width, scale=width**-0.5),
        "k": normal(rng, width, each, scale=width**-0.5),
        "v": normal(rng, width, each, scale=width**-0.5),
        "o": normal(rng, width, width, scale=width**-0.5),
    }

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        q = bp.transpose(bp.reshape(given["x"] @ p["q"], shape=[batch, queries, heads, each]), axes=[0, 2, 1, 3])
        k, v = (bp.unsqueeze(given["seen"] @ p[name], axes=[1]) for name in "kv")
        scores = bp.scale(bp.matmul(q, k, transpose_y=True), scale=each**-0.5)
        attention = bp.softmax(scores + bp.unsqueeze(given["mask"], axes=[1, 2]))
        mixed = bp.reshape(bp.transpose(attention @ v, axes=[0, 2, 1, 3]), shape=[batch, queries, width])
        return bp.mse_loss(given["x"] + mixed @ p["o"], given["y"])

    return made("padded_attention", loss, feeds, parameters)


def softmax_regression(samples: int = 4096, inputs: int = 784, classes: int = 10) -> Workload:
    """A linear model of many samples: its products have ten columns, and read all samples twice."""
    rng = np.random.default_rng(27)
    feeds = {"x": normal(rng, samples, inputs), "y": rng.integers(0, classes, samples)}
    parameters = {"w": normal(rng, inputs, classes, scale=0.05), "b": zeros(classes)}

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        return bp.softmax_with_cross_entropy(given["x"] @ p["w"] + p["b"], given["y"], reduction="mean")

    return made("softmax_regression", loss, feeds, parameters)


def wide_output(batch: int = 8, width: int = 512, classes: int = 50_000) -> Workload:
    """A dense layer and a far wider one, for a few samples: the weights are read from memory."""
    rng = np.random.default_rng(28)
    feeds = {"x": normal(rng, batch, width), "y": rng.integers(0, classes, batch)}
    parameters = {
        "w": normal(rng, width, width, scale=width**-0.5),
        "out": normal(rng, width, classes, scale=width**-0.5),
    }

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        logits = bp.tanh(given["x"] @ p["w"]) @ p["out"]
        return bp.softmax_with_cross_entropy(logits, given["y"], reduction="mean")

    return made("wide_output", loss, feeds, parameters)


WORKLOADS = {
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
