"""Loops, branches and functions of built programs: values and gradients equal those of Python's own control flow."""

from __future__ import annotations

import numpy as np
import pytest

import backpass_client as bp
from tests.backpass_client.builder.running import assert_gradients_agree_with_differences, gradients, run
from tests.backpass_client.builder.test_program import refused

W = np.array([0.5, 0.7])


def test_a_while_loop_makes_as_many_trips_as_its_condition_says():
    @bp.program
    def power(n: bp.i64):
        w = bp.parameter("w", bp.f64[2])
        h, i = bp.while_loop(lambda h, i: i < n, lambda h, i: (h * w, i + 1), (bp.ones_like(w), 0))
        return {"loss": h.sum(), "trips": i}

    for n in (0, 1, 3):
        values = run(power, w=W, n=n)
        _, found = gradients(power, {"w": W, "n": n})
        assert values["trips"] == n
        np.testing.assert_allclose(values["loss"], (W**n).sum())
        np.testing.assert_allclose(found["w"], n * W ** max(n - 1, 0))


def test_carried_values_are_replaced_all_at_once():
    @bp.program
    def fibonacci(n: bp.i64):
        a, b, _ = bp.while_loop(lambda a, b, i: i < n, lambda a, b, i: (b, a + b, i + 1), (0, 1, 0))
        return {"a": a, "b": b}

    assert [int(run(fibonacci, n=n)["a"]) for n in range(8)] == [0, 1, 1, 2, 3, 5, 8, 13]

    @bp.program
    def swapped(n: bp.i64, x: bp.f64[2], y: bp.f64[2]):
        found = bp.while_loop(
            lambda s: s["i"] < n, lambda s: {"i": s["i"] + 1, "x": s["y"], "y": s["x"]}, {"i": 0, "x": x, "y": y}
        )
        return {"out": found["x"]}

    assert run(swapped, n=3, x=[1, 2], y=[3, 4])["out"].tolist() == [3, 4]
    assert run(swapped, n=2, x=[1, 2], y=[3, 4])["out"].tolist() == [1, 2]


def test_a_carried_value_may_grow():
    @bp.program
    def doubled(n: bp.i64):
        w = bp.parameter("w", bp.f64[2])
        h, _ = bp.while_loop(lambda h, i: i < n, lambda h, i: (bp.concat([h, h]), i + 1), (w * w, 0))
        return {"loss": (h * bp.cumsum(bp.ones_like(h))).sum(), "h": h}

    assert str(doubled.outputs["h"]) == "float64[?]"
    loss, found = gradients(doubled, {"w": [1.0, 2.0], "n": 3})
    weights = np.arange(1.0, 17).reshape(8, 2).sum(0)
    np.testing.assert_allclose(found["w"], 2 * np.array([1.0, 2.0]) * weights)
    assert loss == (np.array([1.0, 4.0]) * weights).sum()


def test_a_body_traced_again_declares_its_parameters_once():
    def f(n: bp.i64):
        layer = bp.nn.Linear(2)

        def body(h, i):
            return bp.concat([layer(h), bp.parameter("extra", bp.f32[1, 2])]), i + 1

        h, _ = bp.while_loop(lambda h, i: i < n, body, (bp.fill_constant(shape=[1, 2]), 0))
        return {"h": h, "again": layer(h)}

    assert list(bp.program(f).parameters) == ["while.linear.weight", "while.linear.bias", "while.extra"]


def test_the_condition_may_hold_loops_and_branches_of_its_own():
    @bp.program
    def f(limit: bp.f64):
        w = bp.parameter("w", bp.f64[()])

        def small(h):
            twice, _ = bp.while_loop(lambda x, i: i < 2, lambda x, i: (x * 2.0, i + 1), (h, 0))
            return bp.cond(twice > 0.0, lambda: twice < limit, lambda: twice < 0.0)

        return bp.while_loop(small, lambda h: h * w, w)

    assert run(f, w=3.0, limit=100.0)["loss"] == 27.0
    assert gradients(f, {"w": 3.0, "limit": 100.0})[1]["w"] == 27.0


