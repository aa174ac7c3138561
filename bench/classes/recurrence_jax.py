"""The losses of bench/classes/recurrence.py in JAX: scans, after the products of the inputs of all steps at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bench.peers.jax_ops import cross_entropy

__all__ = ["LOSSES"]


def lstm_lengths(p: Any, feeds: Any) -> Any:
    x, lengths = feeds["x"], feeds["lengths"]
    w = p["wh"].T

    def step(before: Any, seen: Any) -> Any:
        h, c = before
        x, i = seen
        gate, forget, new, out = jnp.split(x + h @ w, 4, 1)
        here = (lengths > i)[:, None]
        later = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(gate) * jnp.tanh(new)
        return (jnp.where(here, jax.nn.sigmoid(out) * jnp.tanh(later), h), jnp.where(here, later, c)), None

    start = jnp.zeros((x.shape[1], w.shape[0]))
    seen = x @ p["wx"].T + p["bx"] + p["bh"]
    (h, _), _ = lax.scan(step, (start, start), (seen, jnp.arange(len(x))))
    return cross_entropy(h @ p["w"] + p["b"], feeds["y"])


def seq2seq(p: Any, feeds: Any) -> Any:
    hidden = p["encoder.wh"].shape[1]
    inputs = p["words"].shape[1]
    start = jnp.zeros((feeds["source"].shape[1], hidden))

    def gru(x: Any, state: Any, h: Any) -> Any:
        (xr, xz, xn), (hr, hz, hn) = jnp.split(x, 3, 1), jnp.split(state, 3, 1)
        z = jax.nn.sigmoid(xz + hz)
        new = jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn)
        return new + z * (h - new)

    def encode(h: Any, x: Any) -> Any:
        h = gru(x, h @ p["encoder.wh"].T + p["encoder.bh"], h)
        return h, h

    read = p["words"][feeds["source"]] @ p["encoder.wx"].T + p["encoder.bx"]
    h, states = lax.scan(encode, start, read)
    states = states.transpose(1, 0, 2)
    of_context = p["decoder.wx"][:, inputs:].T

    def decode(before: Any, x: Any) -> Any:
        h, context = before
        h = gru(x + context @ of_context, h @ p["decoder.wh"].T + p["decoder.bh"], h)
        attention = jax.nn.softmax(jnp.einsum("bsh,bh->bs", states, h))
        context = jnp.einsum("bs,bsh->bh", attention, states)
        return (h, context), jnp.concatenate([h, context], 1)

    written = p["words"][feeds["target"]] @ p["decoder.wx"][:, :inputs].T + p["decoder.bx"]
    _, seen = lax.scan(decode, (h, start), written)
    return cross_entropy(seen @ p["out"], feeds["following"])


def language_model(p: Any, feeds: Any) -> Any:
    x = p["words"][feeds["x"]]
    for i in range(2):
        w = p[f"wh{i}"].T

        def step(before: Any, x: Any, w: Any = w) -> Any:
            h, c = before
            gate, forget, new, out = jnp.split(x + h @ w, 4, 1)
            c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(gate) * jnp.tanh(new)
            h = jax.nn.sigmoid(out) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros((x.shape[1], w.shape[0]))
        _, x = lax.scan(step, (start, start), x @ p[f"wx{i}"].T + p[f"bx{i}"] + p[f"bh{i}"])
    return cross_entropy(x @ p["out"], feeds["y"])


LOSSES = {"lstm_lengths": lstm_lengths, "seq2seq": seq2seq, "language_model": language_model}
