"""TensorFlow: the whole step as one tf.function over variables that it updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from bench.classes import (
    convolution_tf,
    fusion_tf,
    lattices_tf,
    recurrence_tf,
    second_order_tf,
    spectra_tf,
    systems_tf,
    tables_tf,
)
from bench.half_workloads import dtype_of
from bench.peers.tf_ops import cross_entropy, layer_norm, product
from bench.trees import tree_loss, tree_of
from bench.workload import OPTIMIZERS, RATE, Workload
from bench.workloads import TREE_SEED, mlp, of_family

__all__ = ["Training", "start", "versions"]

Tensors = dict[str, Any]
Loss = Callable[[Tensors, Tensors], Any]


def start(threads: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    Training(mlp("mlp", 2, (3, 4))).run(1)


def versions() -> dict[str, str]:
    return {"tensorflow": tf.__version__, "numpy": np.__version__}


class Training:
    """Variables updated in place.

    compiled: by XLA. It then needs a constant number of trips of a loop, and compiles again for another number.
    """

    def __init__(self, workload: Workload, compiled: bool = False) -> None:
        loss = of_family(COMPILED if compiled else LOSSES, workload.name)
        self._loss = in_dtype(loss, dtype_of(workload.name))
        self._feeds = {name: tf.constant(value) for name, value in workload.feeds.items()}
        if compiled and "n" in self._feeds:
            self._feeds["n"] = int(workload.feeds["n"])
        self._parameters = {name: tf.Variable(value) for name, value in workload.parameters.items()}
        self._descend = Adam(self._parameters) if workload.optimizer == "adam" else descend
        self._step = tf.function(self._update, jit_compile=compiled)

    def _update(self, feeds: Tensors) -> Any:
        with tf.GradientTape() as tape:
            loss = self._loss(self._parameters, feeds)
        self._descend(self._parameters, tape.gradient(loss, self._parameters))
        return loss

    def run(self, steps: int) -> float:
        for _ in range(steps):
            loss = self._step(self._feeds)
        return float(loss)

    def parameters(self) -> dict[str, np.ndarray]:
        return {name: value.numpy() for name, value in self._parameters.items()}


def descend(parameters: Tensors, gradients: Tensors) -> None:
    """SGD in place; the gradients of rows of a table are subtracted from these rows."""
    for name, variable in parameters.items():
        gradient = gradients[name]
        if isinstance(gradient, tf.IndexedSlices):
            variable.scatter_sub(tf.IndexedSlices(RATE * gradient.values, gradient.indices))
        else:
            variable.assign_sub(RATE * gradient)


class Adam:
    """Adam in place, one kernel for each parameter."""

    def __init__(self, parameters: Tensors) -> None:
        self._moments = {
            name: (tf.Variable(tf.zeros_like(each)), tf.Variable(tf.zeros_like(each)))
            for name, each in parameters.items()
        }
        self._taken = tf.Variable(0.0)

    def __call__(self, parameters: Tensors, gradients: Tensors) -> None:
        attributes = OPTIMIZERS["adam"]
        b1, b2 = attributes["beta1"], attributes["beta2"]
        taken = self._taken.assign_add(1.0)
        power1, power2 = b1**taken, b2**taken
        # The kernel adds epsilon to the root of the uncorrected mean of squares, which this factor makes the same.
        epsilon = attributes["epsilon"] * tf.sqrt(1 - power2)
        for name, variable in parameters.items():
            first, second = self._moments[name]
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle, m=first.handle, v=second.handle, beta1_power=power1, beta2_power=power2,
                lr=attributes["learning_rate"], beta1=b1, beta2=b2, epsilon=epsilon, grad=gradients[name],
            )  # fmt: skip


def in_dtype(loss: Loss, dtype: str | None) -> Loss:
    """The loss of arrays that are cast from float32 to `dtype`, unless that is None."""
    if dtype is None:
        return loss
    cast = lambda each: {n: tf.cast(v, dtype) if v.dtype == tf.float32 else v for n, v in each.items()}
    return lambda p, feeds: loss(cast(p), cast(feeds))


def mlp_loss(p: Tensors, feeds: Tensors) -> Any:
    h = feeds["x"]
    last = len(p) // 2 - 1
    for i in range(last):
        h = tf.nn.relu(h @ p[f"w{i}"] + p[f"b{i}"])
    return cross_entropy(h @ p[f"w{last}"] + p[f"b{last}"], feeds["y"])


def repeated(n: Any, trip: Callable[[Any, Any], Any], state: Any) -> Any:
    """The state after `n` trips; each trip computes it from its number and the previous state."""
    known = n if isinstance(n, int) else None
    _, last = tf.while_loop(
        lambda i, h: i < n,
        lambda i, h: (i + 1, trip(i, h)),
        (tf.constant(0, tf.int64), state),
        maximum_iterations=known,
    )
    return last


def rnn_while(p: Tensors, feeds: Tensors) -> Any:
    x, w, u, b = feeds["x"], p["w"], p["u"], p["b"]
    h = repeated(feeds["n"], lambda i, h: tf.tanh(x[i] @ w + h @ u + b), tf.zeros((x.shape[1], u.shape[0])))
    return tf.reduce_mean(tf.square(h))


def transformer(p: Tensors, feeds: Tensors) -> Any:
    batch, length = feeds["x"].shape
    h = tf.nn.embedding_lookup(p["embedding"], feeds["x"]) + p["positions"]
    width, heads = h.shape[-1], 4

    def split(x: Any) -> Any:
        return tf.transpose(tf.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))

    for i in range(sum(name.endswith(".q") for name in p)):
        of = {part: p[f"layer{i}.{part}"] for part in ("q", "k", "v", "o", "up", "down", "s1", "s2", "c1", "c2")}
        n = layer_norm(h, of["s1"], of["c1"])
        q, k, v = (split(product(n, of[name])) for name in "qkv")
        scores = tf.matmul(q, k, transpose_b=True) * (width // heads) ** -0.5 + feeds["mask"]
        mixed = tf.reshape(tf.transpose(tf.nn.softmax(scores) @ v, (0, 2, 1, 3)), (batch, length, width))
        h = h + product(mixed, of["o"])
        inner = product(layer_norm(h, of["s2"], of["c2"]), of["up"])
        h = h + product(tf.nn.gelu(inner), of["down"])
    return cross_entropy(product(h, p["out"]), feeds["y"])


def elementwise(p: Tensors, feeds: Tensors) -> Any:
    h, x, w = feeds["x"], feeds["x"], p["w"]
    for i in range(10):
        h = (tf.tanh, tf.sigmoid, tf.square, tf.abs, tf.nn.relu)[i % 5](h * w) + x
    return tf.reduce_mean(h)


def convnet(p: Tensors, feeds: Tensors) -> Any:
    """The layouts are TensorFlow's: images with channels last."""

    def layer(x: Any, kernel: Any, bias: Any) -> Any:
        z = tf.nn.conv2d(x, tf.transpose(kernel, (2, 3, 1, 0)), 1, "VALID")
        return tf.nn.max_pool2d(tf.nn.relu(tf.nn.bias_add(z, bias)), 2, 2, "VALID")

    images = tf.transpose(feeds["x"], (0, 2, 3, 1))
    h = layer(layer(images, p["k1"], p["c1"]), p["k2"], p["c2"])
    h = tf.reshape(tf.transpose(h, (0, 3, 1, 2)), (h.shape[0], -1))
    h = tf.nn.relu(h @ p["w1"] + p["b1"])
    return cross_entropy(h @ p["w2"] + p["b2"], feeds["y"])


