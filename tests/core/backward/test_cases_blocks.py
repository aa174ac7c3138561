"""Cases 38-64, 70 and 74 of docs/semantics.md: branches and loops, with the values given there.

Unless said otherwise w = [0.5, 0.7], x = [1, 2], and the loss is the sum of the result.
"""

from __future__ import annotations

import numpy as np
import pytest

from core.ir.errors import ExecutionError, ProgramError
from core.runtime.run import RunLimits
from core.wire import read
from tests.programs import Sketch, close, grads, step


def base(**more: object) -> Sketch:
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("x", [1.0, 2.0])
    return s


def expect(s: Sketch, **wanted: object) -> None:
    found = grads(s)
    for name, value in wanted.items():
        close(found[name], value)


# --- conditionals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken", "dw", "dv"),
    [(True, [0.78644773, 1.26947918], [0.46211716, 0.60436778]), (False, [1, 1.4], [0, 0])],
)
def test_38_each_branch_gives_its_own_gradient_and_zeros_for_operands_of_the_other(taken, dw, dv):
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("v", [1.0, 2.0])
    s.feed("c", taken, "bool")
    with s.block() as yes:
        s.op("mul", s.op("tanh", "w"), "v", out="y")
    with s.block() as no:
        s.op("mul", "w", "w", out="y")
    s.branch("c", yes, no)
    s.total("y")

    expect(s, w=dw, v=dv)


@pytest.mark.parametrize(("taken", "dw", "dx"), [(True, [1, 1], [0, 0]), (False, [0, 0], [0, 0])])
def test_39_a_branch_may_return_an_outer_variable_or_a_constant(taken, dw, dx):
    s = base()
    s.feed("c", taken, "bool")
    with s.block() as yes:
        s.op("assign", "w", out="y")
    with s.block() as no:
        s.const(3.0, [2], out="y")
    s.branch("c", yes, no)
    s.total("y")

    expect(s, w=dw)
    assert step(s).missing == {"x": "unused"}


def test_40_nested_branches_give_the_gradient_of_the_taken_sides():
    s = base()
    s.feed("c", True, "bool")
    with s.block() as outer:
        with s.block() as inner:
            s.op("mul", "w", "x", out="y")
        with s.block() as other:
            s.op("assign", "w", out="y")
        s.branch("c", inner, other)
        s.op("mul", "y", "x", out="z")
    with s.block() as no:
        s.op("assign", "w", out="z")
    s.branch("c", outer, no)
    s.total(s.op("square", "z"))

    expect(s, w=[1, 22.4], x=[1, 15.68])


def test_41_a_value_used_in_both_branches_and_outside():
    s = base()
    s.feed("c", True, "bool")
    s.op("mul", "w", "x", out="y")
    with s.block() as yes:
        s.op("mul", "y", "y", out="a")
    with s.block() as no:
        s.op("add", "y", "y", out="a")
    s.branch("c", yes, no)
    s.op("add", s.total(s.op("mul", "a", "y"), out="p"), s.total("y", out="q"), out="loss")

    expect(s, w=[1.75, 13.76], x=[0.875, 4.816])


@pytest.mark.parametrize(("index", "dw"), [(0, [2, 2]), (1, [3, 3]), (2, [5, 5]), (7, [7, 7]), (-1, [7, 7])])
def test_43_several_cases_with_a_default(index, dw):
    s = base()
    s.feed("k", index, "int64")
    factors = [2.0, 3.0, 5.0]

    def case(i: int) -> None:
        with s.block() as yes:
            s.op("scale", "w", out="y", scale=factors[i])
        with s.block() as no:
            if i + 1 < len(factors):
                s.op("equal", "k", s.const(i + 1, dtype="int64"), out=f"is{i + 1}")
                case(i + 1)
            else:
                s.op("scale", "w", out="y", scale=7.0)
        s.branch(f"is{i}", yes, no)

    s.op("equal", "k", s.const(0, dtype="int64"), out="is0")
    case(0)
    s.total("y")

    expect(s, w=dw)


def test_46_branches_that_differ_in_dtype_or_count_are_refused_and_in_shape_are_not():
    def program(second: object, out: list[str]) -> Sketch:
        s = base()
        s.feed("c", True, "bool")
        with s.block() as yes:
            s.op("assign", "w", out="y")
        with s.block() as no:
            second(s)  # type: ignore[operator]
        s.branch("c", yes, no, outputs={"out": out})
        s.total("y")
        return s

    for wrong in (lambda s: s.const(1, [2], "int64", out="y"), lambda s: s.const(1.0, [2], out="z")):
        with pytest.raises(ProgramError) as error:
            grads(program(wrong, ["y"]))
        assert "branch_mismatch" in [p.code for p in error.value.problems]
    close(grads(program(lambda s: s.op("concat", ["w", "x"], out="y", axis=0), ["y"]))["w"], [1, 1])


