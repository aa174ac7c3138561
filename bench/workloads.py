"""The training steps that the bench measures, each as a program, its values and its query.

Every workload is a loss, the gradients of all parameters, and an update, with SGD unless it says otherwise. It is
float32 unless its name ends in a shorter dtype. `feeds` and `parameters` are made from a fixed seed, so that every peer
in bench/peers computes the same step on the same numbers. More workloads, written with the builder, are in
bench/classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from bench.classes import CLASSES
from bench.half_workloads import dtype_of, in_16_bits
from bench.indexed_workloads import dropout_mlp, graph_net, masked_attention, mixture
from bench.trees import Tree, tree_of
from bench.workload import RATE, Arrays, Workload
from examples.models import Op, Var, block, classification, constant, dense, feed, op, parameter

__all__ = ["RATE", "WORKLOADS", "Workload", "of_family"]

TREE_SEED = 8
"""The seed of the tree of `tree_rnn`."""

MIXED = 0.2
"""Tolerance of workloads in 16 bits. Peers round at different places; the gradients of PyTorch's layer norm differ by a
tenth from those in float32, ours by a hundredth."""


def mlp(name: str, batch: int, sizes: tuple[int, ...]) -> Workload:
    """Dense layers with relu between, cross entropy at the end."""
    variables, ops, parameters = [feed("x", [batch, sizes[0]]), feed("y", [batch], "int64")], [], {}
    rng = np.random.default_rng(0)
    h = "x"
    for i, (m, n) in enumerate(pairwise(sizes)):
        variables += [parameter(f"w{i}", [m, n]), parameter(f"b{i}", [n])]
        parameters[f"w{i}"] = _normal(rng, m, n, scale=m**-0.5)
        parameters[f"b{i}"] = np.zeros(n, "float32")
        last = i == len(sizes) - 2
        ops += dense(h, f"w{i}", f"b{i}", "logits" if last else f"z{i}")
        if not last:
            ops.append(op("relu", f"h{i}", x=f"z{i}"))
            h = f"h{i}"
    ops += classification("logits", "y")[:2]
    feeds = {"x": _normal(rng, batch, sizes[0]), "y": rng.integers(0, sizes[-1], batch)}
    return Workload(name, {"blocks": [block(ops, variables)]}, feeds, parameters)


def rnn_while(trips: int, batch: int = 32, inputs: int = 32, hidden: int = 128) -> Workload:
    """An Elman cell in a `while` whose number of trips is fed; mean square of the last state as loss."""
    variables = [
        feed("x", [trips, batch, inputs]),
        feed("n", [], "int64"),
        parameter("w", [inputs, hidden]),
        parameter("u", [hidden, hidden]),
        parameter("b", [hidden]),
    ]
    before = [
        constant("h", 0.0, [batch, hidden]),
        constant("i", 0, [], "int64"),
        op("less_than", "more", x="i", y="n"),
        op("while", "more", condition="more", attrs={"sub_block": 1}),
        op("square", "squared", x="h"),
        op("mean", "loss", x="squared"),
    ]
    before[3] = {"type": "while", "inputs": {"condition": ["more"]}, "outputs": {}, "attrs": {"sub_block": 1}}
    body = [
        op("gather", "now", x="x", index="i"),
        op("matmul", "from_input", x="now", y="w"),
        op("matmul", "from_state", x="h", y="u"),
        op("sum", "sum", x=["from_input", "from_state", "b"]),
        op("tanh", "h", x="sum"),
        op("increment", "i", x="i", attrs={"step": 1}),
        op("less_than", "more", x="i", y="n"),
    ]
    rng = np.random.default_rng(1)
    feeds = {"x": _normal(rng, trips, batch, inputs), "n": np.asarray(trips)}
    parameters = {
        "w": _normal(rng, inputs, hidden, scale=inputs**-0.5),
        "u": _normal(rng, hidden, hidden, scale=0.9 * hidden**-0.5),
        "b": np.zeros(hidden, "float32"),
    }
    program = {"blocks": [block(before, variables), block(body, idx=1, parent_idx=0)]}
    return Workload(f"rnn_while_{trips}", program, feeds, parameters)


def transformer(
    blocks: int = 2,
    batch: int = 8,
    length: int = 128,
    width: int = 256,
    heads: int = 4,
    inner: int = 1024,
    vocab: int = 512,
) -> Workload:
    """Pre-LN blocks of causal attention and a gelu feed-forward net over token embeddings; next-token cross entropy."""
    rng = np.random.default_rng(2)
    parameters: Arrays = {
        "embedding": _normal(rng, vocab, width, scale=0.1),
        "positions": _normal(rng, length, width, scale=0.1),
        "out": _normal(rng, width, vocab, scale=width**-0.5),
    }
    each = width // heads
    ops: list[Op] = [
        op("embedding", "tokens", weight="embedding", ids="x"),
        op("add", "h", x="tokens", y="positions"),
    ]
    for i in range(blocks):
        p = f"layer{i}."
        for name, m, n in (("q", width, width), ("k", width, width), ("v", width, width), ("o", width, width),
                           ("up", width, inner), ("down", inner, width)):  # fmt: skip
            parameters[p + name] = _normal(rng, m, n, scale=m**-0.5)
        for name in ("s1", "s2"):
            parameters[p + name] = np.ones(width, "float32")
        for name in ("c1", "c2"):
            parameters[p + name] = np.zeros(width, "float32")
        ops.append(op("layer_norm", p + "n1", x="h", scale=p + "s1", bias=p + "c1", attrs={"begin_norm_axis": 2}))
        for name in "qkv":
            ops += [
                op("matmul", f"{p}{name}.all", x=p + "n1", y=p + name),
                op("reshape", f"{p}{name}.split", x=f"{p}{name}.all", attrs={"shape": [batch, length, heads, each]}),
                op("transpose", f"{p}{name}.heads", x=f"{p}{name}.split", attrs={"axes": [0, 2, 1, 3]}),
            ]
        ops += [
            op("matmul", p + "products", x=p + "q.heads", y=p + "k.heads", attrs={"transpose_y": True}),
            op("scale", p + "scaled", x=p + "products", attrs={"scale": each**-0.5}),
            op("add", p + "scores", x=p + "scaled", y="mask"),
            op("softmax", p + "attention", x=p + "scores"),
            op("matmul", p + "mixed.heads", x=p + "attention", y=p + "v.heads"),
            op("transpose", p + "mixed.split", x=p + "mixed.heads", attrs={"axes": [0, 2, 1, 3]}),
            op("reshape", p + "mixed", x=p + "mixed.split", attrs={"shape": [batch, length, width]}),
            op("matmul", p + "attended", x=p + "mixed", y=p + "o"),
            op("add", "h", x="h", y=p + "attended"),
            op("layer_norm", p + "n2", x="h", scale=p + "s2", bias=p + "c2", attrs={"begin_norm_axis": 2}),
            op("matmul", p + "inner", x=p + "n2", y=p + "up"),
            op("gelu", p + "active", x=p + "inner"),
            op("matmul", p + "outer", x=p + "active", y=p + "down"),
            op("add", "h", x="h", y=p + "outer"),
        ]
    ops += [op("matmul", "logits", x="h", y="out"), *classification("logits", "y")[:2]]
    variables: list[Var] = [
        feed("x", [batch, length], "int64"),
        feed("y", [batch, length], "int64"),
        feed("mask", [length, length]),
    ]
    variables += [parameter(name, list(value.shape)) for name, value in parameters.items()]
    feeds = {
        "x": rng.integers(0, vocab, (batch, length)),
        "y": rng.integers(0, vocab, (batch, length)),
        "mask": np.triu(np.full((length, length), -1e9, "float32"), 1),
    }
    return Workload("transformer", {"blocks": [block(ops, variables)]}, feeds, parameters)


def elementwise(size: int = 1_000_000) -> Workload:
    """Thirty ops over a million numbers, then their mean."""
    ops, h = [], "x"
    for i in range(10):
        ops += [
            op("mul", f"a{i}", x=h, y="w"),
            op(("tanh", "sigmoid", "square", "abs", "relu")[i % 5], f"b{i}", x=f"a{i}"),
            op("add", f"c{i}", x=f"b{i}", y="x"),
        ]
        h = f"c{i}"
    ops.append(op("mean", "loss", x=h))
    rng = np.random.default_rng(3)
    variables = [feed("x", [size]), parameter("w", [size])]
    return Workload(
        "elementwise",
        {"blocks": [block(ops, variables)]},
        {"x": _normal(rng, size)},
        {"w": _normal(rng, size, scale=0.5)},
    )


def convnet(batch: int = 64) -> Workload:
    """LeNet-like, on 28 x 28 pixels: two 5 x 5 convolutions with relu and 2 x 2 max pools, then two dense layers."""
    rng = np.random.default_rng(4)
    parameters = {
        "k1": _normal(rng, 6, 1, 5, 5, scale=0.2), "c1": np.zeros(6, "float32"),
        "k2": _normal(rng, 16, 6, 5, 5, scale=0.08), "c2": np.zeros(16, "float32"),
        "w1": _normal(rng, 256, 120, scale=0.06), "b1": np.zeros(120, "float32"),
        "w2": _normal(rng, 120, 10, scale=0.09), "b2": np.zeros(10, "float32"),
    }  # fmt: skip
    ops = [
        op("conv2d", "z1", x="x", filter="k1", bias="c1"),
        op("relu", "a1", x="z1"),
        op("max_pool2d", "p1", x="a1", attrs={"kernel_size": [2, 2]}),
        op("conv2d", "z2", x="p1", filter="k2", bias="c2"),
        op("relu", "a2", x="z2"),
        op("max_pool2d", "p2", x="a2", attrs={"kernel_size": [2, 2]}),
        op("flatten", "flat", x="p2", attrs={"axis": 1}),
        *dense("flat", "w1", "b1", "z3"),
        op("relu", "a3", x="z3"),
        *dense("a3", "w2", "b2", "logits"),
        *classification("logits", "y")[:2],
    ]
    variables = [feed("x", [batch, 1, 28, 28]), feed("y", [batch], "int64")]
    variables += [parameter(name, list(value.shape)) for name, value in parameters.items()]
    feeds = {"x": _normal(rng, batch, 1, 28, 28), "y": rng.integers(0, 10, batch)}
    return Workload("convnet", {"blocks": [block(ops, variables)]}, feeds, parameters)


def deep_graph(depth: int = 500) -> Workload:
    """A thousand tiny ops on 16 numbers that share two weights."""
    ops, h = [], "x"
    for i in range(depth):
        ops += [
            op(("mul", "add")[i % 2], f"m{i}", x=h, y=("w", "b")[i % 2]),
            op(("tanh", "sigmoid", "square", "sin")[i % 4], f"h{i}", x=f"m{i}"),
        ]
        h = f"h{i}"
    ops.append(op("mean", "loss", x=h))
    rng = np.random.default_rng(5)
    variables = [feed("x", [16]), parameter("w", [16]), parameter("b", [16])]
    parameters = {"w": 1 + _normal(rng, 16, scale=0.1), "b": _normal(rng, 16, scale=0.1)}
    return Workload("deep_graph", {"blocks": [block(ops, variables)]}, {"x": _normal(rng, 16)}, parameters)


def branch(trips: int = 50, batch: int = 32, width: int = 64) -> Workload:
    """An `if_else` inside a `while`: by the sign of the state's sum, one of two nonlinear maps."""
    variables = [feed("x", [batch, width]), feed("n", [], "int64"), parameter("w", [width]), parameter("v", [width])]
    ops = [
        op("assign", "h", x="x"),
        constant("i", 0, [], "int64"),
        constant("zero", 0.0, []),
        op("less_than", "more", x="i", y="n"),
        {"type": "while", "inputs": {"condition": ["more"]}, "outputs": {}, "attrs": {"sub_block": 1}},
        op("square", "squared", x="h"),
        op("mean", "loss", x="squared"),
    ]
    body = [
        op("reduce_sum", "total", x="h"),
        op("greater_than", "positive", x="total", y="zero"),
        {
            "type": "if_else",
            "inputs": {"condition": ["positive"]},
            "outputs": {},
            "attrs": {"true_block": 2, "false_block": 3},
        },
        op("increment", "i", x="i", attrs={"step": 1}),
        op("less_than", "more", x="i", y="n"),
    ]
    yes = [op("mul", "hw", x="h", y="w"), op("tanh", "t", x="hw"), op("sub", "h", x="t", y="v")]
    no = [op("add", "hv", x="h", y="v"), op("sin", "s", x="hv"), op("mul", "h", x="s", y="w")]
    rng = np.random.default_rng(6)
    program = {
        "blocks": [
            block(ops, variables),
            block(body, idx=1, parent_idx=0),
            block(yes, idx=2, parent_idx=1),
            block(no, idx=3, parent_idx=1),
        ]
    }
    feeds = {"x": _normal(rng, batch, width), "n": np.asarray(trips)}
    parameters = {"w": 1 + _normal(rng, width, scale=0.1), "v": _normal(rng, width, scale=0.1)}
    return Workload("branch", program, feeds, parameters)