def deep_graph(p: Tensors, feeds: Tensors) -> Any:
    h, w, b = feeds["x"], p["w"], p["b"]
    for i in range(500):
        h = (tf.tanh, tf.sigmoid, tf.square, tf.sin)[i % 4](h + b if i % 2 else h * w)
    return tf.reduce_mean(h)


def branch(p: Tensors, feeds: Tensors) -> Any:
    w, v = p["w"], p["v"]

    def trip(_: Any, h: Any) -> Any:
        return tf.cond(tf.reduce_sum(h) > 0, lambda: tf.tanh(h * w) - v, lambda: tf.sin(h + v) * w)

    return tf.reduce_mean(tf.square(repeated(feeds["n"], trip, feeds["x"])))


def tree_rnn(p: Tensors, feeds: Tensors) -> Any:
    tree = tree_of(feeds["words"].shape[0], TREE_SEED)
    words = tf.split(feeds["words"], feeds["words"].shape[0])
    return tree_loss(tree, p, words, tf.gather, tf.tanh, lambda x: tf.reduce_mean(tf.square(x)))


def dropout_mlp(p: Tensors, feeds: Tensors) -> Any:
    h = feeds["x"]
    last = len(p) // 2 - 1
    for i in range(last):
        h = tf.nn.dropout(tf.nn.relu(h @ p[f"w{i}"] + p[f"b{i}"]), 0.5)
    return cross_entropy(h @ p[f"w{last}"] + p[f"b{last}"], feeds["y"])


def mixture(p: Tensors, feeds: Tensors) -> Any:
    x = feeds["x"]
    best, at = tf.math.top_k(x @ p["gate"], 2)
    weights = tf.reduce_sum(tf.one_hot(at, p["up"].shape[0]) * tf.nn.softmax(best)[..., None], 1)
    each = tf.nn.relu(tf.matmul(x[None], p["up"])) @ p["down"]
    return tf.reduce_mean(tf.square(tf.reduce_sum(each * tf.transpose(weights)[..., None], 0) - feeds["y"]))


def masked_attention(p: Tensors, feeds: Tensors) -> Any:
    batch, length, width = feeds["x"].shape

    def split(x: Any) -> Any:
        return tf.transpose(tf.reshape(x, (batch, length, 4, width // 4)), (0, 2, 1, 3))

    q, k, v = (split(product(feeds["x"], p[name])) for name in "qkv")
    scores = tf.matmul(q, k, transpose_b=True) * (width // 4) ** -0.5
    scores = tf.where(tf.linalg.band_part(tf.ones((length, length), tf.bool), -1, 0), scores, -1e9)
    mixed = tf.reshape(tf.transpose(tf.nn.softmax(scores) @ v, (0, 2, 1, 3)), (batch, length, width))
    return tf.reduce_mean(tf.square(product(mixed, p["o"]) - feeds["y"]))


def graph_net(p: Tensors, feeds: Tensors) -> Any:
    h = feeds["x"]
    for i in range((len(p) - 2) // 2):
        along = tf.gather(h @ p[f"near{i}"], feeds["source"])
        h = tf.nn.relu(h @ p[f"own{i}"] + tf.math.unsorted_segment_sum(along, feeds["target"], h.shape[0]))
    return cross_entropy(h @ p["out"] + p["bias"], feeds["y"])


LOSSES: dict[str, Loss] = {
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
    **recurrence_tf.LOSSES,
    **fusion_tf.LOSSES,
    **convolution_tf.LOSSES,
    **lattices_tf.LOSSES,
    **tables_tf.LOSSES,
    **spectra_tf.LOSSES,
    **systems_tf.LOSSES,
    **second_order_tf.LOSSES,
}
"""Family of workloads -> its loss."""

COMPILED: dict[str, Loss] = {**LOSSES, **recurrence_tf.COMPILED, **lattices_tf.COMPILED}
"""Family of workloads -> its loss in the form for XLA."""
