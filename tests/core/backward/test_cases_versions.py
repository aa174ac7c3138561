"""Cases 14-28, 42-53 and 65 of docs/semantics.md: stopped values, several inputs, names with several versions."""

from __future__ import annotations

import numpy as np
import pytest

from core.backward.append_backward import append_backward, gradients
from core.wire import read
from tests.programs import Sketch, check, close, complex_step, grads, step

W, X = np.array([0.5, 0.7]), np.array([1.0, 2.0])


def base() -> Sketch:
    s = Sketch()
    s.param("w", W)
    s.param("x", X)
    return s


# --- straight lines --------------------------------------------------------------------------------------------


def test_14_a_stopped_value_counts_as_a_constant_of_its_own_value():
    s = base()
    s.total(s.op("mul", "w", s.op("stop_gradient", s.op("mul", "w", "x"))))

    close(grads(s)["w"], W * X)
    assert step(s).missing.keys() == {"x"}
    s.blocks[0]["ops"][1] = s.blocks[0]["ops"][1] | {"type": "assign"}
    close(grads(s)["w"], 2 * W * X)


def test_23_inputs_may_be_equal_repeated_or_depend_on_each_other():
    s = base()
    s.op("square", "w", out="y")
    s.op("tanh", s.op("mul", "y", "x"), out="z")
    s.total(s.op("mul", "z", "y"))
    program = read(s.document)

    found = step(s, loss=None, targets=("loss",), inputs=("w", "y", "loss")).gradients
    twice = gradients(program, ["loss"], ["y", "w", "y"])

    y = W**2
    by_y = complex_step(lambda v: np.sum(np.tanh(v["y"] * X) * v["y"]), {"y": y}, "y")
    close(found["y"], by_y)
    close(found["w"], by_y * 2 * W)
    close(found["loss"], 1)
    assert [name for name, _ in twice.params_grads] == ["y", "w", "y"]
    assert twice.params_grads[0][1] == twice.params_grads[2][1] is not None


def test_26_every_value_that_a_name_has_had_gets_its_own_gradient():
    s = base()
    s.op("scale", "w", out="y", scale=2.0)
    s.op("mul", "y", "y", out="a")
    s.op("tanh", s.op("mul", "a", "x"), out="y")
    s.op("mul", "y", "a", out="y")
    s.total(s.op("add", "y", "a"))

    def loss(v):
        a = (2 * v["w"]) ** 2
        return np.sum(np.tanh(a * v["x"]) * a + a)

    found = check(s)
    for name in "wx":
        close(found[name], complex_step(loss, {"w": W, "x": X}, name))


def test_27_a_state_read_before_and_after_it_is_written():
    s = base()
    s._leaf("state", "running", [0.1, 0.2], "float64")
    s.op("mul", "running", "w", out="before")
    s.op("add", s.op("scale", "running", scale=0.5), s.op("mul", "w", "x"), out="running")
    s.op("mul", s.op("square", "running"), "w", out="after")
    s.total(s.op("add", "before", "after"))
    r = np.array([0.1, 0.2])

    out = step(s)

    new = r / 2 + W * X
    close(out.states["running"], new)
    close(out.gradients["w"], r + new**2 + 2 * new * W * X)
    close(out.gradients["x"], 2 * new * W * W)


@pytest.mark.parametrize("rows", [0, 1])
def test_28_empty_arrays_have_empty_gradients(rows):
    s = Sketch()
    s.param("w", np.full((rows, 3), 0.5))
    s.param("v", [0.1, 0.2, 0.3])
    h = s.op("tanh", s.op("mul", "w", "v"))
    s.op("concat", [h, s.op("reshape", "v", shape=[1, 3])], out="all", axis=0)
    s.op("add", s.total("all", out="p"), s.total(s.op("matmul", "w", "v"), out="q"), out="loss")

    found = check(s)

    assert found["w"].shape == (rows, 3)
    slope = 1 - np.tanh(0.5 * s.values["v"]) ** 2
    close(found["w"], np.broadcast_to(slope * s.values["v"] + s.values["v"], (rows, 3)))
    close(found["v"], 1 + rows * (slope * 0.5 + 0.5))


# --- branches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("scalar", [True, False])
def test_42_if_a_block_does_not_run_the_gradient_goes_to_the_old_value(taken, scalar):
    s = base()
    given = s.feed("c", taken, "bool") if scalar else s.feed("c", np.zeros((3 if taken else 0,)))
    s.op("scale", "w", out="y", scale=3.0)
    s.op("square", "y", out="kept")
    with s.block() as block:
        s.op("mul", "y", "x", out="y")
    s.construct("conditional_block", {"condition": given}, {}, sub_block=block, is_scalar_condition=scalar)
    s.total(s.op("add", "y", "kept"))

    found = grads(s)

    close(found["w"], 3 * X + 18 * W if taken else 3 + 18 * W)
    close(found["x"], 3 * W if taken else [0, 0])


