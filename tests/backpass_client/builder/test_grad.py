"""`grad` in a program: derivatives that the program computes with."""

from __future__ import annotations

import numpy as np
import pytest

import backpass_client as bp
import core
import core.ir.size
from core.ir.errors import InvalidProgram
from tests.backpass_client.builder.running import assert_gradients_agree_with_differences, run
from tests.backpass_client.builder.test_program import refused

X = np.array([0.2, -0.7, 1.3])


def test_derivatives_of_derivatives_follow_the_formulas():
    @bp.program
    def sine(x: bp.f64["n"]):
        slope = bp.grad(lambda x: bp.sin(2 * x).sum())
        value, first = bp.value_and_grad(lambda x: bp.sin(2 * x).sum())(x)
        return {"value": value, "first": first, "second": bp.grad(lambda x: slope(x).sum())(x)}

    found = run(sine, x=X)

    np.testing.assert_allclose(found["value"], np.sin(2 * X).sum())
    np.testing.assert_allclose(found["first"], 2 * np.cos(2 * X))
    np.testing.assert_allclose(found["second"], -4 * np.sin(2 * X))
    assert sine.outputs["second"] == bp.f64["n"]


def test_a_function_may_return_more_than_its_number():
    @bp.program
    def more(x: bp.f64[3]):
        f = lambda x: ((bp.exp(x) * x).sum(), {"twice": 2 * x})
        (value, aux), slope = bp.value_and_grad(f, has_aux=True)(x)
        alone, again = bp.grad(f, has_aux=True)(x)
        return {"value": value, "twice": aux["twice"], "slope": slope, "alone": alone, "again": again["twice"]}

    found = run(more, x=X)

    np.testing.assert_allclose(found["value"], (np.exp(X) * X).sum())
    np.testing.assert_allclose(found["slope"], np.exp(X) * (1 + X))
    np.testing.assert_array_equal(found["alone"], found["slope"])
    np.testing.assert_array_equal(found["twice"], 2 * X)
    np.testing.assert_array_equal(found["again"], 2 * X)
    with pytest.raises(TypeError, match="with has_aux=True f returns a tuple of its scalar and anything else"):
        bp.program(lambda x=bp.f64[3]: bp.grad(lambda x: x.sum(), has_aux=True)(x))


def test_a_gradient_has_the_structure_of_its_argument():
    @bp.program
    def line(x: bp.f64[3]):
        weights = {"w": bp.parameter("w", bp.f64), "pair": (bp.parameter("b", bp.f64[3]), bp.parameter("c", bp.f64))}
        slopes = bp.grad(lambda p, x: (p["w"] * x * p["pair"][0]).sum() + p["pair"][1] ** 2)(weights, x)
        by_x, by_w = bp.grad(lambda x, w: (w * x * x).sum(), argnum=(0, 1))(x, weights["w"])
        b, c = slopes["pair"]
        return {"dw": slopes["w"], "db": b, "dc": c, "dx": by_x, "again": by_w}

    b = np.array([1.0, 2.0, 3.0])
    found = run(line, x=X, w=0.5, b=b, c=4.0)

    expected = {"dw": (X * b).sum(), "db": 0.5 * X, "dc": 8.0, "dx": X, "again": (X * X).sum()}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, err_msg=name)


def test_gradients_flow_through_steps_of_gradient_descent_in_a_loop():
    @bp.program
    def learned(n: bp.i64, x: bp.f64["k"], y: bp.f64["k"]):
        weights = {"a": bp.parameter("a", bp.f64[2]), "b": bp.parameter("b", bp.f64)}

        def loss(w):
            def trip(h, i):
                return bp.tanh(h * w["a"][0] + x * w["a"][1]), i + 1

            h, _ = bp.while_loop(lambda h, i: i < 3, trip, (x, 0))
            return ((h + w["b"] - y) ** 2).mean()

        def descent(w, i):
            slopes = bp.grad(loss)(w)
            return {name: w[name] - 0.1 * slopes[name] for name in w}, i + 1

        weights, _ = bp.while_loop(lambda w, i: i < n, descent, (weights, 0))
        return loss(weights)

    values = {"x": X, "y": np.array([0.5, 0.1, 0.2]), "a": np.array([0.3, -0.7]), "b": np.array(0.2)}
    losses = []
    for n in (0, 1, 3):
        losses.append(float(run(learned, n=n, **values)["loss"]))
        assert_gradients_agree_with_differences(learned, {"n": n, **values})
    assert losses == sorted(losses, reverse=True)


