"""Convolutional nets. Batch norm is in training mode; no running statistics are kept."""

from __future__ import annotations

import numpy as np

import backpass_client as bp
from bench.classes.made import Symbols, made, normal, ones, zeros
from bench.workload import Arrays, Workload

__all__ = ["WORKLOADS", "bottleneck", "decoder", "mobilenet", "resnet", "unet", "wavenet"]


def resnet(batch: int = 32, classes: int = 10) -> Workload:
    """A stem and basic blocks of 16, 16 and 32 channels on 32 x 32 pixels, the last with stride 2 (He et al. 2016)."""
    rng = np.random.default_rng(30)
    y = rng.integers(0, classes, batch)
    feeds = {"x": normal(rng, classes, 3, 32, 32)[y] + normal(rng, batch, 3, 32, 32, scale=0.5), "y": y}
    parameters = {
        **_filter(rng, "stem", 16, 3, 3),
        **_filter(rng, "a1", 16, 16, 3), **_filter(rng, "a2", 16, 16, 3),
        **_filter(rng, "b1", 16, 16, 3), **_filter(rng, "b2", 16, 16, 3),
        **_filter(rng, "c1", 32, 16, 3), **_filter(rng, "c2", 32, 32, 3), **_filter(rng, "c0", 32, 16, 1),
        **_head(rng, 32, classes),
    }  # fmt: skip

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        h = bp.relu(_normed(p, "stem", given["x"], paddings=[1]))
        for name in "ab":
            h = bp.relu(h + _normed(p, f"{name}2", bp.relu(_normed(p, f"{name}1", h, paddings=[1])), paddings=[1]))
        new = _normed(p, "c2", bp.relu(_normed(p, "c1", h, paddings=[1], strides=[2])), paddings=[1])
        h = bp.relu(new + _normed(p, "c0", h, strides=[2]))
        return _classified(p, h, given["y"])

    return made("resnet", loss, feeds, parameters, tolerance=2e-2)


def bottleneck(batch: int = 16, width: int = 256, inner: int = 64, blocks: int = 2) -> Workload:
    """Bottleneck blocks on 14 x 14 pixels: 1 x 1 convolutions around a 3 x 3 one (He et al. 2016)."""
    rng = np.random.default_rng(31)
    feeds = {"x": normal(rng, batch, width, 14, 14), "y": rng.integers(0, 10, batch)}
    parameters = _head(rng, width, 10)
    for i in range(blocks):
        parameters |= _filter(rng, f"down{i}", inner, width, 1)
        parameters |= _filter(rng, f"at{i}", inner, inner, 3)
        parameters |= _filter(rng, f"up{i}", width, inner, 1)

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        h = given["x"]
        for i in range(blocks):
            new = bp.relu(_normed(p, f"down{i}", h))
            new = bp.relu(_normed(p, f"at{i}", new, paddings=[1]))
            h = bp.relu(h + _normed(p, f"up{i}", new))
        return _classified(p, h, given["y"])

    return made("bottleneck", loss, feeds, parameters, tolerance=2e-2)


def mobilenet(batch: int = 16, channels: tuple[int, ...] = (32, 64, 128)) -> Workload:
    """Depthwise 3 x 3 and pointwise convolutions on 28 x 28 pixels, the second with stride 2 (Howard et al. 2017)."""
    rng = np.random.default_rng(32)
    feeds = {"x": normal(rng, batch, channels[0], 28, 28), "y": rng.integers(0, 10, batch)}
    parameters = _head(rng, channels[-1], 10)
    for i in range(len(channels) - 1):
        parameters |= _filter(rng, f"each{i}", channels[i], 1, 3)
        parameters |= _filter(rng, f"point{i}", channels[i + 1], channels[i], 1)

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        h = given["x"]
        for i in range(len(channels) - 1):
            h = bp.relu(_normed(p, f"each{i}", h, groups=channels[i], paddings=[1], strides=[1 + i % 2]))
            h = bp.relu(_normed(p, f"point{i}", h))
        return _classified(p, h, given["y"])

    return made("mobilenet", loss, feeds, parameters, tolerance=2e-2)


def unet(batch: int = 4, size: int = 64) -> Workload:
    """One level of a U-Net: convolutions, a max pool, convolutions, a transposed convolution, and the two joined
    (Ronneberger et al. 2015). Binary cross entropy at each pixel."""
    rng = np.random.default_rng(33)
    feeds = {
        "x": normal(rng, batch, 3, size, size),
        "y": rng.integers(0, 2, (batch, 1, size, size)).astype("float32"),
    }
    parameters: Arrays = {}
    for name, out, inputs, kernel in (("a", 16, 3, 3), ("b", 16, 16, 3), ("c", 32, 16, 3), ("d", 32, 32, 3),
                                      ("f", 16, 32, 3), ("g", 16, 16, 3), ("h", 1, 16, 1)):  # fmt: skip
        parameters[f"k.{name}"] = normal(rng, out, inputs, kernel, kernel, scale=(2 / (inputs * kernel**2)) ** 0.5)
        parameters[f"b.{name}"] = zeros(out)
    parameters |= {"k.up": normal(rng, 32, 16, 2, 2, scale=0.2), "b.up": zeros(16)}

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        def layer(name: str, x: bp.Symbol) -> bp.Symbol:
            return bp.relu(bp.conv2d(x, p[f"k.{name}"], p[f"b.{name}"], paddings=[1]))

        high = layer("b", layer("a", given["x"]))
        low = layer("d", layer("c", bp.max_pool2d(high, kernel_size=[2, 2])[0]))
        up = bp.conv2d_transpose(low, p["k.up"], p["b.up"], strides=[2])
        h = layer("g", layer("f", bp.concat([high, up], axis=1)))
        logits = bp.conv2d(h, p["k.h"], p["b.h"])
        return bp.mean(bp.sigmoid_cross_entropy_with_logits(logits, given["y"]))

    return made("unet", loss, feeds, parameters)


