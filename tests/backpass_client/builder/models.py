"""Models as a user of the builder writes them."""

from __future__ import annotations

import backpass_client as bp

__all__ = ["gpt", "sentiment", "vae"]


def gpt(
    tokens: bp.i64["batch", "time"],
    next_tokens: bp.i64["batch", "time"],
    vocabulary: int = 11,
    features: int = 8,
    heads: int = 2,
    layers: int = 2,
    longest: int = 16,
    dtype: str = "float64",
):
    """A decoder-only transformer with learned positions, and the table of tokens as its last layer."""
    table = bp.nn.Embedding(vocabulary, features, dtype=dtype, init={"type": "normal", "std": 0.02}, name="tokens")
    positions = bp.parameter("positions", [longest, features], dtype=dtype, init={"type": "normal", "std": 0.02})
    numbers = bp.cumsum(bp.ones_like(tokens), axis=1) - 1
    h = table(tokens) + bp.gather(positions, numbers)
    for i in range(layers):
        h = bp.nn.TransformerBlock(heads, causal=True, name=f"block_{i}")(h)
    logits = bp.nn.LayerNorm(name="last_norm")(h) @ table.table(tokens).T
    losses = bp.softmax_with_cross_entropy(logits, next_tokens)
    return {"loss": losses.mean(), "logits": logits}


def sentiment(
    words: bp.i64["batch", "time"],
    lengths: bp.i64["batch"],
    label: bp.i64["batch"],
    vocabulary: int = 12,
    features: int = 3,
    hidden: int = 4,
    dtype: str = "float64",
):
    """Two layers of an LSTM in both directions over texts of different lengths, then a linear layer."""
    x = bp.nn.Embedding(vocabulary, features, dtype=dtype, name="words_table")(words)
    out, (h, _) = bp.nn.LSTM(hidden, layers=2, bidirectional=True)(x, lengths)
    last = bp.concat([h[-2], h[-1]], axis=1)
    logits = bp.nn.Linear(2, name="head")(last)
    return {"loss": bp.softmax_with_cross_entropy(logits, label, reduction="mean"), "logits": logits, "out": out}


def vae(
    x: bp.f64["batch", 6],
    noise: bp.f64["batch", 2],
    hidden: int = 5,
):
    """A variational autoencoder of bits; the noise of its latent variables is a feed."""
    with bp.scope("encoder"):
        h = bp.tanh(bp.nn.Linear(hidden)(x))
        mean, log_variance = bp.nn.Linear(2, name="mean")(h), bp.nn.Linear(2, name="log_variance")(h)
    z = mean + bp.exp(log_variance / 2) * noise
    with bp.scope("decoder"):
        logits = bp.nn.Linear(6, name="out")(bp.tanh(bp.nn.Linear(hidden)(z)))
    likelihood = bp.sigmoid_cross_entropy_with_logits(logits, x).sum(1)
    divergence = (bp.exp(log_variance) + mean**2 - 1 - log_variance).sum(1) / 2
    return {"loss": (likelihood + divergence).mean(), "divergence": divergence.mean(), "z": z}
