"""The losses of bench/classes/convolution.py in JAX: images channels last."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bench.peers.jax_ops import binary_cross_entropy, cross_entropy

__all__ = ["LOSSES"]


def resnet(p: Any, feeds: Any) -> Any:
    h = jax.nn.relu(_normed(p, "stem", _image(feeds), 1))
    for name in "ab":
        h = jax.nn.relu(h + _normed(p, f"{name}2", jax.nn.relu(_normed(p, f"{name}1", h, 1)), 1))
    new = _normed(p, "c2", jax.nn.relu(_normed(p, "c1", h, 1, 2)), 1)
    return _classified(p, jax.nn.relu(new + _normed(p, "c0", h, 0, 2)), feeds)


def bottleneck(p: Any, feeds: Any) -> Any:
    h = _image(feeds)
    for i in range(sum(name.startswith("k.down") for name in p)):
        new = jax.nn.relu(_normed(p, f"at{i}", jax.nn.relu(_normed(p, f"down{i}", h)), 1))
        h = jax.nn.relu(h + _normed(p, f"up{i}", new))
    return _classified(p, h, feeds)


def mobilenet(p: Any, feeds: Any) -> Any:
    h = _image(feeds)
    for i in range(sum(name.startswith("k.each") for name in p)):
        h = jax.nn.relu(_normed(p, f"each{i}", h, 1, 1 + i % 2, h.shape[-1]))
        h = jax.nn.relu(_normed(p, f"point{i}", h))
    return _classified(p, h, feeds)


def unet(p: Any, feeds: Any) -> Any:
    """The pool as a reshape, and the transposed convolution, whose taps do not meet, as a product."""

    def layer(name: str, x: Any) -> Any:
        return jax.nn.relu(_convolved(x, p[f"k.{name}"], 1) + p[f"b.{name}"])

    high = layer("b", layer("a", _image(feeds)))
    batch, height, width, channels = high.shape
    low = high.reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))
    low = layer("d", layer("c", low))
    up = jnp.einsum("bhwi,iokl->bhkwlo", low, p["k.up"]).reshape(batch, height, width, -1) + p["b.up"]
    h = layer("g", layer("f", jnp.concatenate([high, up], -1)))
    logits = (_convolved(h, p["k.h"], 0) + p["b.h"])[..., 0]
    return binary_cross_entropy(logits, feeds["y"][:, 0])


def decoder(p: Any, feeds: Any) -> Any:
    h = _image(feeds)
    for name in ("a", "b"):
        h = jax.nn.relu(_convolved(h, p[f"k.{name}"], 1) + p[f"b.{name}"])
        batch, height, width, channels = h.shape
        h = jax.image.resize(h, (batch, 2 * height, 2 * width, channels), "bilinear")
    logits = (_convolved(h, p["k.c"], 0) + p["b.c"])[..., 0]
    return binary_cross_entropy(logits, feeds["y"][:, 0])


def wavenet(p: Any, feeds: Any) -> Any:
    """A convolution of two taps is two products."""
    h, skips = feeds["x"].transpose(0, 2, 1), 0.0
    for i in range(sum(name.startswith("skip") for name in p)):
        before = jnp.pad(h, ((0, 0), (2**i, 0), (0, 0)))[:, : h.shape[1]]
        taps = jnp.concatenate([before, h], -1)
        value, gate = (
            taps @ p[f"{name}{i}"].transpose(2, 1, 0).reshape(taps.shape[-1], -1) + p[f"{name}{i}.b"]
            for name in ("value", "gate")
        )
        new = jnp.tanh(value) * jax.nn.sigmoid(gate)
        skips = skips + new @ p[f"skip{i}"][:, :, 0].T
        if f"back{i}" in p:
            h = h + new @ p[f"back{i}"][:, :, 0].T
    return cross_entropy(jax.nn.relu(skips) @ p["out"][:, :, 0].T + p["b"], feeds["y"])


def _image(feeds: Any) -> Any:
    return feeds["x"].transpose(0, 2, 3, 1)


def _convolved(x: Any, filter: Any, padding: int, stride: int = 1, groups: int = 1) -> Any:
    if filter.shape[2:] == (1, 1):
        return x[:, ::stride, ::stride] @ filter[:, :, 0, 0].T
    return lax.conv_general_dilated(
        x, filter, (stride, stride), ((padding, padding),) * 2, dimension_numbers=("NHWC", "OIHW", "NHWC"),
        feature_group_count=groups,
    )  # fmt: skip


def _normed(p: Any, name: str, x: Any, padding: int = 0, stride: int = 1, groups: int = 1) -> Any:
    z = _convolved(x, p[f"k.{name}"], padding, stride, groups)
    mean = z.mean((0, 1, 2))
    variance = jnp.square(z - mean).mean((0, 1, 2))
    return (z - mean) * (lax.rsqrt(variance + 1e-5) * p[f"s.{name}"]) + p[f"c.{name}"]


def _classified(p: Any, h: Any, feeds: Any) -> Any:
    return cross_entropy(h.mean((1, 2)) @ p["w"] + p["b"], feeds["y"])


LOSSES = {
    "resnet": resnet,
    "bottleneck": bottleneck,
    "mobilenet": mobilenet,
    "unet": unet,
    "decoder": decoder,
    "wavenet": wavenet,
}
