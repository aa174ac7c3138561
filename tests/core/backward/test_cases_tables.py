"""Cases 30, 31, 68, 75 and 81 of docs/semantics.md: tables, loops with one requested gradient, gradient penalties."""

from __future__ import annotations

import numpy as np
import pytest

from core.backward.append_backward import append_backward, gradients
from core.compiler.compile import GradientQuery, Optimizer, compile_training
from core.wire import read, write
from tests.programs import Sketch, check, close, grads

TABLE = [[0.1, 0.2], [0.3, -0.4], [0.5, 0.6], [-0.7, 0.8]]


@pytest.mark.parametrize("sparse", [False, True])
def test_30_rows_of_the_padding_index_get_no_gradient(sparse):
    s = Sketch()
    s.param("E", TABLE)
    s.feed("ids", [0, 1, 0], "int64")
    s.total(s.op("square", s.op("embedding", "E", "ids", padding_idx=0, is_sparse=sparse)))

    close(grads(s)["E"], [[0, 0], [0.6, -0.8], [0, 0], [0, 0]])


@pytest.mark.parametrize("sparse", [False, True])
def test_31_a_table_read_by_lookup_and_product_gets_both_gradients(sparse):
    s = Sketch()
    s.param("E", TABLE)
    s.feed("ids", [1, 1, 3], "int64")
    h = s.op("reduce_sum", s.op("embedding", "E", "ids", is_sparse=sparse), axes=[0])
    s.total(s.op("tanh", s.op("matmul", "E", h)))

    close(
        check(s)["E"],
        [[-0.09999, 0], [0.30387208, 2.3898701], [-0.09975042, 0], [0.10237947, 1.19493505]],
        2e-6,
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_68_a_lookup_inside_a_loop(sparse):
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("E", TABLE)
    s.feed("ids", [1, 1, 3], "int64")
    s.const(1.0, [2], out="h")
    s.const(0, [1], "int64", out="t")
    with s.repeat(3):
        s.op("gather", "ids", "t", out="id")
        row = s.op("squeeze", s.op("embedding", "E", "id", is_sparse=sparse), axes=[0])
        s.op("add", s.op("tanh", s.op("mul", "h", "w")), row, out="h")
        s.op("increment", "t", out="t", step=1)
    s.total(s.op("square", "h"))
    found = check(s)

    close(found["E"], [[0, 0], [-0.48883809, 1.41985123], [0, 0], [-0.75970182, 1.24279769]])
    close(found["w"], [-0.79428076, 0.22499192])


def test_75_the_gradient_of_a_captured_value_alone_computes_no_other_gradient():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("x", [1.0, 2.0])
    s.op("assign", "x", out="h")
    with s.repeat(3):
        s.op("add", "h", s.op("square", "w"), out="h")
    s.total("h")
    close(grads(s, parameter_list=("w",))["w"], grads(s)["w"])

    both = append_backward(read(s.document), "loss")
    one = append_backward(read(s.document), "loss", ["w"])
    assert len(one.forward_of) <= len(both.forward_of)
    assert "x@GRAD" not in one.program.block.types


def test_81_the_norm_of_an_input_gradient_in_the_loss():
    """loss = (|d y / d x| - 1)^2 with y = sum(tanh(x W)): the gradient penalty of Gulrajani et al. 2017."""
    inner = Sketch()
    inner.param("W", [[0.5, 0.1], [-0.2, 0.7]])
    inner.feed("x", [[1.0, 2.0], [0.5, -1.0]])
    inner.op("reduce_sum", inner.op("tanh", inner.op("matmul", "x", "W")), out="y")
    document = write(gradients(read(inner.document), ["y"], ["x"]).program)
    root = document["blocks"][0]
    for type, given, out in (("norm", "x@GRAD", "size"), ("scale", "size", "off"), ("square", "off", "loss")):
        attrs = {"scale": {"bias": -1.0}}.get(type, {})
        root["ops"].append({"type": type, "inputs": {"x": [given]}, "outputs": {"out": [out]}, "attrs": attrs})
    program = read(document)

    def penalty(W: np.ndarray) -> float:
        x = inner.values["x"]
        gradient = (1 - np.tanh(x @ W) ** 2) @ W.T
        return float((np.sqrt((gradient**2).sum()) - 1) ** 2)

    exe = compile_training(program, GradientQuery(loss="loss"), Optimizer("sgd", {"learning_rate": 0.1}))
    values = dict(inner.values)
    first = exe.step(values)
    W = values["W"]
    wanted = np.zeros(W.shape)
    for at in np.ndindex(W.shape):
        move = np.zeros(W.shape)
        move[at] = 1e-6
        wanted[at] = (penalty(W + move) - penalty(W - move)) / 2e-6
    close((W - first.parameters["W"]) / 0.1, wanted, 1e-6)
    losses = []
    for _ in range(30):
        out = exe.step(values)
        losses.append(float(out.loss))
        values = values | out.parameters
    assert losses[-1] < 0.05 * losses[0]
