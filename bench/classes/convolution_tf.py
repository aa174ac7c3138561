"""The losses of bench/classes/convolution.py in TensorFlow: images channels last."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bench.peers.tf_ops import binary_cross_entropy, cross_entropy, product

__all__ = ["LOSSES"]


def resnet(p: Any, feeds: Any) -> Any:
    h = tf.nn.relu(_normed(p, "stem", _last(feeds["x"]), 1))
    for name in "ab":
        h = tf.nn.relu(h + _normed(p, f"{name}2", tf.nn.relu(_normed(p, f"{name}1", h, 1)), 1))
    new = _normed(p, "c2", tf.nn.relu(_normed(p, "c1", h, 1, 2)), 1)
    return _classified(p, tf.nn.relu(new + _normed(p, "c0", h, 0, 2)), feeds)


def bottleneck(p: Any, feeds: Any) -> Any:
    h = _last(feeds["x"])
    for i in range(sum(name.startswith("k.down") for name in p)):
        new = tf.nn.relu(_normed(p, f"at{i}", tf.nn.relu(_normed(p, f"down{i}", h)), 1))
        h = tf.nn.relu(h + _normed(p, f"up{i}", new))
    return _classified(p, h, feeds)


def mobilenet(p: Any, feeds: Any) -> Any:
    h = _last(feeds["x"])
    for i in range(sum(name.startswith("k.each") for name in p)):
        filter = tf.transpose(p[f"k.each{i}"], (2, 3, 0, 1))
        stride = 1 + i % 2
        z = tf.nn.depthwise_conv2d(h, filter, (1, stride, stride, 1), _around(1))
        h = tf.nn.relu(_norm(p, f"each{i}", z))
        h = tf.nn.relu(_normed(p, f"point{i}", h))
    return _classified(p, h, feeds)


def unet(p: Any, feeds: Any) -> Any:
    def layer(name: str, x: Any) -> Any:
        return tf.nn.relu(tf.nn.bias_add(_convolved(x, p[f"k.{name}"], 1), p[f"b.{name}"]))

    high = layer("b", layer("a", _last(feeds["x"])))
    low = layer("d", layer("c", tf.nn.max_pool2d(high, 2, 2, "VALID")))
    filter = tf.transpose(p["k.up"], (2, 3, 1, 0))
    up = tf.nn.conv2d_transpose(low, filter, (*high.shape[:3], filter.shape[2]), 2, "VALID")
    h = layer("g", layer("f", tf.concat([high, tf.nn.bias_add(up, p["b.up"])], -1)))
    logits = _convolved(h, p["k.h"], 0) + p["b.h"]
    return binary_cross_entropy(logits[..., 0], feeds["y"][:, 0])


def decoder(p: Any, feeds: Any) -> Any:
    h = _last(feeds["x"])
    for name in ("a", "b"):
        h = tf.nn.relu(tf.nn.bias_add(_convolved(h, p[f"k.{name}"], 1), p[f"b.{name}"]))
        h = tf.image.resize(h, (2 * h.shape[1], 2 * h.shape[2]), "bilinear")
    logits = _convolved(h, p["k.c"], 0) + p["b.c"]
    return binary_cross_entropy(logits[..., 0], feeds["y"][:, 0])


def wavenet(p: Any, feeds: Any) -> Any:
    """A convolution of two taps is one product, which takes less time than `tf.nn.convolution` with dilations."""
    h, skips = _last(feeds["x"]), 0.0
    for i in range(sum(name.startswith("skip") for name in p)):
        before = tf.pad(h, ((0, 0), (2**i, 0), (0, 0)))[:, : h.shape[1]]
        taps = tf.concat([before, h], -1)
        value, gate = (
            product(taps, tf.reshape(tf.transpose(p[f"{name}{i}"], (2, 1, 0)), (taps.shape[-1], -1)))
            + p[f"{name}{i}.b"]
            for name in ("value", "gate")
        )
        new = tf.tanh(value) * tf.sigmoid(gate)
        skips = skips + _pointwise(new, p[f"skip{i}"])
        if f"back{i}" in p:
            h = h + _pointwise(new, p[f"back{i}"])
    return cross_entropy(_pointwise(tf.nn.relu(skips), p["out"]) + p["b"], feeds["y"])


def _pointwise(x: Any, filter: Any) -> Any:
    """A convolution with a filter of one tap."""
    return product(x, tf.transpose(filter[:, :, 0]))


def _last(x: Any) -> Any:
    """Channels, the second axis, as the last axis."""
    return tf.transpose(x, (0, *range(2, len(x.shape)), 1))


def _around(padding: int) -> Any:
    """The explicit padding of the pixels."""
    return [[0, 0], [padding, padding], [padding, padding], [0, 0]]


def _convolved(x: Any, filter: Any, padding: int, stride: int = 1) -> Any:
    if filter.shape[2:] == (1, 1):
        return product(x[:, ::stride, ::stride], tf.transpose(filter[:, :, 0, 0]))
    return tf.nn.conv2d(x, tf.transpose(filter, (2, 3, 1, 0)), stride, _around(padding))


def _normed(p: Any, name: str, x: Any, padding: int = 0, stride: int = 1) -> Any:
    """A convolution and the batch norm after it."""
    return _norm(p, name, _convolved(x, p[f"k.{name}"], padding, stride))


def _norm(p: Any, name: str, z: Any) -> Any:
    """Batch norm in training mode, by the fused kernel."""
    return tf.compat.v1.nn.fused_batch_norm(z, p[f"s.{name}"], p[f"c.{name}"], epsilon=1e-5)[0]


def _classified(p: Any, h: Any, feeds: Any) -> Any:
    return cross_entropy(tf.reduce_mean(h, (1, 2)) @ p["w"] + p["b"], feeds["y"])


LOSSES = {
    "resnet": resnet,
    "bottleneck": bottleneck,
    "mobilenet": mobilenet,
    "unet": unet,
    "decoder": decoder,
    "wavenet": wavenet,
}