def tree_rnn(leaves: int = 46, hidden: int = 64, vocabulary: int = 100) -> Workload:
    """A recursive network over a binary tree: a lookup for each leaf, five tiny ops for each of the other nodes."""
    variables = [
        feed("words", [leaves], "int64"),
        parameter("e", [vocabulary, hidden]),
        parameter("l", [hidden, hidden]),
        parameter("r", [hidden, hidden]),
        parameter("b", [hidden]),
    ]
    ops = []

    def state(node: Tree) -> str:
        n = len(ops)
        if not isinstance(node, tuple):
            ops.append(op("slice", f"word{n}", x="words", attrs={"axes": [0], "starts": [node], "ends": [node + 1]}))
            ops.append(op("gather", f"h{n}", x="e", index=f"word{n}"))
            return f"h{n}"
        left, right = state(node[0]), state(node[1])
        ops.extend(
            [
                op("matmul", f"l{n}", x=left, y="l"),
                op("matmul", f"r{n}", x=right, y="r"),
                op("add", f"lr{n}", x=f"l{n}", y=f"r{n}"),
                op("add", f"z{n}", x=f"lr{n}", y="b"),
                op("tanh", f"h{n}", x=f"z{n}"),
            ]
        )
        return f"h{n}"

    ops += [op("square", "squared", x=state(tree_of(leaves, TREE_SEED))), op("mean", "loss", x="squared")]
    rng = np.random.default_rng(7)
    parameters = {
        "e": _normal(rng, vocabulary, hidden),
        "l": _normal(rng, hidden, hidden, scale=hidden**-0.5),
        "r": _normal(rng, hidden, hidden, scale=hidden**-0.5),
        "b": np.zeros(hidden, "float32"),
    }
    feeds = {"words": rng.integers(0, vocabulary, leaves)}
    return Workload("tree_rnn", {"blocks": [block(ops, variables)]}, feeds, parameters)


