"""Activity: the differentiable dependence of outputs on inputs."""

from __future__ import annotations

import core.compiler.compile  # noqa: F401  (declares every op)
from core.autodiff.activity import Activity
from tests.core.blocks import Writer


def active(w: Writer, results: str, wrt: str, cut: str = "") -> set[str]:
    return Activity().active(w.block(results), wrt.split(), cut.split())


def test_a_variable_is_active_if_a_path_of_floats_reaches_it():
    w = Writer(x=(2,), y=(2,))
    w.op("a", "tanh", "x")
    w.op("other", "exp", "y")
    w.op("both", "mul", "a", "other")

    assert active(w, "both", "x") == {"x", "a", "both"}
    assert active(w, "both", "y") == {"y", "other", "both"}


def test_nothing_passes_a_cut_an_integer_or_an_op_without_a_gradient():
    w = Writer(x=(2,))
    w.op("a", "tanh", "x")
    w.op("b", "sin", "a")
    w.op("whole", "cast", "a", dtype="int64")
    w.op("back", "cast", "whole", dtype="float64")
    w.op("step", "floor", "a")
    w.op("flat", "ones_like", "a")

    assert active(w, "b", "x", cut="a") == {"x"}
    assert "back" not in active(w, "back", "x")
    assert "flat" not in active(w, "flat", "x")


def test_the_dependence_of_block_results_is_bits_of_parameters():
    w = Writer(x=(2,), y=(2,), n="int64")
    w.op("sum", "add", "x", "y")
    w.op("only_y", "tanh", "y")
    w.op("constant", "fill_constant", shape=(2,), value=1.0, dtype="float64")

    assert Activity().of(w.block("sum only_y constant x n")) == (0b011, 0b010, 0, 0b001, 0)


def test_a_branch_depends_on_the_operands_of_both_sides():
    yes, no = Writer(x=(2,), y=(2,)), Writer(x=(2,), y=(2,))
    yes.op("a", "tanh", "x")
    no.op("a", "sin", "y")
    w = Writer(go="bool", x=(2,), y=(2,), z=(2,))
    w.op("out", "if_else", "go", "x", "y", true_block=yes.block("a"), false_block=no.block("a"))

    assert Activity().of(w.block("out z")) == (0b0110, 0b1000)


def test_a_carried_value_depends_on_the_operands_of_all_trips():
    # one trip: a <- b, b <- c, c <- tanh(c); so after two trips a depends on c
    body = Writer(go="bool", a=(2,), b=(2,), c=(2,))
    body.op("next", "tanh", "c")
    w = Writer(go="bool", a=(2,), b=(2,), c=(2,))
    w.op("end x y z", "loop", "go", "a", "b", "c", sub_block=body.block("go b c next"), carried=4, captured=0)

    assert Activity().of(w.block("x y z")) == (0b1110, 0b1100, 0b1000)