def decoder(batch: int = 2, size: int = 32, width: int = 32) -> Workload:
    """The end of a net that segments images: convolutions, each with a bilinear enlargement behind it, and binary cross
    entropy at each pixel of an image of four times the size.
    """
    rng = np.random.default_rng(35)
    feeds = {
        "x": normal(rng, batch, width, size, size),
        "y": rng.integers(0, 2, (batch, 1, 4 * size, 4 * size)).astype("float32"),
    }
    parameters: Arrays = {}
    for name, out, inputs, kernel in (("a", 16, width, 3), ("b", 16, 16, 3), ("c", 1, 16, 1)):
        parameters[f"k.{name}"] = normal(rng, out, inputs, kernel, kernel, scale=(2 / (inputs * kernel**2)) ** 0.5)
        parameters[f"b.{name}"] = zeros(out)

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        h = given["x"]
        for name in ("a", "b"):
            h = bp.relu(bp.conv2d(h, p[f"k.{name}"], p[f"b.{name}"], paddings=[1]))
            h = bp.interpolate(h, scale_factor=[2.0], mode="linear")
        logits = bp.conv2d(h, p["k.c"], p["b.c"])
        return bp.mean(bp.sigmoid_cross_entropy_with_logits(logits, given["y"]))

    return made("decoder", loss, feeds, parameters)


def wavenet(batch: int = 8, length: int = 512, width: int = 32, layers: int = 8, classes: int = 64) -> Workload:
    """Causal convolutions of two taps, each twice as far apart, with gates and skips (van den Oord et al. 2016)."""
    rng = np.random.default_rng(34)
    feeds = {"x": normal(rng, batch, width, length), "y": rng.integers(0, classes, (batch, length))}
    parameters: Arrays = {"out": normal(rng, classes, width, 1, scale=width**-0.5), "b": zeros(classes)}
    for i in range(layers):
        for name in ("value", "gate"):
            parameters[f"{name}{i}"] = normal(rng, width, width, 2, scale=(2 * width) ** -0.5)
            parameters[f"{name}{i}.b"] = zeros(width)
        if i < layers - 1:
            parameters[f"back{i}"] = normal(rng, width, width, 1, scale=width**-0.5)
        parameters[f"skip{i}"] = normal(rng, width, width, 1, scale=width**-0.5)

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        h, skips = given["x"], []
        for i in range(layers):
            before = bp.pad(h, paddings=[0, 0, 0, 0, 2**i, 0])
            value, gate = (
                bp.conv1d(before, p[f"{name}{i}"], p[f"{name}{i}.b"], dilations=[2**i]) for name in ("value", "gate")
            )
            new = bp.tanh(value) * bp.sigmoid(gate)
            skips.append(bp.conv1d(new, p[f"skip{i}"]))
            if i < layers - 1:
                h = h + bp.conv1d(new, p[f"back{i}"])
        logits = bp.conv1d(bp.relu(bp.sum(skips)), p["out"], p["b"])
        return bp.softmax_with_cross_entropy(logits, given["y"], axis=1, reduction="mean")

    return made("wavenet", loss, feeds, parameters)


def _filter(rng: np.random.Generator, name: str, out: int, inputs: int, size: int) -> Arrays:
    """A filter, and scale and bias of the batch norm after it.

    Without biases, a scale before relu, a depthwise convolution and another batch norm would have the gradient 0.
    """
    filter = normal(rng, out, inputs, size, size, scale=(2 / (inputs * size**2)) ** 0.5)
    return {f"k.{name}": filter, f"s.{name}": ones(out), f"c.{name}": normal(rng, out, scale=0.3)}


def _head(rng: np.random.Generator, inputs: int, classes: int) -> Arrays:
    return {"w": normal(rng, inputs, classes, scale=inputs**-0.5), "b": zeros(classes)}


def _normed(p: Symbols, name: str, x: bp.Symbol, **attrs: object) -> bp.Symbol:
    """A convolution and the batch norm after it."""
    z = bp.conv2d(x, p[f"k.{name}"], **attrs)
    channels = z.shape[1]
    mean, variance = bp.constant(zeros(channels)), bp.constant(ones(channels))
    return bp.batch_norm(z, p[f"s.{name}"], p[f"c.{name}"], mean, variance)[0]


def _classified(p: Symbols, h: bp.Symbol, y: bp.Symbol) -> bp.Symbol:
    """The cross entropy of a linear layer over the mean of all pixels."""
    return bp.softmax_with_cross_entropy(h.mean([2, 3]) @ p["w"] + p["b"], y, reduction="mean")


WORKLOADS = {
    "resnet": resnet,
    "bottleneck": bottleneck,
    "mobilenet": mobilenet,
    "unet": unet,
    "decoder": decoder,
    "wavenet": wavenet,
}