@pytest.mark.parametrize("bound", [1.0, 2.0])
def test_44_a_condition_takes_no_gradient_and_a_side_not_taken_gives_no_nan(bound):
    s = base()
    s.param("u", [-1.0, 0.0])
    s.param("only", 1.2)
    s.op("less_than", s.op("mul", "only", s.total("w", out="sum")), s.const(bound), out="c")
    with s.block() as yes:
        s.op("mul", s.op("log", "u"), s.op("sqrt", "u"), out="y")
    with s.block() as no:
        s.op("mul", "w", "x", out="y")
    s.branch("c", no, yes) if bound == 2.0 else s.branch("c", yes, no)
    s.total(s.op("square", "y"))

    out = step(s)

    close(out.gradients["w"], 2 * W * X * X)
    close(out.gradients["u"], [0, 0])
    assert out.missing == {"only": "non_differentiable_op:less_than"}


# --- loops -----------------------------------------------------------------------------------------------------


def test_48_a_constant_initial_state_gets_its_gradient_from_the_second_trip_on():
    s = base()
    s.const(0.0, [2], out="h")
    with s.repeat(3):
        s.op("tanh", s.op("add", s.op("mul", "h", "w"), "x"), out="h")
    s.total("h")

    def loss(v):
        h = 0 * v["w"]
        for _ in range(3):
            h = np.tanh(h * v["w"] + v["x"])
        return np.sum(h)

    found = check(s)
    for name in "wx":
        close(found[name], complex_step(loss, {"w": W, "x": X}, name))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("trips", [0, 1, 2, 5])
def test_49_values_that_change_places_on_every_trip(trips):
    s = base()
    s.op("assign", "w", out="a")
    s.op("assign", "x", out="b")
    with s.repeat(trips):
        s.op("assign", "a", out="old")
        s.op("assign", "b", out="a")
        s.op("mul", "old", "w", out="b")
    s.total(s.op("add", "a", s.op("square", "b")))

    def loss(v):
        a, b = v["w"], v["x"]
        for _ in range(trips):
            a, b = b, a * v["w"]
        return np.sum(a + b**2)

    found = check(s)
    for name in "wx":
        close(found[name], complex_step(loss, {"w": W, "x": X}, name))


@pytest.mark.parametrize(("first", "slope"), [(0.0, 18.0), (1.0, 20.0)])
def test_50_a_float_counter_has_a_gradient_and_its_overwritten_value_has_none(first, slope):
    s = Sketch()
    s.param("i", first)
    s.param("x", 3.0)
    s.op("assign", "i", out="k")
    s.op("assign", "x", out="y")
    with s.repeat(10):
        s.op("mul", "k", "k", out="y")
        s.op("scale", "k", out="k", bias=1.0)
    s.op("assign", "y", out="loss")  # (i + 9)^2

    found = grads(s)
    close(found["i"], slope)
    close(found["x"], 0)


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_51_a_carried_value_overwritten_unread_gets_no_gradient(trips):
    s = base()
    s.op("square", "x", out="h")
    s.op("assign", "w", out="a")
    with s.repeat(trips):
        s.op("mul", "a", "w", out="h")
        s.op("sin", "h", out="a")
    s.total("h")

    def loss(v):
        h, a = v["x"] ** 2, v["w"]
        for _ in range(trips):
            h = a * v["w"]
            a = np.sin(h)
        return np.sum(h)

    found = grads(s)
    close(found["x"], [0, 0] if trips else 2 * X)
    close(found["w"], complex_step(loss, {"w": W, "x": X}, "w"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("trips", [0, 1, 3])
def test_53_one_value_read_before_during_and_after_the_loop_that_starts_from_it(trips):
    s = base()
    s.op("mul", "w", "x", out="h")
    s.op("assign", "h", out="first")
    s.op("square", "h", out="before")
    with s.repeat(trips):
        s.op("tanh", s.op("mul", s.op("mul", "h", "first"), "w"), out="h")
    s.op("sum", ["before", "h", s.op("mul", "first", "h")], out="all")
    s.total("all")

    def loss(v):
        first = h = v["w"] * v["x"]
        for _ in range(trips):
            h = np.tanh(h * first * v["w"])
        return np.sum(first**2 + h + first * h)

    found = check(s)
    for name in "wx":
        close(found[name], complex_step(loss, {"w": W, "x": X}, name))


def test_65_a_stopped_first_value_does_not_stop_the_ones_after_it():
    s = base()
    s.op("stop_gradient", s.op("mul", "w", "x"), out="h")
    with s.repeat(3):
        s.op("tanh", s.op("mul", "h", "w"), out="h")
    s.total("h")
    fixed = W * X

    def loss(v):
        h = fixed
        for _ in range(3):
            h = np.tanh(h * v["w"])
        return np.sum(h)

    close(grads(s)["w"], complex_step(loss, {"w": W}, "w"))
    assert append_backward(read(s.document), "loss").missing.keys() == {"x"}
