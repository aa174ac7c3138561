"""Gradients that do not exist or need care: ties, kinks, zeros, equal eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest

from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError, ProgramError
from core.runtime.reference import execute
from tests.programs import Sketch, close, gradient_of_op, grads


@pytest.mark.parametrize(
    ("type", "value", "attrs", "wanted"),
    [
        ("reduce_prod", [0.0, 2.0, 3.0], {}, [6, 0, 0]),
        ("reduce_prod", [0.0, 0.0, 3.0], {}, [0, 0, 0]),
        ("cumprod", [2.0, 0.0, 3.0], {}, [1 + 0 + 0, 2 + 6, 0]),
        ("reduce_max", [2.0, 2.0, 1.0], {}, [0.5, 0.5, 0]),
        ("norm", [0.0, 0.0], {}, [0, 0]),
        ("norm", [2.0, -2.0, 1.0], {"p": np.inf}, [0.5, -0.5, 0]),
        ("std", [3.0, 3.0], {}, [0, 0]),
        ("abs", [0.0, -1.0], {}, [0, -1]),
        ("clip", [1.0, 2.0, 3.0], {"min": 1.0, "max": 2.0}, [1, 1, 0]),
        ("hard_tanh", [-1.0, 0.5, 1.0], {}, [0, 1, 0]),
        ("relu6", [0.0, 3.0, 6.0], {}, [0, 1, 0]),
        ("relu", [0.0, 1.0], {}, [0, 1]),
        ("elu", [0.0], {"alpha": 0.5}, [0.5]),
        ("celu", [0.0], {"alpha": 2.0}, [1]),
        ("softsign", [0.0], {}, [1]),
        ("softshrink", [-0.5, 0.5, 1.0], {}, [0, 0, 1]),
        ("hard_shrink", [-0.5, 0.5, 1.0], {}, [0, 0, 1]),
        ("logsumexp", [-np.inf, -np.inf], {}, [0, 0]),
        ("floor", [0.3, 1.7], {}, [0, 0]),
        ("round", [0.3, 1.7], {"straight_through": True}, [1, 1]),
        ("eigvalsh", [[2.0, 0.0], [0.0, 2.0]], {}, [[1, 0], [0, 1]]),
        ("det", [[1.0, 2.0], [2.0, 4.0]], {}, [[4, -2], [-2, 1]]),
        ("median", [1.0, 3.0, 2.0, 4.0], {}, [0, 0.5, 0.5, 0]),
    ],
)
def test_the_gradient_at_ties_kinks_and_zeros_is_the_defined_one(type, value, attrs, wanted):
    close(gradient_of_op(type, value, **attrs), wanted, 1e-12)


@pytest.mark.parametrize(
    ("type", "value", "code"),
    [
        ("inverse", [[1.0, 2.0], [2.0, 4.0]], "singular_matrix"),
        ("cholesky", [[1.0, 2.0], [2.0, 1.0]], "singular_matrix"),
    ],
)
def test_a_missing_gradient_is_an_error_with_a_location(type, value, code):
    with pytest.raises(ExecutionError) as error:
        gradient_of_op(type, value)
    assert error.value.code == code
    assert error.value.location is not None


def test_vectors_of_equal_eigenvalues_have_no_gradient():
    s = Sketch()
    s.param("w", np.eye(2))
    s.total(s.op("eigh", "w", out=("values", "vectors"))[1])

    with pytest.raises(ExecutionError) as error:
        grads(s)
    assert error.value.code == "degenerate_spectrum"


def test_a_loss_that_no_choice_of_eigenvectors_changes_is_refused():
    # The loss is sum(x @ x), and its gradient 4 everywhere. But the cotangents of the vectors depend on the squares of
    # the values only, and the gradient off the diagonal on their derivatives.
    s = Sketch()
    s.param("x", 2.0 * np.eye(2))
    values, vectors = s.op("eigh", "x", out=("values", "vectors"))
    scaled = s.op("mul", vectors, s.op("square", values))
    s.total(s.op("matmul", scaled, vectors, transpose_y=True))

    with pytest.raises(ExecutionError) as error:
        grads(s)
    assert error.value.code == "degenerate_spectrum"


def test_a_zero_vector_has_similarity_0():
    s = Sketch()
    s.param("x", [[0.0, 0.0]])
    s.param("y", [[1.0, 2.0]])
    s.total(s.op("cos_sim", "x", "y"))
    found = grads(s)

    close(found["x"], [[0, 0]])
    close(found["y"], [[0, 0]])


def test_only_the_last_of_several_writes_gets_a_gradient():
    s = Sketch()
    s.param("x", [1.0, 2.0, 3.0])
    s.param("u", [5.0, 6.0, 7.0])
    s.feed("at", [1, 0, 1], "int64")
    s.total(s.op("square", s.op("scatter", "x", "at", "u")))
    found = grads(s)

    close(found["u"], [0, 12, 14])
    close(found["x"], [0, 0, 6])


@pytest.mark.parametrize("causal", [False, True])
def test_attention_without_keys_gives_zeros(causal):
    b = BlockBuilder()
    shapes = {"query": (2, 4, 3), "key": (2, 0, 3), "value": (2, 0, 5)}
    given = [b.param(TensorType(shape, "float64")) for shape in shapes.values()]
    block = b.build([b.emit("scaled_dot_product_attention", *given, causal=causal)])

    (found,) = execute(optimize(block), [np.ones(shape) for shape in shapes.values()])
    np.testing.assert_array_equal(found, np.zeros((2, 4, 5)))


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_a_recurrence_over_an_open_batch_takes_the_batch_of_its_state(cell):
    gates, states = {"rnn": (1, 1), "gru": (3, 1), "lstm": (4, 2)}[cell]
    rng = np.random.default_rng(0)
    values = [rng.normal(size=shape) for shape in ((3, 2, 4), *[(2, 5)] * states, (5 * gates, 4), (5 * gates, 5))]

    def block_of(batch: int) -> Block:
        b = BlockBuilder()
        types = [TensorType(v.shape, "float64") for v in values]
        types[0] = TensorType((3, batch, 4), "float64")
        return optimize(b.build([b.emit(cell, *map(b.param, types))[0]]))

    np.testing.assert_array_equal(execute(block_of(-1), values)[0], execute(block_of(2), values)[0])
    with pytest.raises(ProgramError, match="must have one batch"):
        block_of(3)


def test_the_first_steps_of_radam_have_a_gradient_where_the_mean_square_is_zero():
    """They move by the mean alone: -learning_rate times the gradient in the first step."""
    s = Sketch()
    s.param("g", [0.0, 0.4])
    s.feed("p", [0.5, -0.3])
    for name in ("m", "v"):
        s.feed(name, [0.0, 0.0])
    s.feed("n", 0, "int64")
    names = ["loss_of", "m1", "v1", "n1"]
    s.op("radam", "p", "g", "m", "v", "n", out=names, learning_rate=0.25)
    s.total("loss_of")

    close(grads(s)["g"], [-0.25, -0.25], 1e-12)


@pytest.mark.parametrize(
    ("name", "slots", "wanted", "attrs"),
    [
        ("adam", 2, -0.25 / 0.5, {"epsilon": 0.5}),
        ("adamw", 2, -0.25 / 0.5, {"epsilon": 0.5}),
        ("nadam", 2, -0.25 / 0.5 * (0.9 * 0.1 / (1 - 0.9**2) + 1), {"epsilon": 0.5}),
        ("lamb", 2, -0.25 / 0.5, {"epsilon": 0.5, "weight_decay": 0.0}),
        ("adagrad", 1, -0.25 / 0.5, {"epsilon": 0.5}),
        ("decayed_adagrad", 1, -0.25 / 0.5, {"epsilon": 0.5}),
        ("ftrl", 2, 0.0, {"l1": 0.5}),
    ],
)
def test_the_first_step_of_an_optimizer_has_finite_gradients_where_the_gradient_is_zero(name, slots, wanted, attrs):
    """The root of a mean square of 0 has gradient 0, so that the gradient is that of the first mean."""
    s = Sketch()
    g, second = s.param("g", [0.0, 0.0]), s.param("v", [0.0, 0.0])
    s.feed("p", [0.0, 0.0])
    means = [s.feed("m", [0.0, 0.0])] if slots == 2 else []
    means = [second, *means] if name == "ftrl" else [*means, second]
    steps = [s.feed("n", 0, "int64")] if name not in ("adagrad", "decayed_adagrad", "ftrl") else []
    outputs = [f"out{i}" for i in range(1 + len(means) + len(steps))]
    s.op(name, "p", g, *means, *steps, out=outputs, learning_rate=0.25, **attrs)
    s.total("out0")

    found = grads(s)
    close(found["g"], [wanted] * 2, 1e-12)
    close(found["v"], [0.0, 0.0], 1e-12)
