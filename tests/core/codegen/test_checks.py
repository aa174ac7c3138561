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


def refusal(executable: Executable, s: Sketch, limits: RunLimits) -> tuple[object, ...]:
    with pytest.raises(ExecutionError) as caught:
        executable.step(s.values, limits=limits)
    return caught.value.code, caught.value.location


@pytest.mark.parametrize("make", [gathered_twice, a_quotient_and_an_index, an_index_in_the_last_trip])
@pytest.mark.parametrize("limits", [RunLimits(), RunLimits(max_trips=4), RunLimits(max_ops=40)])
def test_the_first_of_several_failures_is_reported(make, limits):
    s = make()
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"), fetch=["loss"])
    assert refusal(executable.compiled(), s, limits) == refusal(executable, s, limits)