def test_a_random_mask_is_drawn_once_for_a_value_and_its_gradient():
    @bp.program
    def masked(x: bp.f64[64]):
        value, slope = bp.value_and_grad(lambda x: bp.dropout(x, p=0.5).sum())(x)
        return {"value": value, "by_slope": (slope * x).sum(), "kept": slope}

    found = run(masked, x=np.arange(1.0, 65.0))

    np.testing.assert_allclose(found["value"], found["by_slope"])
    assert 10 < np.count_nonzero(found["kept"]) < 54


def test_an_argument_that_the_function_ignores_has_a_gradient_of_zeros():
    @bp.program
    def ignoring(x: bp.f64[3]):
        return {"slope": bp.grad(lambda x: bp.parameter("w", bp.f64))(x)}

    np.testing.assert_array_equal(run(ignoring, x=X, w=1.0)["slope"], np.zeros(3))


def test_a_derivative_in_a_branch_or_a_function_is_that_of_the_taken_side():
    @bp.function
    def slope(x):
        return bp.grad(lambda x: (x**3).sum())(x)

    @bp.program
    def chosen(x: bp.f64[3], up: bp.bool_):
        w = bp.parameter("w", bp.f64[3])
        picked = bp.cond(up, lambda: bp.grad(lambda v: (v * v * w).sum())(x * w), lambda: slope(x * w))
        return (picked * w).sum()

    w = np.array([0.5, 1.5, -2.0])
    np.testing.assert_allclose(run(chosen, x=X, up=True, w=w)["loss"], (2 * X * w * w * w).sum())
    np.testing.assert_allclose(run(chosen, x=X, up=False, w=w)["loss"], (3 * X**2 * w**3).sum())
    for up in (True, False):
        assert_gradients_agree_with_differences(chosen, {"x": X, "up": up, "w": w})


def test_mistakes_are_refused_where_they_are_written():
    refused(lambda x=bp.f32[3]: bp.grad(bp.tanh)(x), "must return one number")
    refused(lambda x=bp.i64[3]: bp.grad(lambda x: bp.cast(x, dtype="float32").sum())(x), "only floating-point values")
    with pytest.raises(TypeError, match="cannot differentiate argument 1"):
        bp.program(lambda x=bp.f32[3]: bp.grad(lambda x: x.sum(), argnum=1)(x))


def read_error(built: bp.BuiltProgram) -> str:
    with pytest.raises(InvalidProgram) as refusal:
        core.read(built.document())
    return str(refusal.value)


def test_an_input_from_outside_of_a_block_is_refused():
    def looped(x=bp.f64[3]):
        square = x * x
        trip = lambda total: total + bp.gradients(targets=[(square * x).sum()], inputs=[x])[0]
        return bp.while_loop(lambda total: total.sum() < 10, trip, bp.zeros_like(x))

    assert "enters this block from outside" in read_error(bp.program(looped))


def test_derivatives_that_make_a_program_too_large_are_refused(monkeypatch):
    monkeypatch.setattr(core.ir.size, "EXPANDED_OPS", 2000)

    def nested(x=bp.f64):
        f = lambda x: bp.sin(bp.exp(x)) * x
        for _ in range(25):
            f = bp.grad(f)
        return f(x)

    assert "too large after expansion" in read_error(bp.program(nested))
