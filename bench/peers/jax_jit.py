"""JAX: the whole step with its update under one jit; new parameters reuse the memory of the old ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax import lax

from bench.classes import (
    convolution_jax,
    fusion_jax,
    lattices_jax,
    recurrence_jax,
    second_order_jax,
    spectra_jax,
    systems_jax,
    tables_jax,
)
from bench.half_workloads import dtype_of
from bench.peers.device import on_gpu
from bench.peers.jax_ops import cross_entropy, layer_norm
from bench.trees import tree_loss, tree_of
from bench.workload import OPTIMIZERS, RATE, Workload
from bench.workloads import TREE_SEED, mlp, of_family

__all__ = ["LOSSES", "Training", "loss_of", "start", "versions", "with_rows"]

Arrays = dict[str, Any]
Loss = Callable[[Arrays, Arrays], Any]


def start(threads: int) -> None:
    """XLA uses the cores that this process may use; the caller has chosen them. On a GPU it does not round to TF32."""
    if on_gpu():
        jax.config.update("jax_default_matmul_precision", "highest")
    Training(mlp("mlp", 2, (3, 4))).run(1)


def versions() -> dict[str, str]:
    return {"jax": jax.__version__, "jaxlib": jaxlib.__version__, "numpy": np.__version__}


class Training:
    """A functional update: each step makes the parameters of the next."""

    def __init__(self, workload: Workload) -> None:
        loss, lookups = loss_of(workload), workload.lookups

        @partial(jax.jit, donate_argnums=(0, 1))
        def step(parameters: Arrays, moments: Any, feeds: Arrays) -> tuple[Any, Arrays, Any]:
            value, gradients = jax.value_and_grad(loss)(with_rows(lookups, parameters, feeds), feeds)
            if workload.optimizer == "adam":
                return value, *adam(parameters, gradients, moments)
            new = {name: p - RATE * gradients[name] for name, p in parameters.items() if name not in lookups}
            for table, ids in lookups.items():
                new[table] = parameters[table].at[feeds[ids]].add(-RATE * gradients[table])
            return value, new, moments

        self._step = step
        self._feeds = placed(workload)
        self._parameters = {name: jnp.array(value) for name, value in workload.parameters.items()}
        zeros = lambda: jax.tree.map(jnp.zeros_like, self._parameters)
        self._moments = (zeros(), zeros(), jnp.zeros(())) if workload.optimizer == "adam" else ()

    def run(self, steps: int) -> float:
        for _ in range(steps):
            loss, self._parameters, self._moments = self._step(self._parameters, self._moments, self._feeds)
        jax.block_until_ready(self._parameters)
        return float(loss)

    def parameters(self) -> dict[str, np.ndarray]:
        return {name: np.array(value) for name, value in self._parameters.items()}


def adam(parameters: Arrays, gradients: Arrays, moments: Any) -> tuple[Arrays, Any]:
    """(new parameters, new moments: of the gradients, of their squares, and the number of steps)."""
    attributes = OPTIMIZERS["adam"]
    b1, b2 = attributes["beta1"], attributes["beta2"]
    first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, moments[0], gradients)
    second = jax.tree.map(lambda m, g: b2 * m + (1 - b2) * g * g, moments[1], gradients)
    taken = moments[2] + 1
    size, spread = attributes["learning_rate"] / (1 - b1**taken), jnp.sqrt(1 - b2**taken)
    move = lambda p, m, v: p - size * m / (jnp.sqrt(v) / spread + attributes["epsilon"])
    return jax.tree.map(move, parameters, first, second), (first, second, taken)


def with_rows(lookups: Mapping[str, str], parameters: Arrays, feeds: Arrays) -> Arrays:
    """The parameters, with the rows that a step reads in place of each table of `Workload.lookups`."""
    return parameters | {table: parameters[table][feeds[ids]] for table, ids in lookups.items()}


def placed(workload: Workload) -> Arrays:
    """The feeds as arrays of JAX, integers as 32 bits, its default; without the number of trips (see `loss_of`)."""
    key = {"key": jax.random.PRNGKey(0)} if workload.random else {}
    return {name: jnp.array(value) for name, value in workload.feeds.items() if name != "n"} | key


def loss_of(workload: Workload) -> Loss:
    """The workload's loss as a function of parameters and feeds.

    A fed number of trips is part of the function, as a static argument: reverse mode needs it, and another number is
    compiled again.
    """
    loss, dtype = of_family(LOSSES, workload.name), dtype_of(workload.name)
    if dtype is not None:
        cast = lambda x: x.astype(dtype) if x.dtype == jnp.float32 else x
        return lambda p, feeds: loss(jax.tree.map(cast, p), jax.tree.map(cast, feeds))
    return partial(loss, n=int(workload.feeds["n"])) if "n" in workload.feeds else loss


def mlp_loss(p: Arrays, feeds: Arrays) -> Any:
    h = feeds["x"]
    last = len(p) // 2 - 1
    for i in range(last):
        h = jax.nn.relu(h @ p[f"w{i}"] + p[f"b{i}"])
    return cross_entropy(h @ p[f"w{last}"] + p[f"b{last}"], feeds["y"])


def rnn_while(p: Arrays, feeds: Arrays, n: int) -> Any:
    w, u, b = p["w"], p["u"], p["b"]

    def trip(h: Any, x: Any) -> tuple[Any, None]:
        return jnp.tanh(x @ w + h @ u + b), None

    xs = feeds["x"][:n]
    h, _ = lax.scan(trip, jnp.zeros((xs.shape[1], u.shape[0])), xs)
    return jnp.square(h).mean()


def transformer(p: Arrays, feeds: Arrays) -> Any:
    batch, length = feeds["x"].shape
    h = p["embedding"][feeds["x"]] + p["positions"]
    width, heads = h.shape[-1], 4

    def split(x: Any) -> Any:
        return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)

    for i in range(sum(name.endswith(".q") for name in p)):
        of = {part: p[f"layer{i}.{part}"] for part in ("q", "k", "v", "o", "up", "down", "s1", "s2", "c1", "c2")}
        n = layer_norm(h, of["s1"], of["c1"])
        q, k, v = (split(n @ of[name]) for name in "qkv")
        scores = q @ k.swapaxes(-1, -2) * (width // heads) ** -0.5 + feeds["mask"]
        mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
        h = h + mixed @ of["o"]
        h = h + jax.nn.gelu(layer_norm(h, of["s2"], of["c2"]) @ of["up"], approximate=False) @ of["down"]
    return cross_entropy(h @ p["out"], feeds["y"])


def elementwise(p: Arrays, feeds: Arrays) -> Any:
    h, x, w = feeds["x"], feeds["x"], p["w"]
    for i in range(10):
        h = (jnp.tanh, jax.nn.sigmoid, jnp.square, jnp.abs, jax.nn.relu)[i % 5](h * w) + x
    return h.mean()


def convnet(p: Arrays, feeds: Arrays) -> Any:
    """Channels last, and pools as reshapes: a quarter faster here than channels first with `reduce_window`."""

    def layer(x: Any, kernel: Any, bias: Any) -> Any:
        z = lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "OIHW", "NHWC"))
        batch, height, width, channels = z.shape
        return jax.nn.relu(z + bias).reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))

    h = layer(layer(feeds["x"].transpose(0, 2, 3, 1), p["k1"], p["c1"]), p["k2"], p["c2"])
    h = jax.nn.relu(h.transpose(0, 3, 1, 2).reshape(len(h), -1) @ p["w1"] + p["b1"])
    return cross_entropy(h @ p["w2"] + p["b2"], feeds["y"])


def deep_graph(p: Arrays, feeds: Arrays) -> Any:
    h, w, b = feeds["x"], p["w"], p["b"]
    for i in range(500):
        h = (jnp.tanh, jax.nn.sigmoid, jnp.square, jnp.sin)[i % 4](h + b if i % 2 else h * w)
    return h.mean()


def branch(p: Arrays, feeds: Arrays, n: int) -> Any:
    w, v = p["w"], p["v"]

    def trip(_: int, h: Any) -> Any:
        return lax.cond(h.sum() > 0, lambda h: jnp.tanh(h * w) - v, lambda h: jnp.sin(h + v) * w, h)

    return jnp.square(lax.fori_loop(0, n, trip, feeds["x"])).mean()


def tree_rnn(p: Arrays, feeds: Arrays) -> Any:
    tree = tree_of(feeds["words"].shape[0], TREE_SEED)
    words = jnp.split(feeds["words"], feeds["words"].shape[0])
    return tree_loss(tree, p, words, lambda table, word: table[word], jnp.tanh, lambda x: jnp.square(x).mean())


def dropout_mlp(p: Arrays, feeds: Arrays) -> Any:
    h = feeds["x"]
    last = len(p) // 2 - 1
    for i, key in enumerate(jax.random.split(feeds["key"], last)):
        h = jax.nn.relu(h @ p[f"w{i}"] + p[f"b{i}"])
        h = jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h / 0.5, 0)
    return cross_entropy(h @ p[f"w{last}"] + p[f"b{last}"], feeds["y"])


def mixture(p: Arrays, feeds: Arrays) -> Any:
    x = feeds["x"]
    best, at = lax.top_k(x @ p["gate"], 2)
    weights = (jax.nn.one_hot(at, p["up"].shape[0]) * jax.nn.softmax(best)[..., None]).sum(1)
    each = jax.nn.relu(x @ p["up"]) @ p["down"]
    return jnp.square((each * weights.T[..., None]).sum(0) - feeds["y"]).mean()


def masked_attention(p: Arrays, feeds: Arrays) -> Any:
    batch, length, width = feeds["x"].shape

    def split(x: Any) -> Any:
        return x.reshape(batch, length, 4, width // 4).transpose(0, 2, 1, 3)

    q, k, v = (split(feeds["x"] @ p[name]) for name in "qkv")
    scores = q @ k.swapaxes(-1, -2) * (width // 4) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
    return jnp.square(mixed @ p["o"] - feeds["y"]).mean()


def graph_net(p: Arrays, feeds: Arrays) -> Any:
    h = feeds["x"]
    for i in range((len(p) - 2) // 2):
        got = jax.ops.segment_sum((h @ p[f"near{i}"])[feeds["source"]], feeds["target"], len(h))
        h = jax.nn.relu(h @ p[f"own{i}"] + got)
    return cross_entropy(h @ p["out"] + p["bias"], feeds["y"])


LOSSES: dict[str, Callable[..., Any]] = {
    "mlp": mlp_loss,
    "rnn_while": rnn_while,
    "transformer": transformer,
    "elementwise": elementwise,
    "convnet": convnet,
    "deep_graph": deep_graph,
    "branch": branch,
    "tree_rnn": tree_rnn,
    "dropout_mlp": dropout_mlp,
    "mixture": mixture,
    "masked_attention": masked_attention,
    "graph_net": graph_net,
    **recurrence_jax.LOSSES,
    **fusion_jax.LOSSES,
    **convolution_jax.LOSSES,
    **lattices_jax.LOSSES,
    **tables_jax.LOSSES,
    **spectra_jax.LOSSES,
    **systems_jax.LOSSES,
    **second_order_jax.LOSSES,
}
"""Family of workloads -> its loss."""