def test_loops_nest_and_read_what_is_around_them():
    @bp.program
    def f(n: bp.i64):
        w = bp.parameter("w", bp.f64[2])
        x = w * 2.0

        def outer(h, i):
            inner, _ = bp.while_loop(lambda g, j: j < i + 1, lambda g, j: (g * x + h, j + 1), (h, 0))
            return bp.tanh(inner * w), i + 1

        h, _ = bp.while_loop(lambda h, i: i < n, outer, (x, 0))
        return h.sum()

    h, x = 2 * W, 2 * W
    for i in range(3):
        g = h
        for _ in range(i + 1):
            g = g * x + h
        h = np.tanh(g * W)
    np.testing.assert_allclose(run(f, w=W, n=3)["loss"], h.sum())
    assert_gradients_agree_with_differences(f, {"w": W, "n": 3})


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_is_a_python_loop_over_rows(reverse: bool):
    def f(x: bp.f64["time", 2], reverse):
        w = bp.parameter("w", bp.f64[2])

        def step(h, row):
            h = bp.tanh(h * w + row)
            return h, {"h": h, "twice": row * 2.0}

        last, rows = bp.scan(step, bp.zeros_like(w), x, reverse=reverse)
        return {"loss": (rows["h"] * rows["twice"]).sum() + last.sum(), "rows": rows["h"], "last": last}

    built = bp.program(f, reverse=reverse)
    x = np.random.default_rng(0).normal(size=(4, 2))
    values = run(built, w=W, x=x)

    h, rows = np.zeros(2), np.zeros((4, 2))
    for t in range(4)[:: -1 if reverse else 1]:
        h = rows[t] = np.tanh(h * W + x[t])
    np.testing.assert_allclose(values["rows"], rows)
    np.testing.assert_allclose(values["last"], h)
    assert str(built.outputs["rows"]) == "float64[time, 2]"
    assert_gradients_agree_with_differences(built, {"w": W, "x": x})


def test_scans_swap_states_pass_them_through_and_need_no_sequence():
    @bp.program
    def f(x: bp.f64[3]):
        w = bp.parameter("w", bp.f64[()])
        (a, b, c), seen = bp.scan(lambda s, e: ((s[1], s[0], s[2]), (s[0], e, w)), (w, w * 2.0, w * 3.0), x)
        return {"a": a, "b": b, "c": c, "seen": seen[0], "elements": seen[1], "w_of_each": seen[2]}

    values = run(f, w=1.0, x=[7, 8, 9])
    assert [float(values[n]) for n in "abc"] == [2.0, 1.0, 3.0]
    assert values["seen"].tolist() == [1.0, 2.0, 1.0]
    assert values["elements"].tolist() == [7.0, 8.0, 9.0]
    assert values["w_of_each"].tolist() == [1.0, 1.0, 1.0]

    @bp.program
    def powers():
        w = bp.parameter("w", bp.f64[()])
        last, rows = bp.scan(lambda h, _: (h * w, h), bp.ones_like(w), length=4)
        nothing, only = bp.scan(lambda _, __: (None, w), None, length=2)
        assert nothing is None
        return {"loss": last + rows.sum() + only.sum()}

    assert gradients(powers, {"w": 2.0})[1]["w"] == 4 * 8 + (1 + 4 + 12) + 2


def test_one_branch_runs_and_gives_its_gradient():
    @bp.program
    def f(c: bp.bool_):
        w, v = bp.parameter("w", bp.f64[2]), bp.parameter("v", bp.f64[2])
        y = bp.cond(c, lambda w: bp.tanh(w) * v, lambda w: w * w, w)
        return y.sum()

    v = np.array([1.0, 2.0])
    _, taken = gradients(f, {"w": W, "v": v, "c": True})
    _, other = gradients(f, {"w": W, "v": v, "c": False})

    np.testing.assert_allclose(taken["w"], [0.78644773, 1.26947918])  # case 38 of docs/semantics.md
    np.testing.assert_allclose(taken["v"], [0.46211716, 0.60436778])
    np.testing.assert_allclose(other["w"], 2 * W)
    assert other["v"].tolist() == [0.0, 0.0]


def test_branches_return_outer_symbols_constants_structures_and_other_sizes():
    @bp.program
    def f(c: bp.bool_):
        w = bp.parameter("w", bp.f64[2])
        found = bp.cond(
            c,
            lambda: {"a": w, "b": bp.constant(1.0, bp.f64), "c": bp.concat([w, w])},
            lambda: {"a": w * 3.0, "b": w.sum(), "c": w},
        )
        assert str(found["c"].type) == "float64[?]"
        return {"loss": found["a"].sum() + found["b"], "joined": found["c"]}

    assert run(f, w=W, c=True)["joined"].tolist() == [*W, *W]
    assert gradients(f, {"w": W, "c": True})[1]["w"].tolist() == [1.0, 1.0]
    assert gradients(f, {"w": W, "c": False})[1]["w"].tolist() == [4.0, 4.0]


def test_a_switch_takes_the_branch_of_its_index_or_the_default():
    def f(i: bp.i64, default=None):
        w = bp.parameter("w", bp.f64[2])
        return bp.switch(i, [lambda: w, lambda: w * 2.0, lambda: w * 3.0], default=default and (lambda: w * 9.0)).sum()

    without, with_default = bp.program(f), bp.program(f, default=True)
    assert [gradients(without, {"w": W, "i": i})[1]["w"][0] for i in (0, 1, 2, 7)] == [1, 2, 3, 3]
    assert [gradients(with_default, {"w": W, "i": i})[1]["w"][0] for i in (0, 1, 2, 7, -1)] == [1, 2, 3, 9, 9]


