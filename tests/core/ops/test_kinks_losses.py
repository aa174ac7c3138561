"""Edge cases of losses: probabilities of 0 and 1, masked classes, labels outside the classes, empty means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import CoreError
from core.ops.common.types import as_dtype
from core.runtime.native import native_interpreter
from core.runtime.reference import execute
from core.runtime.run import Run
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


def compiled(block: Block, args: list[Any]) -> list[Any]:
    return list(native_interpreter(block, CPU)(Run(), *args))


def gradient_with_seed(block: Block) -> Block:
    """The block from the parameters of `block` and a seed to the cotangents of its parameters, the first result's."""
    pulled = vjp(replace(block, results=block.results[:1]), block.params)
    return replace(pulled, results=pulled.results[1:])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("run", [execute, compiled])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("name", "slope"), [("huber_loss", 2.0), ("smooth_l1_loss", 1.0)])
def test_the_slope_of_a_robust_loss_is_bounded_where_the_difference_overflows(name, slope, dtype, run):
    kind = as_dtype(dtype)
    most = float(ml_dtypes.finfo(kind).max)
    x, label = (np.array(each, kind) for each in ([INF, -INF, most, -most, 0.5], [0.0, 0.0, -most, most, 0.25]))
    b = BlockBuilder()
    names = [b.param(TensorType((5,), dtype)) for _ in range(2)]
    loss = b.build([b.emit(name, *names, delta=2.0, reduction="none")])
    first = gradient_with_seed(loss)
    second = gradient_with_seed(first)
    one = np.ones(5, kind)

    with np.errstate(all="ignore"):
        value = run(optimize(loss), [x, label])[0]
        gradient = run(optimize(first), [x, label, one])[0]
        curvature, _, of_seed = run(optimize(second), [x, label, one, one])

    near = 0.25 * slope / 2.0
    assert value[0] == value[1] == INF and not np.isnan(value.astype("f8")).any()
    np.testing.assert_array_equal(gradient.astype("f8"), [slope, -slope, slope, -slope, near])
    np.testing.assert_array_equal(curvature.astype("f8"), [0, 0, 0, 0, slope / 2.0])
    np.testing.assert_array_equal(of_seed.astype("f8"), gradient.astype("f8"))
