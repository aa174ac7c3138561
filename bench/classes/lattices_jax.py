"""The losses of bench/classes/lattices.py in JAX: scans over the lattices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["LOSSES"]

NEVER = -1e9
"""The logarithm of the probability of a path that does not exist; with -inf the gradients would be NaN."""


def ctc(p: Any, feeds: Any) -> Any:
    def layer(x: Any, filter: Any, bias: Any) -> Any:
        z = lax.conv_general_dilated(x, filter, (1,), ((2, 2),), dimension_numbers=("NWC", "OIW", "NWC"))
        return jax.nn.relu(z + bias)

    h = layer(layer(feeds["x"].transpose(0, 2, 1), p["k1"], p["b1"]), p["k2"], p["b2"])
    logs = jax.nn.log_softmax(h @ p["w"] + p["b"])
    label, times, letters = feeds["label"], feeds["times"], feeds["letters"]
    batch, most = label.shape
    states = jnp.zeros((batch, 2 * most + 1), label.dtype).at[:, 1::2].set(label)
    shorter = jnp.concatenate([jnp.zeros((batch, 2), label.dtype), states[:, :-2]], 1)
    skips = (states != 0) & (states != shorter)
    read = jnp.take_along_axis(logs, jnp.broadcast_to(states[:, None], (batch, logs.shape[1], states.shape[1])), 2)

    def moved(sums: Any, count: int) -> Any:
        return jnp.pad(sums, ((0, 0), (count, 0)), constant_values=NEVER)[:, : sums.shape[1]]

    def step(sums: Any, seen: Any) -> Any:
        here, time = seen
        skipped = jnp.where(skips, moved(sums, 2), NEVER)
        new = jnp.logaddexp(jnp.logaddexp(sums, moved(sums, 1)), skipped) + here
        return jnp.where((time < times)[:, None], new, sums), None

    first = jnp.where(jnp.arange(states.shape[1]) < 2, read[:, 0], NEVER)
    sums, _ = lax.scan(step, first, (read[:, 1:].transpose(1, 0, 2), jnp.arange(1, logs.shape[1])))
    last = jnp.take_along_axis(sums, jnp.stack([2 * letters, 2 * letters - 1], 1), 1)
    return (-jax.nn.logsumexp(last, 1) / letters).mean()


def crf(p: Any, feeds: Any) -> Any:
    label, lengths = feeds["label"], feeds["lengths"]
    emission = jnp.tanh(feeds["x"] @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    first, last, move = p["transition"][0], p["transition"][1], p["transition"][2:]
    within = jnp.arange(label.shape[1]) < lengths[:, None]

    def step(sums: Any, seen: Any) -> Any:
        here, live = seen
        new = jax.nn.logsumexp(sums[:, :, None] + move, 1) + here
        return jnp.where(live[:, None], new, sums), None

    sums, _ = lax.scan(step, first + emission[:, 0], (emission[:, 1:].transpose(1, 0, 2), within[:, 1:].T))
    all_paths = jax.nn.logsumexp(sums + last, 1)
    seen = jnp.where(within, jnp.take_along_axis(emission, label[..., None], 2)[..., 0], 0.0).sum(1)
    moved = jnp.where(within[:, 1:], move[label[:, :-1], label[:, 1:]], 0.0).sum(1)
    ends = first[label[:, 0]] + last[jnp.take_along_axis(label, lengths[:, None] - 1, 1)[:, 0]]
    return (all_paths - seen - moved - ends).mean()


LOSSES = {"ctc": ctc, "crf": crf}