def test_safe_where_has_no_nan_from_the_other_side():
    @bp.program
    def f():
        w = bp.parameter("w", bp.f64[2])
        return bp.safe_where(w > 0.0, lambda: bp.sqrt(w), lambda: w * 0.0).sum()

    assert gradients(f, {"w": [-1.0, 4.0]})[1]["w"].tolist() == [0.0, 0.25]


def test_loops_and_branches_nest_in_both_orders():
    @bp.program
    def f(n: bp.i64, c: bp.bool_):
        w = bp.parameter("w", bp.f64[2])
        layer = bp.nn.Linear(2, name="layer")

        def body(h, i):
            even = bp.equal(bp.mod(i, 2), 0)
            h = bp.cond(
                even, lambda: bp.tanh(layer(h)), lambda: bp.switch(i, [lambda: h, lambda: h * w], default=lambda: w)
            )
            return h, i + 1

        def loop(w):
            return bp.while_loop(lambda h, i: i < n, body, (w, 0))[0]

        return bp.cond(c, loop, lambda w: w, w).sum()

    values = {"w": W, "n": 4, "layer.weight": [[0.1, 0.2], [0.3, -0.4]], "layer.bias": [0.5, 0.6]}
    values = {name.replace("layer", "cond.true.while.cond.true.layer"): value for name, value in values.items()}
    assert set(f.parameters) == values.keys() - {"n"}
    for c in (True, False):
        assert_gradients_agree_with_differences(f, {**values, "c": c})


def test_a_type_declared_in_an_inner_block_changes_no_value():
    @bp.program
    def f(c: bp.bool_):
        w = bp.parameter("w", bp.f64[2])
        body = lambda h, i: (bp.typed(bp.typed(h, bp.f64[2]) * w, bp.f64[2]), i + 1)
        h, _ = bp.while_loop(lambda h, i: i < 3, body, (w, 0))
        return bp.cond(c, lambda: bp.typed(h * w, bp.f64[2]), lambda: bp.typed(h, bp.f64[2])).sum()

    np.testing.assert_allclose(gradients(f, {"w": W, "c": True})[1]["w"], 5 * W**4)
    np.testing.assert_allclose(gradients(f, {"w": W, "c": False})[1]["w"], 4 * W**3)


def test_a_branch_may_return_one_value_twice_and_one_that_a_loop_in_it_reads():
    @bp.program
    def f(c: bp.bool_):
        w = bp.parameter("w", bp.f64[()])

        def true():
            y = w * w
            h = bp.while_loop(lambda h: h < y, lambda h: h * 2.0, w)
            return y, y, h

        a, b, h = bp.cond(c, true, lambda: (w, w * 3.0, w))
        return {"loss": a + 10.0 * b + 100.0 * h, "a": a}

    assert gradients(f, {"w": 3.0, "c": True}) == (9 + 90 + 100 * 12.0, {"w": 6 + 60 + 400.0})
    assert gradients(f, {"w": 3.0, "c": False}) == (3 + 90 + 300.0, {"w": 1 + 30 + 100.0})


# --- functions ---------------------------------------------------------------------------------------------------


@bp.function
def hard(x):
    return bp.sign(x)


@hard.gradient
def straight(x, result, ct):
    return ct


def test_a_function_has_the_gradient_that_it_is_given():
    @bp.program
    def f(x: bp.f64[2]):
        return (hard(bp.parameter("w", bp.f64[2])) * x).sum()

    assert gradients(f, {"w": [-2, 3], "x": [1, 10]})[1]["w"].tolist() == [1.0, 10.0]


def test_a_function_without_a_rule_has_the_gradient_of_its_ops():
    @bp.function
    def both(x, y):
        return {"product": x * y, "loop": bp.while_loop(lambda h: h < 100.0, lambda h: h * y, x)}

    @bp.program
    def f():
        x, y = bp.parameter("x", bp.f64[()]), bp.parameter("y", bp.f64[()])
        first, second = both(x, y), both(y, x)
        return first["product"] + second["loop"]

    built = f.document()["functions"]
    assert list(built) == ["both"]  # called twice with the same types
    assert_gradients_agree_with_differences(f, {"x": 3.0, "y": 1.5})


def test_a_function_is_made_for_each_combination_of_types():
    @bp.program
    def f(x: bp.f32[3], y: bp.f64["n", 2]):
        return {"a": hard(x), "b": hard(y)}

    assert list(f.document()["functions"]) == ["hard", "hard_gradient", "hard_1", "hard_1_gradient"]
    assert str(f.outputs["b"]) == "float64[n, 2]"


