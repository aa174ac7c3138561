"""Recurrences: `recurrent`, `scan`, and loops over sequences of different lengths."""

from __future__ import annotations

import numpy as np
import pytest

from core.ir.errors import ExecutionError, ProgramError
from tests.core.wire.constructs import X, elman
from tests.programs import Sketch, check, close, grads, step

RECURRENT = [
    ("all", False, [[0.09936558, 0.18371989], [0.52476056, -0.22508209]], [0.32832622, -0.0016628]),
    ("all", True, [[-0.42690186, 0.3883997], [-0.13261106, -0.23043636]], None),
    ("last", False, [[0.65357684, 1.0182952], [0.06848657, 0.23042083]], None),
]


@pytest.mark.parametrize("kind", ["recurrent", "scan"])
@pytest.mark.parametrize(("outputs", "reverse", "dW", "dh0"), RECURRENT)
def test_70_a_recurrent_net(outputs, reverse, dW, dh0, kind):
    found = check(elman(outputs, reverse, kind))

    close(found["W"], dW)
    if dh0 is not None:
        close(found["h0"], dh0)


def test_stacked_results_keep_the_order_of_the_sequence():
    forward, backward = (step(elman("all", reverse), ["ys"]).fetched["ys"] for reverse in (False, True))

    h = np.array([0.2, -0.3])
    W = np.array([[0.5, 0.1], [-0.2, 0.7]])
    for x, y in zip(X, forward, strict=True):
        h = np.tanh(h @ W + x)
        close(y, h * h)
    h = np.array([0.2, -0.3])
    for x, y in zip(X[::-1], backward[::-1], strict=True):
        h = np.tanh(h @ W + x)
        close(y, h * h)


def test_a_scan_over_an_empty_sequence_is_legal():
    found = step(elman("all", rows=0), ["ys", "last"])

    assert found.fetched["ys"].shape == (0, 2)
    close(found.fetched["last"], [0.2, -0.3])
    close(found.gradients["W"], np.zeros((2, 2)))
    close(grads(elman("last", rows=0))["h0"], [1, 1])


def test_72_a_state_without_updates_and_one_starting_at_zero_equal_the_unrolled_program():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("fixed", [0.3, -0.4])
    s.feed("X", X)
    with s.block() as body:
        s.op("tanh", s.op("add", s.op("mul", "h", "w"), s.op("mul", "m", "x")), out="next")
    s.construct(
        "recurrent",
        {"inputs": "X", "initial_states": ["fixed", s.const(0.0, [2])]},
        {"outputs": "ys"},
        sub_block=body,
        ex_states=["m", "h"],
        states=["m", "next"],
        step_inputs=["x"],
        step_outputs=["next"],
    )
    s.total("ys")

    found = check(s)

    u = Sketch()  # unrolled by hand
    u.param("w", [0.5, 0.7])
    u.param("fixed", [0.3, -0.4])
    h, total = u.const(0.0, [2]), u.const(0.0)
    for i, x in enumerate(X):
        u.feed(f"x{i}", x)
        h = u.op("tanh", u.op("add", u.op("mul", h, "w"), u.op("mul", "fixed", f"x{i}")))
        total = u.op("add", total, u.op("reduce_sum", h))
    u.op("assign", total, out="loss")
    for name, value in grads(u).items():
        close(found[name], value)


def test_a_scan_may_count_steps_and_overwrite_outer_variables():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("assign", "w", out="total")
    with s.block() as body:
        s.op("mul", "h", "w", out="h")
        s.op("add", "total", "h", out="total")
    s.construct("scan", {"initial": "w"}, {}, sub_block=body, states=["h"], length=3)
    s.total("total")
    w = np.array([0.5, 0.7])

    close(check(s)["w"], 1 + 2 * w + 3 * w**2 + 4 * w**3)


def test_sequences_of_different_lengths_are_refused():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    for name, rows in (("a", 3), ("b", 2)):
        s.feed(name, np.ones((rows, 2)))
        s.blocks[0]["vars"][-1]["shape"] = [-1, 2]
    with s.block() as body:
        s.op("mul", s.op("add", "x", "y"), "w", out="z")
    s.construct(
        "scan", {"sequences": ["a", "b"]}, {"stacked": "zs"}, sub_block=body, elements=["x", "y"], outputs=["z"]
    )
    s.total("zs")

    with pytest.raises((ExecutionError, ProgramError)) as error:
        grads(s)
    assert error.value.code == "shape_mismatch"


def test_a_recurrence_without_residuals_has_no_gradient():
    s = elman("all")
    s.blocks[0]["ops"][0]["attrs"]["is_train"] = False

    with pytest.raises(ProgramError) as error:
        grads(s)
    assert error.value.code == "is_test_loop"


def ragged() -> Sketch:
    """h := tanh(h * w + d * x) from 0 over three sequences of 3, 1 and 2 rows; the sum of their last states."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("d", [1.0, 2.0])
    s.feed("rows", np.arange(12.0).reshape(6, 2) / 10)
    s.feed("lengths", [3, 1, 2], "int64")
    s.op("sequence_to_array", "rows", "lengths", out="steps")
    s.const(0.0, [3, 2], out="h")
    s.const(0, dtype="int64", out="t")
    s.op("reduce_max", "lengths", out="longest")
    s.const(0.0, out="loss")
    with s.repeat("longest"):
        s.op("shrink_rnn_memory", "h", "lengths", "t", out="h")
        s.op("array_read", "steps", "t", out="x")
        s.op("tanh", s.op("add", s.op("mul", "h", "w"), s.op("mul", "x", "d")), out="h")
        s.op("increment", "t", out="t", step=1)
        s.op("shrink_rnn_memory", "h", "lengths", "t", out="going_on")
        ended = s.op("sub", s.op("reduce_sum", "h"), s.op("reduce_sum", "going_on"))
        s.op("add", "loss", ended, out="loss")
    return s


def test_71_variable_lengths_equal_runs_of_each_sequence():
    found = check(ragged())
    close(found["w"], [0.31713921, 0.15563736])
    close(found["d"], [1.11559198, 0.29849196])

    total = {"w": np.zeros(2), "d": np.zeros(2)}
    rows = np.arange(12.0).reshape(6, 2) / 10
    for first, last in ((0, 3), (3, 4), (4, 6)):
        s = Sketch()
        s.param("w", [0.5, 0.7])
        s.param("d", [1.0, 2.0])
        s.feed("x", rows[first:last])
        with s.block() as body:
            s.op("tanh", s.op("add", s.op("mul", "h", "w"), s.op("mul", "row", "d")), out="h")
        given = {"initial": s.const(0.0, [2]), "sequences": "x"}
        s.construct("scan", given, {"final": "last"}, sub_block=body, states=["h"], elements=["row"])
        s.total("last")
        for name, value in grads(s).items():
            total[name] += value
    for name, value in total.items():
        close(found[name], value)


def test_a_final_state_overrides_an_outer_variable_of_its_name():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("assign", "w", out="a")
    with s.block() as body:
        s.op("square", "w", out="a")
        s.op("mul", "h", "w", out="h")
    s.construct("scan", {"initial": "w"}, {"final": "a"}, sub_block=body, states=["h"], length=2)
    s.total("a")

    close(check(s)["w"], 3 * np.array([0.5, 0.7]) ** 2)
