"""The losses of bench/classes/fusion.py in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

__all__ = ["LOSSES"]

Tensors = dict[str, torch.Tensor]


def gpt_block(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    """Attention by the fused kernel, which skips what the causal mask hides."""
    h = feeds["x"]
    batch, length, width = h.shape

    def split(x: torch.Tensor) -> torch.Tensor:
        return x.view(batch, length, 4, width // 4).transpose(1, 2)

    n = F.layer_norm(h, (width,), p["s1"], p["c1"])
    mixed = F.scaled_dot_product_attention(split(n @ p["q"]), split(n @ p["k"]), split(n @ p["v"]), is_causal=True)
    h = h + mixed.transpose(1, 2).reshape(batch, length, width) @ p["o"]
    n = F.layer_norm(h, (width,), p["s2"], p["c2"])
    return F.mse_loss(h + F.gelu(n @ p["up"]) @ p["down"], feeds["y"])


def lm_head(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    h = F.gelu(torch.addmm(p["b"], feeds["x"], p["w"]))
    return F.cross_entropy(F.linear(h, p["table"]), feeds["y"])


def message_net(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    h, source, target = feeds["x"], feeds["source"], feeds["target"]
    for i in range(sum(name.startswith("own") for name in p)):
        ends = (h @ p[f"from{i}"]).index_select(0, source) + (h @ p[f"to{i}"]).index_select(0, target)
        message = (ends + torch.addmm(p[f"b{i}"], feeds["edge"], p[f"along{i}"])).relu()
        seen = torch.zeros_like(h).index_add(0, target, message)
        h = torch.addmm(h @ p[f"own{i}"], seen, p[f"seen{i}"]).relu()
    return F.cross_entropy(h @ p["out"], feeds["y"])


def embed_norm(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    h = F.embedding(feeds["words"], p["table"]) + p["positions"] + F.embedding(feeds["segments"], p["parts"])
    h = F.gelu(F.layer_norm(h, h.shape[-1:], p["s"], p["c"]))
    return F.cross_entropy(h.mean(1) @ p["w"], feeds["y"])


def adam_small(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    h = feeds["x"]
    for i in range(len(p) // 4):
        h = h + torch.addmm(p[f"b{i}"], h, p[f"w{i}"]).tanh() * p[f"s{i}"] + p[f"c{i}"]
    return F.mse_loss(h, feeds["y"])


def small_batch(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    h = torch.addmm(p["b0"], feeds["x"], p["w0"]).relu()
    h = torch.addmm(p["b1"], h, p["w1"]).relu()
    return F.cross_entropy(torch.addmm(p["b2"], h, p["w2"]), feeds["y"])


def padded_attention(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    """By the fused kernel, with views of the shared keys and values for all heads."""
    x, seen, mask = feeds["x"], feeds["seen"], feeds["mask"]
    batch, queries, width = x.shape
    q = (x @ p["q"]).view(batch, queries, 4, width // 4).transpose(1, 2)
    k, v = ((seen @ p[name])[:, None].expand(-1, 4, -1, -1) for name in "kv")
    hidden = mask[:, None, None].expand(-1, 4, queries, -1)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)
    return F.mse_loss(x + mixed.transpose(1, 2).reshape(batch, queries, width) @ p["o"], feeds["y"])


def softmax_regression(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    return F.cross_entropy(torch.addmm(p["b"], feeds["x"], p["w"]), feeds["y"])


def wide_output(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    return F.cross_entropy(torch.tanh(feeds["x"] @ p["w"]) @ p["out"], feeds["y"])


LOSSES = {
    "gpt_block": gpt_block,
    "lm_head": lm_head,
    "message_net": message_net,
    "embed_norm": embed_norm,
    "adam_small": adam_small,
    "small_batch": small_batch,
    "padded_attention": padded_attention,
    "softmax_regression": softmax_regression,
    "wide_output": wide_output,
}