def test_46_a_branch_of_another_shape_gives_its_gradient_when_taken():
    s = base()
    s.feed("c", False, "bool")
    with s.block() as yes:
        s.op("assign", "w", out="y")
    with s.block() as no:
        s.op("concat", ["w", "x", "w"], out="y", axis=0)
    s.branch("c", yes, no)
    s.total(s.op("square", "y"))

    expect(s, w=[2, 2.8], x=[2, 4])


# --- loops -----------------------------------------------------------------------------------------------------


def tanh_loop(s: Sketch, trips: int | str) -> None:
    s.op("scale", "x", out="h", scale=1.0)
    with s.repeat(trips):
        s.op("tanh", s.op("mul", "h", "w"), out="h")


@pytest.mark.parametrize(
    ("trips", "dw", "dx"),
    [
        (0, [0, 0], [1, 1]),
        (1, [0.78644773, 0.43230492], [0.39322387, 0.15130672]),
        (3, [0.62457646, 0.97737878], [0.09204768, 0.04465708]),
    ],
)
def test_47_a_loop_passes_cotangents_through_each_of_its_trips(trips, dw, dx):
    s = base()
    tanh_loop(s, trips)
    s.total("h")

    expect(s, w=dw, x=dx)


def test_52_a_carried_value_that_only_passes_through_keeps_its_gradient():
    s = base()
    s.op("mul", "x", "w", out="h")
    with s.repeat(3):
        s.op("assign", "h", out="h")
    s.total("h")

    expect(s, w=[1, 2])


def test_54_a_parameter_read_inside_and_outside_a_loop_gets_the_sum():
    s = base()
    s.op("assign", "x", out="h")
    with s.repeat(3):
        s.op("mul", "h", "w", out="h")
    s.op("add", s.total(s.op("square", "h"), out="p"), s.total(s.op("mul", "w", "x"), out="q"), out="loss")

    expect(s, w=[1.1875, 6.03368], x=[0.53125, 1.170596])


def test_55_a_captured_intermediate_value_gets_its_gradient():
    s = base()
    s.op("mul", "x", "w", out="y")
    s.op("assign", "x", out="h")
    with s.repeat(3):
        s.op("add", s.op("mul", "h", "w"), "y", out="h")
    s.op("add", s.total("h", out="p"), s.total(s.op("square", "y"), out="q"), out="loss")

    expect(s, w=[4.5, 16.28], x=[1.5, 3.836])


def test_56_the_number_of_trips_may_depend_on_the_data():
    s = base()
    s.op("assign", "x", out="h")
    s.const(50.0, out="limit")
    s.op("less_than", s.total("h", out="sum"), "limit", out="go")
    with s.loop("go"):
        s.op("mul", "h", s.op("scale", "w", scale=1.0, bias=2.0), out="h")
        s.op("less_than", s.total("h", out="sum"), "limit", out="go")
    s.total("h")

    expect(s, w=[18.75, 43.74], x=[15.625, 19.683])


def test_57_two_loops_in_a_row():
    s = base()
    s.op("assign", "x", out="h")
    with s.repeat(3):
        s.op("mul", "h", "w", out="h")
    with s.repeat(2):
        s.op("tanh", s.op("mul", "h", "w"), out="h")
    s.total("h")

    expect(s, w=[0.31114156, 1.80261277], x=[0.03109795, 0.12224714])


@pytest.mark.parametrize("taken", [True, False])
def test_60_a_loop_in_a_branch(taken):
    s = base()
    s.feed("c", taken, "bool")
    s.op("assign", "x", out="h")
    with s.block() as yes, s.repeat(3):
        s.op("tanh", s.op("mul", "h", "w"), out="h")
    s.branch("c", yes, None)
    s.total("h")

    if taken:
        expect(s, w=[0.62457646, 0.97737878], x=[0.09204768, 0.04465708])
    else:
        expect(s, w=[0, 0], x=[1, 1])


