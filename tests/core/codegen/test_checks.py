"""When several checks fail in one run, machine code reports the same one as the reference executor: the first."""

from __future__ import annotations

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.errors import ExecutionError
from core.runtime.executable import Executable
from core.runtime.run import RunLimits
from core.wire import read
from tests.programs import Sketch


def gathered_twice() -> Sketch:
    """An index out of range, for the gather and for the scatter of its gradient."""
    s = Sketch()
    s.param("x", np.arange(12.0).reshape(3, 4))
    s.feed("i", [-1, 9], "int64")
    s.total(s.op("gather", "x", "i"))
    return s


def a_quotient_and_an_index() -> Sketch:
    """One trip with an integer division by zero, fused with the ops before the gather, and an index out of range."""
    s = Sketch()
    s.param("x", np.arange(12.0).reshape(3, 4))
    s.feed("n", [4, 0], "int64")
    s.feed("i", [7, 0], "int64")
    s.op("gather", "x", s.const(0, dtype="int64"), out="a")
    with s.repeat(3):
        j = s.op("add", "i", "n")
        row = s.op("reduce_sum", s.op("gather", "x", j), axes=[0])
        q = s.op("reduce_sum", s.op("floor_div", j, "n"))
        s.op("mul", s.op("sin", row), s.op("cast", q, dtype="float64"), out="a")
    s.total("a")
    return s


def an_index_in_the_last_trip() -> Sketch:
    """A loop whose limit of trips ends it before the trip with an index out of range."""
    s = Sketch()
    s.param("x", np.arange(1.0, 5.0))
    s.const(0, dtype="int64", out="k")
    s.const(1.0, out="a")
    with s.repeat(100):
        s.op("mul", "a", s.op("sin", s.op("gather", "x", "k")), out="a")
        s.op("increment", "k", out="k", step=1)
    s.op("assign", "a", out="loss")
    return s


def gathers(wrong: str) -> Sketch:
    """Lookups of rows, of parts of rows and of single elements. wrong: the ones with a position out of range."""
    s = Sketch()
    s.param("x", np.arange(54.0).reshape(3, 18))
    s.param("y", np.arange(54.0).reshape(3, 18) + 1)
    s.param("z", np.arange(3.0))
    for name in "xyz":
        s.feed(f"{name}.at", [0, 3 if name in wrong else -1], "int64")
    rows, others = s.op("gather", "x", "x.at"), s.op("gather", "y", "y.at")
    parts = [s.op("slice", others, axes=[1], starts=[i], ends=[i + n]) for i, n in ((1, 16), (17, 1))]
    products = s.op("mul", s.op("slice", rows, axes=[1], starts=[0], ends=[16]), parts[0])
    sums = s.op("add", s.op("reduce_sum", products, axes=[1]), s.op("gather", "z", "z.at"))
    s.total(s.op("mul", s.op("reshape", sums, shape=[2, 1]), parts[1]))
    return s


def refusal(executable: Executable, s: Sketch, limits: RunLimits) -> tuple[object, ...]:
    with pytest.raises(ExecutionError) as caught:
        executable.step(s.values, limits=limits)
    return caught.value.code, caught.value.location


@pytest.mark.parametrize("make", [gathered_twice, a_quotient_and_an_index, an_index_in_the_last_trip])
@pytest.mark.parametrize("limits", [RunLimits(), RunLimits(max_trips=4), RunLimits(max_ops=40)])
def test_the_first_of_several_failures_is_reported(make, limits):
    the_same_failure(make(), limits)


@pytest.mark.parametrize("wrong", ["x", "y", "z", "xy", "xz", "yz", "xyz"])
def test_gathers_that_come_early_report_their_failures_in_the_order_of_the_program(wrong):
    the_same_failure(gathers(wrong), RunLimits())


def the_same_failure(s, limits):
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"), fetch=["loss"])
    assert refusal(executable.compiled(), s, limits) == refusal(executable, s, limits)
