"""The programs of the examples, as JSON documents for the service.

A program is a list of blocks. A block declares its feeds, parameters and states, and lists its ops in order. Some
functions below only abbreviate the JSON; others write it with the builder of `backpass_client`. `python -m
examples.models` writes the programs to examples/programs/*.json; each file is a body for POST /v1/programs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import backpass_client as bp

__all__ = ["character_rnn", "digits_convnet", "digits_mlp", "line", "scalar_network", "stored", "tape", "text_of"]

Op = dict[str, Any]
Var = dict[str, Any]
Program = dict[str, Any]


# --- abbreviations -----------------------------------------------------------------------------------------------


def op(type: str, out: str, *, slot: str = "out", attrs: dict[str, Any] | None = None, **inputs: str | list[str]) -> Op:
    """An op that writes the variable `out`. inputs: slot=variable, or slot=[variables] for a variadic slot."""
    named = {name: [each] if isinstance(each, str) else each for name, each in inputs.items()}
    return {"type": type, "inputs": named, "outputs": {slot: [out]}, "attrs": attrs or {}}


def constant(out: str, value: float, shape: list[int], dtype: str = "float32") -> Op:
    return op("fill_constant", out, attrs={"shape": shape, "value": value, "dtype": dtype})


def feed(name: str, shape: list[int], dtype: str = "float32") -> Var:
    """A feed: a value that every step sends. -1 in the shape is an open size, which each step chooses."""
    return {"name": name, "dtype": dtype, "shape": shape, "role": "feed"}


def parameter(name: str, shape: list[int], dtype: str = "float32") -> Var:
    return {"name": name, "dtype": dtype, "shape": shape, "role": "parameter"}


def block(ops: list[Op], variables: list[Var] | None = None, idx: int = 0, parent_idx: int = -1) -> dict[str, Any]:
    return {"idx": idx, "parent_idx": parent_idx, "vars": variables or [], "ops": ops}


def dense(x: str, w: str, b: str, out: str) -> list[Op]:
    return [op("matmul", f"{out}/product", x=x, y=w), op("add", out, x=f"{out}/product", y=b)]


def classification(logits: str, label: str) -> list[Op]:
    """`loss`, the mean cross entropy; `accuracy`, the fraction of rows whose largest logit is that of the label."""
    return [
        op("softmax_with_cross_entropy", "each", slot="loss", logits=logits, label=label),
        op("mean", "loss", x="each"),
        op("argmax", "predicted", x=logits, attrs={"axis": -1}),
        op("equal", "hit", x="predicted", y=label),
        op("cast", "hit/number", x="hit", attrs={"dtype": "float32"}),
        op("mean", "accuracy", x="hit/number"),
    ]


# --- the line of the README --------------------------------------------------------------------------------------


def line(dtype: str = "float64") -> Program:
    """The mean squared error of x w, with two weights, against y."""
    variables = [feed("x", [-1, 2], dtype), feed("y", [-1], dtype), parameter("w", [2], dtype)]
    ops = [
        op("matmul", "line", x="x", y="w"),
        op("sub", "error", x="line", y="y"),
        op("square", "squared", x="error"),
        op("mean", "loss", x="squared"),
    ]
    return {"blocks": [block(ops, variables)]}


# --- digits ------------------------------------------------------------------------------------------------------


def digits_mlp(hidden: int = 64) -> Program:
    """64 pixels -> hidden layer with relu -> 10 digits."""
    variables = [
        feed("x", [-1, 64]),
        feed("y", [-1], "int64"),
        parameter("w1", [64, hidden]),
        parameter("b1", [hidden]),
        parameter("w2", [hidden, 10]),
        parameter("b2", [10]),
    ]
    ops = [
        *dense("x", "w1", "b1", "h"),
        op("relu", "h/active", x="h"),
        *dense("h/active", "w2", "b2", "logits"),
        *classification("logits", "y"),
    ]
    return {"blocks": [block(ops, variables)]}


@bp.program
def convnet(x: bp.f32["batch", 1, 8, 8], y: bp.i64["batch"]):
    """8 x 8 pixels -> two 3 x 3 convolutions, each with a 2 x 2 max pool -> one dense layer."""
    h = x
    for i, (inputs, channels) in enumerate([(1, 8), (8, 16)], start=1):
        k, c = bp.parameter(f"k{i}", [channels, inputs, 3, 3]), bp.parameter(f"c{i}", [channels])
        h, _ = bp.max_pool2d(bp.relu(bp.conv2d(h, k, c, paddings=[1, 1])), kernel_size=[2, 2])
    logits = bp.flatten(h) @ bp.parameter("w", [64, 10]) + bp.parameter("b", [10])
    hits = bp.cast(bp.equal(bp.argmax(logits), y), dtype="float32")
    return {"loss": bp.softmax_with_cross_entropy(logits, y).mean(), "accuracy": hits.mean(), "logits": logits}


def digits_convnet() -> Program:
    return convnet.document()


# --- a recurrent network as a while loop -------------------------------------------------------------------------


def character_rnn(characters: int, batch: int, hidden: int, embedding: int = 24) -> Program:
    """A loop that reads `n` characters of `batch` texts, one per trip, and predicts each next character.

    `text` is [time, batch]: trip i reads row i and compares its prediction with row i + 1. The number of trips is the
    value of a feed and not a size, so texts of all lengths share one compiled program. The hidden state starts as a
    constant, and every trip overwrites it; the same holds for `total`, the sum of the losses.
    """

    @bp.program
    def network(text: bp.i64["time", batch], n: bp.i64):
        table = bp.parameter("embedding", [characters, embedding])
        w_in, w_h = bp.parameter("w_in", [embedding, hidden]), bp.parameter("w_h", [hidden, hidden])
        b_h = bp.parameter("b_h", [hidden])
        w_out, b_out = bp.parameter("w_out", [hidden, characters]), bp.parameter("b_out", [characters])

        def trip(h, total, i):
            h = bp.tanh(bp.sum(bp.embedding(table, text[i]) @ w_in, h @ w_h, b_h))
            losses = bp.softmax_with_cross_entropy(h @ w_out + b_out, text[i + 1])
            return h, total + losses.mean(), i + 1

        first = bp.fill_constant(shape=[batch, hidden])
        h, total, _ = bp.while_loop(lambda h, total, i: i < n, trip, (first, 0.0, 0))
        return {"loss": total / bp.cast(n, dtype="float32"), "next_logits": h @ w_out + b_out}

    return network.document()


# --- a graph of scalars ------------------------------------------------------------------------------------------


def scalar_network(sizes: tuple[int, ...] = (2, 8, 8, 1), dtype: str = "float64") -> Program:
    """A network of neurons tanh(w . x + b), with a linear last layer, in which every weight is a scalar parameter.

    x0, x1, ... hold one number per example, so the graph computes a whole batch. `loss` is the mean squared error to y.
    """
    inputs = [f"x{i}" for i in range(sizes[0])]
    variables = [feed(name, [-1], dtype) for name in (*inputs, "y")]
    ops: list[Op] = []
    values = inputs
    for layer, size in enumerate(sizes[1:], start=1):
        outputs = []
        for neuron in range(size):
            name = f"n{layer}.{neuron}"
            weights = [f"{name}.w{i}" for i in range(len(values))]
            variables += [parameter(each, [], dtype) for each in (*weights, f"{name}.b")]
            products = [f"{each}/x" for each in weights]
            ops += [op("mul", p, x=w, y=x) for p, w, x in zip(products, weights, values, strict=True)]
            ops.append(op("sum", f"{name}/sum", x=[*products, f"{name}.b"]))
            is_last = layer == len(sizes) - 1
            ops.append(op("assign" if is_last else "tanh", name, x=f"{name}/sum"))
            outputs.append(name)
        values = outputs
    ops += [
        op("sub", "error", x=values[0], y="y"),
        op("square", "error/squared", x="error"),
        op("mean", "loss", x="error/squared"),
    ]
    return {"blocks": [block(ops, variables)]}


# --- the tape of two products and a softmax ----------------------------------------------------------------------


def tape(dtype: str = "float64") -> Program:
    """h = W_1 x; pred = W_2 h; loss = cross entropy of softmax(pred) and the label. x is a column of 20 numbers."""
    variables = [
        feed("x", [20, 1], dtype),
        feed("label", [1], "int64"),
        parameter("W_1", [20, 20], dtype),
        parameter("W_2", [10, 20], dtype),
    ]
    ops = [
        op("matmul", "h", x="W_1", y="x"),
        op("matmul", "pred", x="W_2", y="h"),
        op("softmax_with_cross_entropy", "loss", slot="loss", logits="pred", label="label", attrs={"axis": 0}),
    ]
    return {"blocks": [block(ops, variables)]}


# --- files -------------------------------------------------------------------------------------------------------

FOLDER = Path(__file__).with_name("programs")


def stored() -> dict[str, Program]:
    """Name -> program, for the files in examples/programs."""
    return {
        "line": line(),
        "digits_mlp": digits_mlp(),
        "digits_convnet": digits_convnet(),
        "rnn_text": character_rnn(characters=103, batch=32, hidden=128),
        "regression": scalar_network(),
        "tape": tape(),
    }


def text_of(program: Program) -> str:
    """The request body that registers `program`, with one line for each variable and each op."""
    blocks = []
    for each in program["blocks"]:
        lists = []
        for member in ("vars", "ops"):
            lines = ",".join(f"\n     {json.dumps(item)}" for item in each[member])
            lists.append(f'   "{member}": [{lines}]')
        head = f'  {{"idx": {each["idx"]}, "parent_idx": {each["parent_idx"]}'
        blocks.append(",\n".join([head, *lists]) + "}")
    more = [f',\n "{member}": {json.dumps(value)}' for member, value in program.items() if member != "blocks"]
    return '{"program": {"blocks": [\n' + ",\n".join(blocks) + "]" + "".join(more) + "}}\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, program in stored().items():
        (FOLDER / f"{name}.json").write_text(text_of(program))
