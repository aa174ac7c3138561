"""Training steps of nets that draw, select, mask or index: dropout, mixtures of experts, attention, graphs.

Each function gives the program, the feeds and the parameters of one workload.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from examples.models import Op, Program, Var, block, classification, constant, dense, feed, op, parameter

__all__ = ["dropout_mlp", "graph_net", "masked_attention", "mixture"]

Arrays = dict[str, np.ndarray]
Parts = tuple[Program, Arrays, Arrays]


def dropout_mlp(batch: int = 256, sizes: tuple[int, ...] = (784, 512, 512, 10), p: float = 0.5) -> Parts:
    """Dense layers with relu and dropout between, cross entropy at the end."""
    rng = np.random.default_rng(20)
    ops: list[Op] = []
    parameters: Arrays = {}
    h, last = "x", len(sizes) - 2
    for i, (m, n) in enumerate(pairwise(sizes)):
        parameters |= {f"w{i}": _normal(rng, m, n, scale=(2 / m) ** 0.5), f"b{i}": np.zeros(n, "float32")}
        ops += dense(h, f"w{i}", f"b{i}", "logits" if i == last else f"z{i}")
        if i < last:
            ops += [op("relu", f"a{i}", x=f"z{i}"), op("dropout", f"h{i}", x=f"a{i}", attrs={"p": p})]
            h = f"h{i}"
    ops += classification("logits", "y")[:2]
    feeds = {"x": _normal(rng, batch, sizes[0]), "y": rng.integers(0, sizes[-1], batch)}
    return _program(ops, feeds, parameters), feeds, parameters


def mixture(tokens: int = 1024, width: int = 64, inner: int = 128, experts: int = 8, chosen: int = 2) -> Parts:
    """Each token takes the mean of its best experts, weighted by the softmax of their scores; mean square loss."""
    rng = np.random.default_rng(21)
    parameters = {
        "gate": _normal(rng, width, experts, scale=width**-0.5),
        "up": _normal(rng, experts, width, inner, scale=width**-0.5),
        "down": _normal(rng, experts, inner, width, scale=inner**-0.5),
    }
    ops = [
        op("matmul", "scores", x="x", y="gate"),
        {**op("topk", "best", x="scores", attrs={"k": chosen}), "outputs": {"out": ["best"], "index": ["at"]}},
        op("softmax", "shares", x="best"),
        op("one_hot", "which", x="at", attrs={"depth": experts}),
        op("unsqueeze", "column", x="shares", attrs={"axes": [2]}),
        op("mul", "spread", x="which", y="column"),
        op("reduce_sum", "weights", x="spread", attrs={"axes": [1]}),
        op("einsum", "z", x=["x", "up"], attrs={"equation": "nk,ekh->enh"}),
        op("relu", "a", x="z"),
        op("matmul", "each", x="a", y="down"),
        op("transpose", "by_expert", x="weights", attrs={"axes": [1, 0]}),
        op("unsqueeze", "factor", x="by_expert", attrs={"axes": [2]}),
        op("mul", "weighted", x="each", y="factor"),
        op("reduce_sum", "out", x="weighted", attrs={"axes": [0]}),
        op("sub", "error", x="out", y="y"),
        op("square", "squared", x="error"),
        op("mean", "loss", x="squared"),
    ]
    feeds = {"x": _normal(rng, tokens, width), "y": _normal(rng, tokens, width)}
    return _program(ops, feeds, parameters), feeds, parameters


def masked_attention(batch: int = 8, length: int = 256, width: int = 128, heads: int = 4) -> Parts:
    """One layer of attention to earlier positions, with a mask that the program makes; mean square loss."""
    rng, each = np.random.default_rng(22), width // heads
    parameters = {name: _normal(rng, width, width, scale=width**-0.5) for name in "qkvo"}
    ops: list[Op] = [constant("ones", 1.0, [length, length]), op("tril", "allowed", x="ones")]
    for name in "qkv":
        ops += [
            op("matmul", f"{name}.all", x="x", y=name),
            op("reshape", f"{name}.split", x=f"{name}.all", attrs={"shape": [batch, length, heads, each]}),
            op("transpose", f"{name}.heads", x=f"{name}.split", attrs={"axes": [0, 2, 1, 3]}),
        ]
    ops += [
        op("matmul", "products", x="q.heads", y="k.heads", attrs={"transpose_y": True}),
        op("scale", "scaled", x="products", attrs={"scale": each**-0.5}),
        op("scale", "added", x="allowed", attrs={"scale": 1e9, "bias": -1e9}),
        op("add", "scores", x="scaled", y="added"),
        op("softmax", "attention", x="scores"),
        op("matmul", "mixed.heads", x="attention", y="v.heads"),
        op("transpose", "mixed.split", x="mixed.heads", attrs={"axes": [0, 2, 1, 3]}),
        op("reshape", "mixed", x="mixed.split", attrs={"shape": [batch, length, width]}),
        op("matmul", "out", x="mixed", y="o"),
        op("sub", "error", x="out", y="y"),
        op("square", "squared", x="error"),
        op("mean", "loss", x="squared"),
    ]
    feeds = {"x": _normal(rng, batch, length, width), "y": _normal(rng, batch, length, width)}
    return _program(ops, feeds, parameters), feeds, parameters


def graph_net(nodes: int = 4096, edges: int = 32768, width: int = 64, classes: int = 8, layers: int = 2) -> Parts:
    """Each node adds up the states of its neighbours, in some layers; cross entropy over nodes."""
    rng = np.random.default_rng(23)
    parameters: Arrays = {"out": _normal(rng, width, classes, scale=width**-0.5), "bias": np.zeros(classes, "float32")}
    ops: list[Op] = []
    h = "x"
    for i in range(layers):
        parameters |= {
            f"own{i}": _normal(rng, width, width, scale=width**-0.5),
            f"near{i}": _normal(rng, width, width, scale=0.3 * width**-0.5),
        }
        ops += [
            op("matmul", f"sent{i}", x=h, y=f"near{i}"),
            op("gather", f"along{i}", x=f"sent{i}", index="source"),
            op("segment_sum", f"got{i}", x=f"along{i}", ids="target", attrs={"num_segments": nodes}),
            op("matmul", f"self{i}", x=h, y=f"own{i}"),
            op("add", f"z{i}", x=f"self{i}", y=f"got{i}"),
            op("relu", f"h{i}", x=f"z{i}"),
        ]
        h = f"h{i}"
    ops += [*dense(h, "out", "bias", "logits"), *classification("logits", "y")[:2]]
    feeds = {
        "x": _normal(rng, nodes, width),
        "source": rng.integers(0, nodes, edges),
        "target": rng.integers(0, nodes, edges),
        "y": rng.integers(0, classes, nodes),
    }
    return _program(ops, feeds, parameters), feeds, parameters


def _program(ops: list[Op], feeds: Arrays, parameters: Arrays) -> Program:
    variables: list[Var] = [feed(name, list(v.shape), str(v.dtype)) for name, v in feeds.items()]
    return {"blocks": [block(ops, [*variables, *(parameter(name, list(v.shape)) for name, v in parameters.items())])]}


def _normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype("float32")
