"""Jacobians, Hessians and products with them in a program equal closed forms and differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import backpass_client as bp
from tests.backpass_client.builder.running import assert_gradients_agree_with_differences, run

X = np.array([0.2, -0.7, 1.3])
V = np.array([0.5, 2.0, -1.0])
CT = np.array([[1.0, -0.5], [0.25, 2.0], [0.0, 1.5]])
W = np.array([[0.3, -1.2], [0.8, 0.1], [-0.4, 0.9]])


def table(x, w):
    """[3, 2] from [n]."""
    return bp.tanh(bp.unsqueeze(x, axes=[1]) * w) * x.sum()


def differences(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, h: float = 1e-6) -> np.ndarray:
    """The Jacobian of `f` at x: [*value, *x]."""
    columns = [(f(x + h * e) - f(x - h * e)) / (2 * h) for e in np.eye(x.size).reshape(x.size, *x.shape)]
    return np.stack(columns, -1).reshape(*columns[0].shape, *x.shape)


def numpy_table(x: np.ndarray) -> np.ndarray:
    return np.tanh(x[:, None] * W) * x.sum()


def test_products_with_a_jacobian_equal_those_with_differences():
    @bp.program
    def products(x: bp.f64[3], v: bp.f64[3], ct: bp.f64[3, 2], w: bp.f64[3, 2]):
        value, pushed = bp.jvp(lambda x: table(x, w))(x, v)
        again, pulled = bp.vjp(lambda x: table(x, w))(x, ct)
        return {"value": value, "again": again, "pushed": pushed, "pulled": pulled}

    found = run(products, x=X, v=V, ct=CT, w=W)

    slopes = differences(numpy_table, X)
    np.testing.assert_allclose(found["value"], numpy_table(X))
    np.testing.assert_allclose(found["again"], numpy_table(X))
    np.testing.assert_allclose(found["pushed"], slopes @ V, rtol=1e-7)
    np.testing.assert_allclose(found["pulled"], np.tensordot(CT, slopes, 2), rtol=1e-7)


def test_a_jacobian_is_that_of_differences_for_each_argument():
    @bp.program
    def matrices(x: bp.f64[3], w: bp.f64[3, 2]):
        return {"by_x": bp.jacobian(table)(x, w), "by_w": bp.jacobian(table, argnum=1)(x, w)}

    found = run(matrices, x=X, w=W)

    assert matrices.outputs["by_x"] == bp.f64[3, 2, 3] and matrices.outputs["by_w"] == bp.f64[3, 2, 3, 2]
    np.testing.assert_allclose(found["by_x"], differences(numpy_table, X), rtol=1e-7)
    by_w = differences(lambda w: np.tanh(X[:, None] * w) * X.sum(), W)
    np.testing.assert_allclose(found["by_w"], by_w, rtol=1e-7, atol=1e-9)


def test_the_value_of_a_jacobian_may_be_a_number_or_have_an_open_size():
    @bp.program
    def slopes(x: bp.f64["n"]):
        return {"vector": bp.jacobian(lambda x: x * x * x.sum())(x), "number": bp.jacobian(lambda x: (x**3).sum())(x)}

    for x in (X, X[:1], X[:0]):
        found = run(slopes, x=x)

        np.testing.assert_allclose(found["vector"], np.diag(2 * x * x.sum()) + (x**2)[:, None])
        np.testing.assert_allclose(found["number"], 3 * x**2)


def test_a_hessian_and_its_products_follow_the_formula():
    f = lambda x: (bp.exp(x) * x).sum() + x[0] * x[1] * x[2]

    @bp.program
    def curved(x: bp.f64[3], v: bp.f64[3]):
        return {"matrix": bp.hessian(f)(x), "product": bp.hvp(f)(x, v)}

    found = run(curved, x=X, v=V)

    a, b, c = X
    expected = np.diag(np.exp(X) * (X + 2)) + np.array([[0, c, b], [c, 0, a], [b, a, 0]])
    np.testing.assert_allclose(found["matrix"], expected)
    np.testing.assert_allclose(found["product"], expected @ V)


def test_products_keep_the_structure_of_the_argument():
    @bp.program
    def structured(x: bp.f64[3], v: bp.f64[3], s: bp.f64):
        f = lambda p: (p["a"] ** 2 * p["b"]).sum()
        weights, along = {"a": x, "b": s}, {"a": v, "b": s * 2}
        _, pushed = bp.jvp(lambda p: {"sum": p["a"].sum(), "all": (p["a"] * p["b"], p["b"])})(weights, along)
        return {
            **bp.hvp(f)(weights, along),
            "sum": pushed["sum"],
            "first": pushed["all"][0],
            "second": pushed["all"][1],
        }

    found = run(structured, x=X, v=V, s=0.7)

    np.testing.assert_allclose(found["a"], 2 * 0.7 * V + 2 * X * 1.4)
    np.testing.assert_allclose(found["b"], 2 * X @ V)
    np.testing.assert_allclose(found["sum"], V.sum())
    np.testing.assert_allclose(found["first"], V * 0.7 + X * 1.4)
    np.testing.assert_allclose(found["second"], 1.4)


def test_a_tangent_may_name_the_parts_of_its_argument_in_any_order():
    @bp.program
    def named(x: bp.f64[3], v: bp.f64[3], u: bp.f64[3]):
        f = lambda p: (p["a"] ** 2 * p["b"]).sum()
        return {"slope": bp.jvp(f)({"a": x, "b": v}, {"b": u, "a": v})[1]}

    found = run(named, x=X, v=V, u=X + 1)

    np.testing.assert_allclose(found["slope"], (2 * X * V * V + X**2 * (X + 1)).sum())


def test_a_jacobian_can_be_trained_and_stands_in_loops():
    @bp.program
    def flow(x: bp.f64[2], n: bp.i64):
        w = bp.parameter("w", bp.f64[2, 2])
        f = lambda z: bp.tanh(z @ w)

        def trip(z, total, i):
            _, moved = bp.jvp(f)(z, z * z)
            return f(z) + 0.1 * moved, total + bp.det(bp.jacobian(f)(z)), i + 1

        _, total, _ = bp.while_loop(lambda z, total, i: i < n, trip, (x, bp.constant(0.0, dtype="float64"), 0))
        return total + (bp.hessian(lambda z: (f(z) ** 3).sum())(x) ** 2).sum()

    w = np.array([[0.9, -0.3], [0.4, 1.1]])
    assert_gradients_agree_with_differences(flow, {"x": X[:2], "n": 3, "w": w}, rtol=2e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x, y: bp.jvp(bp.sin)(x, y), "the tangent must have the shape of the argument"),
        (lambda x, y: bp.vjp(bp.sin)(x, y), "the cotangent must have the shape of the value"),
        (lambda x, y: bp.hvp(lambda x: x.sum())(x, y), "the vector must have the shape of the argument"),
        (lambda x, y: bp.hvp(lambda p: p[0].sum())((x, y), x), "the structure of the argument"),
        (lambda x, y: bp.jvp(lambda p: p["a"])({"a": x}, {"b": x}), r"\(a\), not \(b\)"),
        (lambda x, y: bp.jvp(bp.sin)(x), "then a tangent: got 1 arguments"),
        (lambda x, y: bp.jacobian(lambda p: p[0])((x, y)), "the argument must be one array, not a tuple"),
        (lambda x, y: bp.jacobian(lambda x: (x, x))(x), "the value must be one array, not a tuple"),
        (lambda x, y: bp.jacobian(bp.sin, argnum=1)(x), "cannot differentiate argument 1"),
        (lambda x, y: bp.jacobian(lambda z: bp.unsqueeze(z, axes=[1]) * y)(bp.feed("z", bp.f64["n"])), "must be known"),
    ],
)
def test_operands_that_do_not_fit_are_refused(wrong, message):
    def program(x: bp.f64[3], y: bp.f64[2]):
        return {"out": wrong(x, y)}

    with pytest.raises(TypeError, match=message):
        bp.program(program)