def test_62_an_invariant_given_as_a_carried_value():
    s = base()
    s.op("scale", "w", out="y", scale=2.0)
    s.op("assign", "x", out="h")
    with s.repeat(3):
        s.op("mul", "h", "y", out="h")
        s.op("assign", "y", out="y")
    s.op("add", s.total("h", out="p"), s.total("y", out="q"), out="loss")

    expect(s, w=[8, 25.52], x=[1, 2.744])


def test_63_a_captured_value_used_several_times_in_the_body():
    s = base()
    s.op("assign", "x", out="h")
    with s.repeat(3):
        s.op("sum", [s.op("mul", "h", "w"), s.op("mul", "w", "w"), s.op("mul", s.op("tanh", "w"), "h")], out="h")
    s.total("h")

    expect(s, w=[9.15476466, 25.18655166], x=[0.89060244, 2.21921912])


def test_64_a_carried_value_may_change_its_shape():
    s = Sketch()
    s.param("w", [1.0, 2.0])
    s.feed("weights", np.arange(1.0, 17.0))
    s.op("assign", "w", out="h")
    with s.repeat(3):
        s.op("concat", ["h", "h"], out="h", axis=0)
    s.total(s.op("mul", "h", "weights"))

    expect(s, w=[64, 72])


X = [[1.0, 2.0], [0.5, -1.0], [-1.0, 0.3]]


@pytest.mark.parametrize(
    ("order", "outputs", "dW", "dh0"),
    [
        ([0, 1, 2], "all", [[0.09936558, 0.18371989], [0.52476056, -0.22508209]], [0.32832622, -0.0016628]),
        ([2, 1, 0], "all", [[-0.42690186, 0.3883997], [-0.13261106, -0.23043636]], None),
        ([0, 1, 2], "last", [[0.65357684, 1.0182952], [0.06848657, 0.23042083]], None),
    ],
)
def test_70_a_recurrent_net(order, outputs, dW, dh0):
    s = Sketch()
    s.param("W", [[0.5, 0.1], [-0.2, 0.7]])
    s.param("h0", [0.2, -0.3])
    s.feed("X", np.asarray(X)[order])
    s.op("assign", "h0", out="h")
    s.const(0.0, out="loss")
    s.const(0, [1], "int64", out="t")
    with s.repeat(3):
        s.op("gather", "X", "t", out="row", axis=0)
        s.op("tanh", s.op("add", s.op("matmul", "h", "W"), s.op("squeeze", "row", axes=[0])), out="h")
        s.op("increment", "t", out="t", step=1)
        if outputs == "all":
            s.op("add", "loss", s.total(s.op("square", "h"), out="each"), out="loss")
    if outputs == "last":
        s.total("h")

    found = grads(s)
    close(found["W"], dW)
    if dh0 is not None:
        close(found["h0"], dh0)


def test_74_an_endless_loop_is_stopped_with_a_typed_error():
    s = base()
    s.const(1, dtype="bool", out="go")
    s.op("assign", "x", out="h")
    with s.loop("go"):
        s.op("mul", "h", "w", out="h")
        s.const(1, dtype="bool", out="go")
    s.total("h")
    from core.compiler.compile import GradientQuery, compile_gradient

    exe = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    with pytest.raises(ExecutionError) as error:
        exe.step(s.values, limits=RunLimits(max_trips=100))

    assert error.value.code == "too_many_trips"
    assert error.value.location is not None and error.value.location.type == "while"


def test_74_a_loop_that_changes_a_dtype_is_refused():
    s = base()
    s.op("assign", "x", out="h")
    with s.repeat(2):
        s.op("cast", "h", out="h", dtype="float32")
    s.total("h")

    with pytest.raises(ProgramError) as error:
        read(s.document)
    assert [p.code for p in error.value.problems] == ["carry_dtype_changed"]


@pytest.mark.parametrize("taken", [True, False])
def test_each_branch_reads_its_own_residuals(taken):
    s = base()
    s.feed("c", taken, "bool")
    with s.block() as yes:
        s.op("exp", s.op("tanh", s.op("mul", "w", "x")), out="y")
    with s.block() as no:
        s.op("sin", s.op("sigmoid", s.op("add", "w", "x")), out="y")
    s.branch("c", yes, no)
    s.total("y")

    w, x = s.values["w"], s.values["x"]
    if taken:
        slope = np.exp(np.tanh(w * x)) * (1 - np.tanh(w * x) ** 2)
        expect(s, w=slope * x, x=slope * w)
    else:
        p = 1 / (1 + np.exp(-w - x))
        expect(s, w=np.cos(p) * p * (1 - p), x=np.cos(p) * p * (1 - p))
