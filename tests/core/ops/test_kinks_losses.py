"""Edge cases of losses: probabilities of 0 and 1, masked classes, labels outside the classes, empty means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.ir.errors import CoreError
from tests.programs import Sketch, close, grads, step


def result_and_gradients(type: str, *values: Any, **attrs: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """The result of one op, and the gradients of its sum."""
    s = Sketch()
    names = []
    for i, value in enumerate(values):
        array = np.asarray(value)
        leaf = s.param if array.dtype.kind == "f" else s.feed
        names.append(leaf(f"x{i}", array, str(array.dtype)))
    out = s.op(type, *names, **attrs)
    s.total(out)
    return step(s, [out]).fetched[out], grads(s)


INF = np.inf


@pytest.mark.parametrize(
    ("type", "values", "attrs", "wanted"),
    [
        ("bce_loss", ([0.0, 1.0, 0.5], [0.0, 1.0, 1.0]), {"reduction": "sum"}, [1, -1, -2]),
        ("cross_entropy", ([[0.0, 1.0]], [1]), {}, [[0, -1]]),
        ("cross_entropy", ([[0.0, 1.0]], [[0.0, 1.0]]), {"soft_label": True}, [[0, -1]]),
        ("softmax_with_cross_entropy", ([[-INF, 0.0, 0.0]], [1]), {}, [[0, -0.5, 0.5]]),
        (
            "softmax_with_cross_entropy",
            ([[-INF, 0.0, 0.0]], [[0.0, 1.0, 0.0]]),
            {"soft_label": True},
            [[0, -0.5, 0.5]],
        ),
        ("softmax_with_cross_entropy", ([[1.0, 2.0]], [-100]), {"reduction": "mean"}, [[0, 0]]),
        ("nll_loss", ([[-1.0, -2.0]], [-100]), {}, [[0, 0]]),
        ("nll_loss", ([[-INF, 0.0]], [-100]), {}, [[0, 0]]),
        ("sigmoid_focal_loss", ([50.0, -50.0], [1.0, 0.0]), {"gamma": 0.5}, [0, 0]),
        ("cos_sim", ([[0.0, 0.0]], [[1.0, 2.0]]), {}, [[0, 0]]),
        ("hinge_loss", ([1.0, -1.0], [1.0, 0.0]), {}, [0, 0]),
        ("margin_rank_loss", ([1.0], [2.0], [2.0]), {}, [0]),
        ("l1_loss", ([2.0, 3.0], [2.0, 2.0]), {"reduction": "sum"}, [0, 1]),
        ("huber_loss", ([1.0, -1.0], [0.0, 0.0]), {}, [1, -1]),
        ("kldiv_loss", ([-1.0, -2.0], [0.0, 0.5]), {"reduction": "sum"}, [0, -0.5]),
    ],
)
def test_the_gradient_is_finite_and_equals_the_formula(type, values, attrs, wanted):
    out, found = result_and_gradients(type, *(np.asarray(v) for v in values), **attrs)

    assert np.isfinite(out).all()
    close(found["x0"], wanted, 1e-12)


@pytest.mark.parametrize(
    ("type", "rows", "label"),
    [
        ("nll_loss", 1, [-1]),
        ("nll_loss", 1, [3]),
        ("cross_entropy", 1, [-1]),
        ("cross_entropy", 2, [0]),
        ("softmax_with_cross_entropy", 1, [3]),
        ("softmax_with_cross_entropy", 2, [[0, 1]]),
        ("accuracy", 2, [[0, 1], [1, 0]]),
    ],
)
def test_labels_outside_the_classes_or_of_wrong_shape_are_refused(type, rows, label):
    with pytest.raises(CoreError) as error:
        result_and_gradients(type, np.full((rows, 3), 0.25), np.asarray(label))
    assert error.value.code in ("index_out_of_range", "shape_mismatch")


@pytest.mark.parametrize("size", [1e-30, 1e-4, 1e4, 1e30])
def test_similarity_does_not_depend_on_the_length_of_vectors(size):
    x = np.array([[3.0, 4.0]], "float32")

    out, found = result_and_gradients("cos_sim", x * np.float32(size), x[:, ::-1].copy())

    close(out, [0.96], 1e-6)
    close(found["x0"] * size, [[0.0448, -0.0336]], 1e-6)


def test_a_label_longer_than_its_sequence_has_an_infinite_loss_and_no_gradient():
    x = np.log(np.full((2, 1, 3), 1 / 3))

    for forgiving, wanted in ((False, INF), (True, 0.0)):
        out, found = result_and_gradients(
            "ctc_loss",
            x,
            np.array([[1, 1]]),
            np.array([2]),
            np.array([2]),
            reduction="none",
            zero_infinity=forgiving,
        )

        assert out[0] == wanted
        close(found["x0"], np.zeros((2, 1, 3)))


def test_an_impossible_class_leaves_other_paths_finite():
    x = np.log(np.array([[[0.5, 0.5]], [[1e-300, 1.0]]]))
    x[1, 0, 0] = -INF

    out, found = result_and_gradients("ctc_loss", x, np.array([[1]]), np.array([2]), np.array([1]), reduction="none")

    close(out, [0.0], 1e-12)
    close(found["x0"], [[[-0.5, -0.5]], [[0.0, -1.0]]], 1e-12)


@pytest.mark.parametrize(
    ("label", "times", "sizes"),
    [
        ([[0]], [2], [1]),
        ([[3]], [2], [1]),
        ([[-1]], [2], [1]),
        ([[1]], [3], [1]),
        ([[1]], [2], [2]),
        ([[1]], [2], [-1]),
    ],
)
def test_ctc_refuses_invalid_labels_and_lengths(label, times, sizes):
    with pytest.raises(CoreError) as error:
        result_and_gradients("ctc_loss", np.zeros((2, 1, 3)), np.array(label), np.array(times), np.array(sizes))
    assert error.value.code in ("index_out_of_range", "shape_mismatch")


def test_the_gradient_of_a_chain_is_the_label_marginal_minus_the_observed_label():
    emission, transition = np.log(np.array([[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]])), np.zeros((5, 3))

    _, found = result_and_gradients("linear_chain_crf", emission, transition, np.array([[0, 2]]))

    close(found["x0"], [[[-0.5, 0.25, 0.25], [0.1, 0.2, -0.3]]], 1e-12)
    close(found["x1"][:2], [[-0.5, 0.25, 0.25], [0.1, 0.2, -0.3]], 1e-12)
