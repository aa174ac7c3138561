"""Cases 58-67 and 77-83 of docs/semantics.md: nested loops and branches, arrays, and their second-order gradients.

By default w = [0.5, 0.7], x = [1, 2], and the loss is the sum of the result. The expected values come from the same
computation in numpy, differentiated by complex steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from core.backward.append_backward import append_backward, gradients
from core.compiler.compile import GradientQuery, compile_gradient
from core.wire import read
from tests.core.backward.test_cases_lines import second
from tests.programs import Sketch, check, close, complex_step, grads

AT = {"w": np.array([0.5, 0.7]), "x": np.array([1.0, 2.0])}
Loss = Callable[[dict[str, Any]], Any]


def base() -> Sketch:
    s = Sketch()
    for name, value in AT.items():
        s.param(name, value)
    return s


def loop_in_loop() -> tuple[Sketch, Loss]:
    """The inner loop makes as many trips as the outer loop has completed."""
    s = base()
    s.op("assign", "x", out="h")
    s.const(0, dtype="int64", out="t")
    with s.repeat(4):
        s.op("tanh", s.op("mul", "h", "w"), out="h")
        with s.repeat("t"):
            s.op("sin", s.op("add", "h", "w"), out="h")
        s.op("increment", "t", out="t", step=1)
    s.total("h")

    def loss(v):
        h = v["x"]
        for t in range(4):
            h = np.tanh(h * v["w"])
            for _ in range(t):
                h = np.sin(h + v["w"])
        return np.sum(h)

    return s, loss


def branch_in_loop() -> tuple[Sketch, Loss]:
    """One side runs on even trips, the other on odd trips; each side reads a different parameter."""
    s = base()
    s.op("mul", "w", "x", out="h")
    s.const(0, dtype="int64", out="t")
    with s.repeat(5):
        even = s.op("equal", s.op("mod", "t", s.const(2, dtype="int64")), s.const(0, dtype="int64"))
        with s.block() as yes:
            s.op("tanh", s.op("mul", "h", "w"), out="h")
        with s.block() as no:
            s.op("sin", s.op("add", "h", "x"), out="h")
        s.branch(even, yes, no)
        s.op("increment", "t", out="t", step=1)
    s.total("h")

    def loss(v):
        h = v["w"] * v["x"]
        for t in range(5):
            h = np.sin(h + v["x"]) if t % 2 else np.tanh(h * v["w"])
        return np.sum(h)

    return s, loss


def loop_in_branch_in_loop() -> tuple[Sketch, Loss]:
    """Every second trip runs a loop of as many trips as are completed. A variable that only it writes is carried."""
    s = base()
    s.op("assign", "x", out="h")
    s.op("assign", "w", out="g")
    s.const(0, dtype="int64", out="t")
    with s.repeat(4):
        odd = s.op("equal", s.op("mod", "t", s.const(2, dtype="int64")), s.const(1, dtype="int64"))
        with s.block() as yes, s.repeat("t"):
            s.op("tanh", s.op("mul", "h", "g"), out="h")
            s.op("sin", s.op("mul", "g", "x"), out="g")
        s.branch(odd, yes, None)
        s.op("add", s.op("mul", "h", "w"), "g", out="h")
        s.op("increment", "t", out="t", step=1)
    s.total("h")

    def loss(v):
        h, g = v["x"], v["w"]
        for t in range(4):
            for _ in range(t if t % 2 else 0):
                h, g = np.tanh(h * g), np.sin(g * v["x"])
            h = h * v["w"] + g
        return np.sum(h)

    return s, loss


def array_of_states() -> tuple[Sketch, Loss]:
    """Every state is written to an array, the previous state is read back, and their sum is computed outside."""
    s = base()
    s.op("create_array", out="A", shape=[2], dtype="float64")
    s.op("array_write", "x", s.const(0, dtype="int64"), "A", out="A")
    s.const(0, dtype="int64", out="t")
    with s.repeat(3):
        s.op("array_read", "A", "t", out="h")
        s.op("increment", "t", out="t", step=1)
        s.op("array_write", s.op("tanh", s.op("mul", "h", "w")), "t", "A", out="A")
    s.op("mul", s.op("reduce_sum", s.op("array_stack", "A"), axes=[0]), "w", out="weighed")
    s.total("weighed")

    def loss(v):
        states = [v["x"]]
        for _ in range(3):
            states.append(np.tanh(states[-1] * v["w"]))
        return np.sum(sum(states) * v["w"])

    return s, loss


def element_replaced() -> tuple[Sketch, Loss]:
    """An element is read in a loop, replaced there, and read again outside; the array before the loop is read too."""
    s = base()
    s.op("array_unstack", s.op("stack", ["w", "x"]), out="A")
    s.op("array_stack", "A", out="before")
    with s.repeat(2):
        s.op("array_read", "A", s.const(1, dtype="int64"), out="h")
        s.op("array_write", s.op("sin", s.op("mul", "h", "w")), s.const(1, dtype="int64"), "A", out="A")
    s.op("array_read", "A", s.const(1, dtype="int64"), out="again")
    s.op("mul", s.op("mul", "before", s.op("array_stack", "A")), "again", out="all")
    s.total("all")

    def loss(v):
        h = v["x"]
        for _ in range(2):
            h = np.sin(h * v["w"])
        return np.sum((v["w"] * v["w"] + v["x"] * h) * h)

    return s, loss


PROGRAMS = [loop_in_loop, branch_in_loop, loop_in_branch_in_loop, array_of_states, element_replaced]
"""Cases 58, 59, 61, 66 and 67, in this order."""


def agrees(program: tuple[Sketch, Loss]) -> None:
    """Compare first order with complex steps, second order with differences."""
    s, loss = program
    found = check(s)
    for name in AT:
        close(found[name], complex_step(loss, AT, name), 1e-12)


def test_58_a_loop_in_a_loop():
    agrees(loop_in_loop())


def test_59_a_branch_in_a_loop():
    agrees(branch_in_loop())


def test_61_a_loop_in_a_branch_in_a_loop():
    agrees(loop_in_branch_in_loop())


def test_66_an_array_may_be_written_and_read_in_a_loop_and_read_outside():
    agrees(array_of_states())


def test_67_a_replaced_element_passes_no_gradient_to_its_old_value():
    agrees(element_replaced())


# --- higher order ----------------------------------------------------------------------------------------------


def slopes(loss: Loss, of: Loss) -> np.ndarray:
    """d/dw of a function of dw, by differences of complex steps."""
    out = np.zeros(2)
    for i in range(2):
        moves = [AT | {"w": AT["w"] + sign * 1e-5 * np.eye(2)[i]} for sign in (1, -1)]
        up, down = (float(of(complex_step(loss, at, "w"))) for at in moves)
        out[i] = (up - down) / 2e-5
    return out


def tanh_loop(trips: int) -> tuple[Sketch, Loss]:
    s = base()
    s.op("assign", "x", out="h")
    with s.repeat(trips):
        s.op("tanh", s.op("mul", "h", "w"), out="h")
    s.total("h")

    def loss(v):
        h = v["x"]
        for _ in range(trips):
            h = np.tanh(h * v["w"])
        return np.sum(h)

    return s, loss


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_77_second_order_through_a_loop(trips):
    s, loss = tanh_loop(trips)
    close(second(s), slopes(loss, lambda g: np.sum(g**2)), 1e-8)


@pytest.mark.parametrize("program", PROGRAMS)
def test_78_second_order_through_nested_loops_and_branches(program):
    s, loss = program()
    close(second(s), slopes(loss, lambda g: np.sum(g**2)), 1e-7)


def test_83_three_orders_of_a_loop():
    """h := h * w, `trips` times from x: x w^n, whose derivatives are falling factorials."""
    s = base()
    s.op("assign", "x", out="h")
    with s.repeat(5):
        s.op("mul", "h", "w", out="h")
    program, target = read(s.document), "h"

    for factor, power in ((5, 4), (20, 3), (60, 2)):
        exe = compile_gradient(program, GradientQuery(targets=(target,), inputs=("w",)))
        close(exe.step(s.values).gradients["w"], factor * AT["x"] * AT["w"] ** power, 1e-12)
        b = gradients(program, [target], ["w"])
        program, target = b.program, b.gradients["w"]


@pytest.mark.parametrize("program", [loop_in_branch_in_loop, array_of_states])
def test_83_a_forward_mode_product_through_loops_and_arrays(program):
    """The derivative with respect to the seed of the backward pass: d<J^T u, v>/du = J v."""
    s, loss = program()
    root = s.blocks[0]
    vector = root["ops"].pop()["inputs"]["x"][0]  # the operand of the sum that gives the loss
    s.feed("seed", [1.0, 1.0])
    s.feed("v", [0.3, -2.0])
    b = gradients(read(s.document), [vector], ["w"], ["seed"])
    query = GradientQuery(targets=(b.gradients["w"],), inputs=("seed",), target_gradients=(True,))

    out = compile_gradient(b.program, query).step(s.values | {"target_gradients/0": s.values["v"]})

    moved = AT["w"] + 1e-30j * s.values["v"]
    whole = np.imag(loss(AT | {"w": moved})) / 1e-30
    close(np.sum(out.gradients["seed"]), whole, 1e-12)


def test_a_gradient_by_a_captured_value_alone_is_the_same_in_every_nesting():
    for program in PROGRAMS:
        s, _ = program()
        close(grads(s, parameter_list=("w",))["w"], grads(s)["w"], 1e-14)
        assert append_backward(read(s.document), "loss", ["w"]).gradients.keys() == {"w"}
