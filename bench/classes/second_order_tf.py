"""The losses of bench/classes/second_order.py in TensorFlow: inner gradients by tapes inside the tape of the step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bench.classes.second_order import INNER_RATE
from bench.small_tasks import PENALTY

__all__ = ["LOSSES"]


def dense(p: Any, prefix: str, x: Any, count: int) -> Any:
    for i in range(count):
        x = x @ p[f"{prefix}_w{i}"] + p[f"{prefix}_b{i}"]
        x = x if i == count - 1 else tf.tanh(x)
    return x


def pinn(p: Any, feeds: Any) -> Any:
    at = feeds["at"]
    with tf.GradientTape() as outer:
        outer.watch(at)
        with tf.GradientTape() as inner:
            inner.watch(at)
            value = dense(p, "u", at, 4)
        first = inner.gradient(value, at)
        along = first[:, :1]
    second = outer.gradient(along, at)
    residual = first[:, 1:] + value * along - 0.01 * second[:, :1]
    return tf.reduce_mean(tf.square(residual)) + mean_square(dense(p, "u", feeds["edge"], 4), feeds["value"])


def vae(p: Any, feeds: Any) -> Any:
    h = tf.nn.relu(feeds["x"] @ p["e_w0"] + p["e_b0"])
    mean, log = tf.split(h @ p["e_w1"] + p["e_b1"], 2, 1)
    h = tf.nn.relu((mean + tf.exp(0.5 * log) * feeds["noise"]) @ p["d_w0"] + p["d_b0"])
    apart = mean_square(h @ p["d_w1"] + p["d_b1"], feeds["x"])
    return apart - 0.5 * tf.reduce_mean(1 + log - tf.square(mean) - tf.exp(log))


def wgan_gp(p: Any, feeds: Any) -> Any:
    fake = dense(p, "g", feeds["z"], 3)
    given = tf.stop_gradient(fake)
    between = given + (feeds["real"] - given) * feeds["mix"]
    with tf.GradientTape() as tape:
        tape.watch(between)
        critic = dense(p, "d", between, 3)
    steep = tape.gradient(critic, between)
    slope = tf.sqrt(tf.reduce_sum(tf.square(steep), 1) + 1e-12)
    penalty = PENALTY * mean_square(slope, 1.0)
    critic = tf.reduce_mean(dense(p, "d", given, 3)) - tf.reduce_mean(dense(p, "d", feeds["real"], 3)) + penalty
    frozen = {name: tf.stop_gradient(value) for name, value in p.items() if name.startswith("d_")}
    return critic - tf.reduce_mean(dense(frozen, "d", fake, 3))


def maml(p: Any, feeds: Any) -> Any:
    """Each task has weights of its own, in batched products."""
    tasks, shots, _ = feeds["x"].shape

    def net(w: Any, x: Any) -> Any:
        for i in range(3):
            x = x @ w[f"w{i}"] + w[f"b{i}"]
            x = tf.nn.relu(x) if i < 2 else x
        return x

    own = {name: tf.tile(value[None], (tasks, 1, 1)) for name, value in p.items()}
    with tf.GradientTape() as tape:
        tape.watch(own)
        inner = tf.reduce_sum(tf.square(net(own, feeds["x"]) - feeds["y"])) / shots
    moves = tape.gradient(inner, own)
    new = {name: value - INNER_RATE * moves[name] for name, value in own.items()}
    return mean_square(net(new, feeds["asked"]), feeds["answer"])


def mean_square(x: Any, y: Any) -> Any:
    return tf.reduce_mean(tf.square(x - y))


LOSSES = {"pinn": pinn, "vae": vae, "wgan_gp": wgan_gp, "maml": maml}
