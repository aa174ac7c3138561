"""The losses of the workloads in PyTorch, as functions of parameters and feeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from bench.classes import (
    convolution_torch,
    fusion_torch,
    lattices_torch,
    recurrence_torch,
    second_order_torch,
    spectra_torch,
    systems_torch,
    tables_torch,
)
from bench.half_workloads import dtype_of
from bench.trees import tree_loss, tree_of
from bench.workload import RATE, Workload
from bench.workloads import TREE_SEED, of_family

__all__ = ["Feeds", "Loss", "Tensors", "descend", "loss_of", "negative", "placed", "positive", "with_rows"]

Tensors = dict[str, torch.Tensor]
Feeds = dict[str, Any]
Loss = Callable[[Tensors, Feeds], torch.Tensor]


def placed(workload: Workload) -> tuple[Tensors, Feeds]:
    """(parameters, feeds) as new tensors; a number of trips stays an int."""
    feeds = {name: int(value) if name == "n" else torch.tensor(value) for name, value in workload.feeds.items()}
    return {name: torch.tensor(value) for name, value in workload.parameters.items()}, feeds


def mlp(p: Tensors, feeds: Feeds) -> torch.Tensor:
    h = feeds["x"]
    last = len(p) // 2 - 1
    for i in range(last):
        h = torch.addmm(p[f"b{i}"], h, p[f"w{i}"]).relu()
    return F.cross_entropy(torch.addmm(p[f"b{last}"], h, p[f"w{last}"]).float(), feeds["y"])


def rnn_while(p: Tensors, feeds: Feeds) -> torch.Tensor:
    x, w, u, b = feeds["x"], p["w"], p["u"], p["b"]
    h = x.new_zeros(x.shape[1], u.shape[0])
    for i in range(feeds["n"]):
        h = torch.addmm(torch.addmm(b, x[i], w), h, u).tanh()
    return h.square().mean()


def transformer(p: Tensors, feeds: Feeds) -> torch.Tensor:
    batch, length = feeds["x"].shape
    h = F.embedding(feeds["x"], p["embedding"]) + p["positions"]
    width, heads = h.shape[-1], 4

    def split(x: torch.Tensor) -> torch.Tensor:
        return x.view(batch, length, heads, width // heads).transpose(1, 2)

    for i in range(sum(name.endswith(".q") for name in p)):
        q, k, v, o, up, down, s1, s2, c1, c2 = (p[f"layer{i}.{name}"] for name in PARTS)
        n = F.layer_norm(h, (width,), s1, c1)
        mixed = F.scaled_dot_product_attention(split(n @ q), split(n @ k), split(n @ v), feeds["mask"])
        h = h + mixed.transpose(1, 2).reshape(batch, length, width) @ o
        n = F.layer_norm(h, (width,), s2, c2)
        h = h + F.gelu(n @ up) @ down
    return F.cross_entropy((h @ p["out"]).flatten(0, 1).float(), feeds["y"].flatten())


PARTS = ("q", "k", "v", "o", "up", "down", "s1", "s2", "c1", "c2")


def elementwise(p: Tensors, feeds: Feeds) -> torch.Tensor:
    h, x, w = feeds["x"], feeds["x"], p["w"]
    for i in range(10):
        h = (torch.tanh, torch.sigmoid, torch.square, torch.abs, torch.relu)[i % 5](h * w) + x
    return h.mean()


def convnet(p: Tensors, feeds: Feeds) -> torch.Tensor:
    """Channels last are a tenth faster here than channels first."""
    x = feeds["x"].to(memory_format=torch.channels_last)
    h = F.max_pool2d(F.conv2d(x, p["k1"], p["c1"]).relu(), 2)
    h = F.max_pool2d(F.conv2d(h, p["k2"], p["c2"]).relu(), 2)
    h = torch.addmm(p["b1"], h.flatten(1), p["w1"]).relu()
    return F.cross_entropy(torch.addmm(p["b2"], h, p["w2"]).float(), feeds["y"])


def deep_graph(p: Tensors, feeds: Feeds) -> torch.Tensor:
    h, w, b = feeds["x"], p["w"], p["b"]
    for i in range(500):
        h = (torch.tanh, torch.sigmoid, torch.square, torch.sin)[i % 4](h + b if i % 2 else h * w)
    return h.mean()


def positive(h: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.tanh(h * w) - v


def negative(h: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.sin(h + v) * w


def branch(p: Tensors, feeds: Feeds) -> torch.Tensor:
    h = feeds["x"]
    for _ in range(feeds["n"]):
        h = (positive if h.sum() > 0 else negative)(h, p["w"], p["v"])
    return h.square().mean()


def tree_rnn(p: Tensors, feeds: Feeds) -> torch.Tensor:
    words = feeds["words"].split(1)
    tree = tree_of(len(words), TREE_SEED)
    return tree_loss(tree, p, words, lambda table, word: F.embedding(word, table), torch.tanh, _mean_square)


def _mean_square(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean()


def dropout_mlp(p: Tensors, feeds: Feeds) -> torch.Tensor:
    h = feeds["x"]
    last = len(p) // 2 - 1
    for i in range(last):
        h = F.dropout(torch.addmm(p[f"b{i}"], h, p[f"w{i}"]).relu(), 0.5)
    return F.cross_entropy(torch.addmm(p[f"b{last}"], h, p[f"w{last}"]), feeds["y"])


def mixture(p: Tensors, feeds: Feeds) -> torch.Tensor:
    x = feeds["x"]
    best, at = torch.topk(x @ p["gate"], 2)
    weights = torch.zeros(len(x), p["up"].shape[0]).scatter(1, at, best.softmax(-1))
    each = torch.matmul(x, p["up"]).relu() @ p["down"]
    return ((each * weights.t()[:, :, None]).sum(0) - feeds["y"]).square().mean()


def masked_attention(p: Tensors, feeds: Feeds) -> torch.Tensor:
    batch, length, width = feeds["x"].shape

    def split(x: torch.Tensor) -> torch.Tensor:
        return x.view(batch, length, 4, width // 4).transpose(1, 2)

    q, k, v = (split(feeds["x"] @ p[name]) for name in "qkv")
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return (mixed.transpose(1, 2).reshape(batch, length, width) @ p["o"] - feeds["y"]).square().mean()


def graph_net(p: Tensors, feeds: Feeds) -> torch.Tensor:
    h = feeds["x"]
    for i in range((len(p) - 2) // 2):
        got = torch.zeros_like(h).index_add(0, feeds["target"], (h @ p[f"near{i}"]).index_select(0, feeds["source"]))
        h = (h @ p[f"own{i}"] + got).relu()
    return F.cross_entropy(torch.addmm(p["bias"], h, p["out"]), feeds["y"])


LOSSES: dict[str, Loss] = {
    "mlp": mlp,
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
    **recurrence_torch.LOSSES,
    **fusion_torch.LOSSES,
    **convolution_torch.LOSSES,
    **lattices_torch.LOSSES,
    **tables_torch.LOSSES,
    **spectra_torch.LOSSES,
    **systems_torch.LOSSES,
    **second_order_torch.LOSSES,
}
"""Family of workloads -> its loss."""

COMPILED: dict[str, Loss] = {**LOSSES, **recurrence_torch.COMPILED, **second_order_torch.COMPILED}
"""Family of workloads -> its loss in the form that torch.compile makes fastest."""


def loss_of(workload: str, compiled: bool = False) -> Loss:
    """The loss of the workload of this name, which starts with the name of its family."""
    loss, dtype = of_family(COMPILED if compiled else LOSSES, workload), dtype_of(workload)
    if dtype is None:
        return loss
    half = getattr(torch, dtype)
    return lambda p, feeds: loss(_cast(p, half), _cast(feeds, half))


def _cast(arrays: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """`arrays` with those of float32 in `dtype`."""
    return {name: value.to(dtype) if value.dtype == torch.float32 else value for name, value in arrays.items()}


def with_rows(workload: Workload, parameters: Tensors, feeds: Feeds) -> Tensors:
    """The parameters, with the rows that a step reads in place of each table of `Workload.lookups`."""
    return parameters | {table: F.embedding(feeds[ids], parameters[table]) for table, ids in workload.lookups.items()}


def descend(workload: Workload, parameters: Tensors, gradients: Tensors, feeds: Feeds) -> None:
    """SGD in place; the gradients of rows of tables are added to these rows."""
    whole = [name for name in parameters if name not in workload.lookups]
    if whole:
        torch._foreach_add_([parameters[name] for name in whole], [gradients[name] for name in whole], alpha=-RATE)
    for table, ids in workload.lookups.items():
        rows = gradients[table].flatten(0, -2)
        parameters[table].index_add_(0, feeds[ids].flatten(), rows, alpha=-RATE)