def test_a_function_in_a_loop_in_a_program_with_several_operands_and_none_as_cotangent():
    @bp.function
    def scaled(x, k):
        return x * k, x + k

    @scaled.gradient
    def rule(x, k, product, total, ct_product, ct_total):
        return ct_product * k * 10.0 + ct_total, None

    @bp.program
    def f():
        w = bp.parameter("w", bp.f64[()])
        h, _ = bp.while_loop(lambda h, i: i < 2, lambda h, i: (scaled(h, w)[0], i + 1), (w, 0))
        return h

    assert gradients(f, {"w": 3.0})[1]["w"] == (3.0 * 10) ** 2


# --- mistakes ----------------------------------------------------------------------------------------------------


def test_mistakes_in_control_flow_are_refused_where_they_are_written():
    leaked = []
    w = bp.f64[2]
    refused(
        lambda w=w: bp.while_loop(lambda h: h.sum() < 9.0, lambda h: bp.cast(h, dtype="float32"), w),
        r"the carried value 'h' is float64\[2\] before a trip and float32\[2\] after it: its dtype and rank must stay",
    )
    refused(
        lambda w=w: bp.while_loop(lambda h: h < 9.0, lambda h: h, w), "the condition of while_loop must be one bool"
    )
    refused(
        lambda w=w: bp.while_loop(lambda h: h.sum() < 9.0, lambda h: (h, h), w), "must return new values in the stru"
    )
    refused(
        lambda w=w: bp.while_loop(lambda h: h.sum() < 9.0, lambda h: leaked.append(h) or h + 1.0, w) * leaked[0],
        "outside of the body of a while_loop",
    )
    refused(
        lambda w=w: bp.while_loop(lambda h: leaked.append(h) or h.sum() < 9.0, lambda h: h * leaked[-1], w),
        "outside of the condition of a while_loop",
    )
    refused(lambda w=w: bp.cond(w.sum() > 0.0, lambda: w, lambda: w.sum()), r"the branches of cond return 'result' as")
    refused(lambda w=w: bp.cond(w.sum() > 0.0, lambda: (w, w), lambda: w), "false of cond returns")
    refused(lambda w=w: bp.cond(w.sum() > 0.0, lambda: None, lambda: w), "true of cond returns nothing")
    refused(lambda w=w: bp.cond(w.sum() > 0.0, w, -w), "true of cond must be a function, not <w: .* bp.where chooses")
    refused(lambda w=w: bp.switch(0, [bp.relu, w], w), "branch 1 of switch must be a function, not <w: ")
    refused(lambda w=w: bp.while_loop(w.sum() < 9.0, lambda h: h, w), "the condition of while_loop must be a function")
    refused(lambda w=w: bp.scan(w, 0.0, w), "the body of scan must be a function")
    refused(lambda w=w: bp.cond(w > 0.0, lambda: w, lambda: w), "the condition of cond must be one bool")
    refused(lambda w=w: bp.switch(w, [lambda: w]), "the index of switch must be one integer")
    refused(lambda w=w: bp.scan(lambda s, e: (s, e), 0.0), "scan needs sequences or a length")
    refused(lambda w=w: bp.scan(lambda s, e: s, 0.0, w), r"the body of scan must return \(new states, outputs\)")
    refused(lambda w=w: bp.scan(lambda s, e: (s, e), 0.0, (w, bp.concat([w, w]))), "differ in length: 2 and 4")
    refused(lambda w=w: getattr(bp, "if_else")(w), "if_else has inner blocks: write bp.while_loop")  # noqa: B009
    refused(
        lambda w=w: bp.cond(w.sum() > 0, lambda: bp.update(bp.state("s", bp.f64[()]), 1.0), lambda: w.sum()), "update"
    )


def test_mistakes_in_functions_are_refused_where_they_are_written():
    w = bp.f64[2]
    outer = []
    refused(
        lambda w=w: outer.append(w) or bp.function(lambda x: x * outer[0])(w),
        "sees only its own operands: pass it as one",
    )
    refused(lambda w=w: bp.function(lambda x: bp.parameter("p", [2]) * x)(w), "cannot declare the parameter 'p'")
    refused(lambda w=w: bp.function(lambda x: bp.dropout(x))(w), "cannot draw random numbers")
    refused(lambda w=w: bp.function(lambda x: hard(x))(w), "'hard' has a gradient of its own and cannot be called in")
    wrong = bp.function(lambda x, y: x * y)
    wrong.gradient(lambda x, y, r, ct: ct)
    refused(lambda w=w: wrong(w, w), "returns 1 cotangents for 2 operands")
    other = bp.function(lambda x: x.sum())
    other.gradient(lambda x, r, ct: ct)
    refused(lambda w=w: other(w), r"the cotangent of 'x' must be float64\[2\], not float64\[\]")
