"""RNN, GRU and LSTM agree with onnxruntime in every attribute, and their gradients with differences."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core.onnx.beside_runtime import check_node

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
TIME, BATCH, INPUT, HIDDEN = 4, 3, 2, 2


def operands(op, directions=1, lengths=None, state=False, peepholes=False):
    rng = np.random.default_rng(3)

    def some(*shape):
        return rng.normal(size=shape).astype("float32")

    rows = GATES[op] * HIDDEN
    found = {
        "x": some(TIME, BATCH, INPUT),
        "w": some(directions, rows, INPUT),
        "r": some(directions, rows, HIDDEN),
        "b": some(directions, 2 * rows),
        "lengths": None if lengths is None else np.array(lengths, "int32"),
        "h": some(directions, BATCH, HIDDEN) if state else None,
    }
    if op == "LSTM":
        found["c"] = some(directions, BATCH, HIDDEN) if state else None
        found["p"] = some(directions, 3 * HIDDEN) if peepholes else None
    return found


def check(op, inputs, **attributes):
    check_node(op, inputs, outputs=3 if op == "LSTM" else 2, hidden_size=HIDDEN, **attributes)


@pytest.mark.sampled(2, each="op")
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [None, [4, 1, 3]])
@pytest.mark.parametrize("open_sizes", [False, True])
def test_directions_and_lengths_agree(op, direction, lengths, open_sizes):
    count = 2 if direction == "bidirectional" else 1
    inputs = operands(op, count, lengths, state=lengths is not None)

    check(op, inputs, direction=direction, open_sizes=open_sizes, constants=("w", "r", "b"))


@pytest.mark.parametrize("op", ["GRU", "LSTM", "RNN"])
def test_clipped_activations_agree(op):
    check(op, operands(op, state=True), clip=0.4)


def test_peepholes_agree():
    check("LSTM", operands("LSTM", 2, [2, 4, 3], state=True, peepholes=True), direction="bidirectional")


def test_the_reset_gate_before_and_after_the_product_agrees():
    for linear in (0, 1):
        check("GRU", operands("GRU", state=True), linear_before_reset=linear)


@pytest.mark.parametrize(
    ("op", "names", "constants"),
    [
        ("RNN", ["Relu"], {}),
        ("RNN", ["Affine"], {"activation_alpha": [0.5], "activation_beta": [0.1]}),
        ("RNN", ["Softsign"], {}),
        ("GRU", ["HardSigmoid", "LeakyRelu"], {"activation_alpha": [0.3, 0.2], "activation_beta": [0.4]}),
        ("GRU", ["Sigmoid", "ScaledTanh"], {"activation_alpha": [1.5], "activation_beta": [0.7]}),
        ("LSTM", ["Sigmoid", "Elu", "Softplus"], {"activation_alpha": [0.9]}),
    ],
)
def test_other_activations_agree(op, names, constants):
    check(op, operands(op), activations=names, **constants)


@pytest.mark.parametrize("op", GATES)
def test_first_states_of_a_known_batch_agree(op):
    constants = ("w", "r", "b", "h") + (("c",) if op == "LSTM" else ())

    check(op, operands(op, lengths=[4, 2, 3], state=True), open_sizes=True, constants=constants)
