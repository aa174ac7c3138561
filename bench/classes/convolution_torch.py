"""The losses of bench/classes/convolution.py in PyTorch: images channels last."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

__all__ = ["LOSSES"]

Tensors = dict[str, torch.Tensor]


def resnet(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    h = _normed(p, "stem", _image(feeds), padding=1).relu()
    for name in "ab":
        h = (h + _normed(p, f"{name}2", _normed(p, f"{name}1", h, padding=1).relu(), padding=1)).relu()
    new = _normed(p, "c2", _normed(p, "c1", h, padding=1, stride=2).relu(), padding=1)
    return _classified(p, (new + _normed(p, "c0", h, stride=2)).relu(), feeds)


def bottleneck(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    h = _image(feeds)
    for i in range(sum(name.startswith("k.down") for name in p)):
        new = _normed(p, f"at{i}", _normed(p, f"down{i}", h).relu(), padding=1).relu()
        h = (h + _normed(p, f"up{i}", new)).relu()
    return _classified(p, h, feeds)


def mobilenet(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    h = _image(feeds)
    for i in range(sum(name.startswith("k.each") for name in p)):
        h = _normed(p, f"each{i}", h, padding=1, stride=1 + i % 2, groups=h.shape[1]).relu()
        h = _normed(p, f"point{i}", h).relu()
    return _classified(p, h, feeds)


def unet(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    def layer(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, p[f"k.{name}"], p[f"b.{name}"], padding=1).relu()

    high = layer("b", layer("a", _image(feeds)))
    low = layer("d", layer("c", F.max_pool2d(high, 2)))
    up = F.conv_transpose2d(low, p["k.up"], p["b.up"], stride=2)
    h = layer("g", layer("f", torch.cat((high, up), 1)))
    return F.binary_cross_entropy_with_logits(F.conv2d(h, p["k.h"], p["b.h"]), feeds["y"])


def decoder(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    h = _image(feeds)
    for name in ("a", "b"):
        h = F.conv2d(h, p[f"k.{name}"], p[f"b.{name}"], padding=1).relu()
        h = F.interpolate(h, scale_factor=2, mode="bilinear")
    return F.binary_cross_entropy_with_logits(F.conv2d(h, p["k.c"], p["b.c"]), feeds["y"])


def wavenet(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    h, skips = feeds["x"], 0.0
    for i in range(sum(name.startswith("skip") for name in p)):
        before = F.pad(h, (2**i, 0))
        value, gate = (
            F.conv1d(before, p[f"{name}{i}"], p[f"{name}{i}.b"], dilation=2**i) for name in ("value", "gate")
        )
        new = value.tanh() * gate.sigmoid()
        skips = skips + F.conv1d(new, p[f"skip{i}"])
        if f"back{i}" in p:
            h = h + F.conv1d(new, p[f"back{i}"])
    return F.cross_entropy(F.conv1d(skips.relu(), p["out"], p["b"]), feeds["y"])


def _image(feeds: dict[str, Any]) -> torch.Tensor:
    return feeds["x"].to(memory_format=torch.channels_last)


def _normed(p: Tensors, name: str, x: torch.Tensor, **sizes: int) -> torch.Tensor:
    z = F.conv2d(x, p[f"k.{name}"], **sizes)
    return F.batch_norm(z, None, None, p[f"s.{name}"], p[f"c.{name}"], training=True)


def _classified(p: Tensors, h: torch.Tensor, feeds: dict[str, Any]) -> torch.Tensor:
    return F.cross_entropy(torch.addmm(p["b"], h.mean((2, 3)), p["w"]), feeds["y"])


LOSSES = {
    "resnet": resnet,
    "bottleneck": bottleneck,
    "mobilenet": mobilenet,
    "unet": unet,
    "decoder": decoder,
    "wavenet": wavenet,
}
