"""The losses of bench/classes/second_order.py in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bench.classes.second_order import INNER_RATE
from bench.small_tasks import PENALTY

__all__ = ["LOSSES"]


def dense(p: Any, prefix: str, x: Any, count: int) -> Any:
    for i in range(count):
        x = x @ p[f"{prefix}_w{i}"] + p[f"{prefix}_b{i}"]
        x = x if i == count - 1 else jnp.tanh(x)
    return x


def pinn(p: Any, feeds: Any) -> Any:
    """The second derivative forward over reverse."""
    u = lambda at: dense(p, "u", at, 4)
    at = feeds["at"]
    along = jnp.zeros_like(at).at[:, 0].set(1.0)
    first, second = jax.jvp(jax.grad(lambda at: u(at).sum()), (at,), (along,))
    residual = first[:, 1:] + u(at) * first[:, :1] - 0.01 * second[:, :1]
    return jnp.square(residual).mean() + jnp.square(u(feeds["edge"]) - feeds["value"]).mean()


def vae(p: Any, feeds: Any) -> Any:
    h = jax.nn.relu(feeds["x"] @ p["e_w0"] + p["e_b0"])
    mean, log = jnp.split(h @ p["e_w1"] + p["e_b1"], 2, 1)
    z = mean + jnp.exp(0.5 * log) * feeds["noise"]
    y = jax.nn.relu(z @ p["d_w0"] + p["d_b0"]) @ p["d_w1"] + p["d_b1"]
    return jnp.square(y - feeds["x"]).mean() - 0.5 * (1 + log - jnp.square(mean) - jnp.exp(log)).mean()


def wgan_gp(p: Any, feeds: Any) -> Any:
    fake = dense(p, "g", feeds["z"], 3)
    given = jax.lax.stop_gradient(fake)
    between = given + (feeds["real"] - given) * feeds["mix"]
    steep = jax.grad(lambda at: dense(p, "d", at, 3).sum())(between)
    penalty = PENALTY * jnp.square(jnp.sqrt(jnp.square(steep).sum(1) + 1e-12) - 1).mean()
    critic = dense(p, "d", given, 3).mean() - dense(p, "d", feeds["real"], 3).mean() + penalty
    return critic - dense(jax.lax.stop_gradient(p), "d", fake, 3).mean()


def maml(p: Any, feeds: Any) -> Any:
    def net(w: Any, x: Any) -> Any:
        for i in range(3):
            x = x @ w[f"w{i}"] + w[f"b{i}"]
            x = jax.nn.relu(x) if i < 2 else x
        return x

    def of_task(x: Any, y: Any, asked: Any, answer: Any) -> Any:
        moves = jax.grad(lambda w: jnp.square(net(w, x) - y).sum() / x.shape[0])(p)
        new = jax.tree.map(lambda value, move: value - INNER_RATE * move, p, moves)
        return jnp.square(net(new, asked) - answer).mean()

    return jax.vmap(of_task)(feeds["x"], feeds["y"], feeds["asked"], feeds["answer"]).mean()


LOSSES = {"pinn": pinn, "vae": vae, "wgan_gp": wgan_gp, "maml": maml}
