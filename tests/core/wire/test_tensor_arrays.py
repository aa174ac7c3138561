"""Tensor arrays that loops write."""

from __future__ import annotations

import pytest

from core.ir.errors import ExecutionError
from tests.core.wire.constructs import array_in_a_loop
from tests.programs import Sketch, check, close, grads


def test_an_array_written_in_a_loop_is_read_outside():
    found = check(array_in_a_loop())

    u = Sketch()
    u.param("w", [0.5, 0.7])
    h, hs = u.const(1.0, [2]), []
    for _ in range(3):
        h = u.op("tanh", u.op("mul", h, "w"))
        hs.append(h)
    u.total(u.op("mul", u.op("sum", hs), hs[1]))
    close(found["w"], grads(u)["w"])


def test_a_value_read_in_the_loop_and_outside_gets_both_gradients():
    s = Sketch()
    s.param("x", [[1.0, 2.0], [3.0, 4.0]])
    s.param("w", [0.5, 0.7])
    s.op("array_unstack", "x", out="A")
    s.const(0.0, [2], out="total")
    s.const(0, dtype="int64", out="t")
    with s.repeat(2):
        s.op("array_read", "A", "t", out="row")
        s.op("add", "total", s.op("mul", "row", "w"), out="total")
        s.op("increment", "t", out="t", step=1)
    s.op("add", "total", s.op("square", s.op("array_read", "A", s.const(0, dtype="int64"))), out="total")
    s.total("total")

    found = check(s)
    close(found["x"], [[0.5 + 2 * 1, 0.7 + 2 * 2], [0.5, 0.7]])


def test_a_write_leaves_the_older_version_unchanged():
    s = Sketch()
    s.param("x", [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    s.param("v", [7.0, 8.0])
    s.op("array_unstack", "x", out="A")
    s.op("array_stack", "A", out="before")
    s.op("array_write", s.op("square", "v"), s.const(1, dtype="int64"), "A", out="A")
    s.op("array_stack", "A", out="after")
    s.total(s.op("mul", "before", "after"))

    found = check(s)
    close(found["x"], [[2, 4], [49, 64], [10, 12]])
    close(found["v"], [2 * 7 * 3, 2 * 8 * 4])


def test_reading_past_the_end_of_an_array_is_an_error_with_a_location():
    s = Sketch()
    s.param("x", [[1.0, 2.0]])
    s.op("array_unstack", "x", out="A")
    s.op("array_read", "A", s.const(1, dtype="int64"), out="y")
    s.total("y")

    with pytest.raises(ExecutionError) as error:
        grads(s)
    assert error.value.code == "index_out_of_range"
    assert error.value.location is not None and error.value.location.type == "array_read"