def _normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype("float32")


def mixed(name: str, workload: Workload) -> Workload:
    """A float32 workload in the 16-bit dtype that the end of `name` tells."""
    dtype = dtype_of(name)
    assert dtype is not None
    arrays = {**workload.parameters, **workload.feeds}
    return replace(workload, name=name, program=in_16_bits(workload.program, arrays, dtype), tolerance=MIXED)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "mlp_small": lambda: mlp("mlp_small", 32, (64, 64, 10)),
    "mlp_large": lambda: mlp("mlp_large", 256, (784, 1024, 1024, 10)),
    "rnn_while_10": lambda: rnn_while(10),
    "rnn_while_50": lambda: rnn_while(50),
    "rnn_while_200": lambda: rnn_while(200),
    "transformer": transformer,
    "elementwise": elementwise,
    "convnet": convnet,
    "deep_graph": deep_graph,
    "branch": branch,
    "tree_rnn": tree_rnn,
    "dropout_mlp": lambda: Workload("dropout_mlp", *dropout_mlp(), random=True),
    "mixture": lambda: Workload("mixture", *mixture()),
    "masked_attention": lambda: Workload("masked_attention", *masked_attention()),
    "graph_net": lambda: Workload("graph_net", *graph_net()),
    "mlp_bf16": lambda: mixed("mlp_bf16", mlp("", 256, (784, 1024, 1024, 10))),
    "transformer_bf16": lambda: mixed("transformer_bf16", transformer()),
    "mlp_f16": lambda: mixed("mlp_f16", mlp("", 256, (784, 1024, 1024, 10))),
    "convnet_f16": lambda: mixed("convnet_f16", convnet()),
    **CLASSES,
    "wavenet_bf16": lambda: mixed("wavenet_bf16", CLASSES["wavenet"]()),
}
"""Name -> a function that makes the workload."""

Each = TypeVar("Each")


def of_family(entries: Mapping[str, Each], workload: str) -> Each:
    """The entry of the family of a workload; the name of the workload begins with that of its family.

    Raises LookupError if there is none: the workload is not written for the framework of `entries`.
    """
    for family, each in entries.items():
        if workload.startswith(family):
            return each
    raise LookupError(f"{workload} is not written for this framework")
