"""A step that does not read all of its feeds is one region of all inputs, and so it is bound to arrays."""

from __future__ import annotations

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, Optimizer, compile_training
from core.runtime.bound_step import bind_step
from core.runtime.run import Run
from core.wire import read
from tests.programs import Sketch

RATE = {"learning_rate": 0.1}


def training(unread):
    """A step on `x`, and feeds that no op reads: name -> value."""
    rng = np.random.default_rng(0)
    s = Sketch()
    first = {name: s.feed(name, value, dtype=value.dtype.name) for name, value in unread.items()}
    x, w = s.feed("x", rng.standard_normal((4, 3))), s.param("w", rng.standard_normal((3, 2)))
    assert len(first) == len(unread)
    s.total(s.op("square", s.op("matmul", x, w)))
    executable = compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer("sgd", RATE))
    return executable, s.values


@pytest.mark.parametrize(
    "unread",
    [{"a": np.ones((2, 2))}, {"a": np.ones(3, "bool"), "b": np.arange(4)}, {"a": np.ones((0, 5), "float32")}],
    ids=["a matrix", "two", "an empty one"],
)
def test_a_step_with_feeds_that_no_op_reads_is_one_region_and_is_bound(unread):
    executable, values = training(unread)
    compiled = executable.compiled()
    feeds = {n: values[n].copy() for n in ("x", *unread)}
    bound = bind_step(compiled, {"w": values["w"].copy()})

    assert compiled.machine.region is not None and bound is not None
    for _ in range(3):
        wanted = executable.step({"w": values["w"], **feeds}, 0, 0)
        assert bound.takes(feeds)
        out = bound.step(Run(), 0, 0)
        np.testing.assert_allclose(out.loss, wanted.loss, rtol=1e-6)
        np.testing.assert_allclose(out.parameters["w"], wanted.parameters["w"], rtol=1e-6)
        bound.keep()
        values["w"] = np.array(out.parameters["w"])
    assert not bound.takes({"x": feeds["x"]})


def test_an_unread_feed_of_a_size_that_only_the_run_tells_is_no_input_of_the_region():
    executable, values = training({})
    s = Sketch()
    s.feed("open", np.ones(3), shape=[-1])
    x, w = s.feed("x", values["x"]), s.param("w", values["w"])
    s.total(s.op("square", s.op("matmul", x, w)))
    opened = compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer("sgd", RATE)).compiled()

    found = opened.step({"w": values["w"], "x": values["x"], "open": np.ones(7)}, 0, 0)

    assert opened.machine.region is None and len(opened.machine.calls) == 1
    np.testing.assert_allclose(found.loss, executable.step({"w": values["w"], "x": values["x"]}, 0, 0).loss, rtol=1e-6)
