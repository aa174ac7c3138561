"""A run with a larger size than expected has the bits of later equal runs, which run the code that it has made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.compiler.compile import Executable, GradientQuery, Optimizer, compile_forward, compile_training
from core.runtime.bound_step import bind_step
from core.runtime.expecting import ExpectingRegion
from core.runtime.run import Run, RunLimits
from core.wire import read
from tests.programs import Sketch

COUNTS = [700, 900, 800, 600, 1000]


def layers(inside: bool = False) -> Sketch:
    """Rows that are repeated as often as the feed `counts` says, and a layer of tanh; the loss is their mean."""
    s, rng = Sketch(), np.random.default_rng(0)
    s.param("x", rng.normal(size=(5, 17)), "float32")
    s.param("w", rng.normal(size=(17, 9)), "float32")
    s.feed("counts", COUNTS, "int64")
    s.const(0.0, (), "float32", out="total")

    def body() -> None:
        rows = s.op("sequence_expand", "x", "counts")
        rows = s.op("print", rows, message="once", summarize=1)
        s.op("add", "total", s.op("reduce_mean", s.op("tanh", s.op("matmul", rows, "w"))), out="total")

    if inside:
        with s.repeat(2):
            body()
    else:
        body()
    s.op("assign", "total", out="loss")
    return s


def training(s: Sketch) -> Executable:
    optimizer = Optimizer("momentum", {"learning_rate": 0.1, "momentum": 0.9})
    return compile_training(read(s.document), GradientQuery(loss="loss"), optimizer).compiled()


def bits(outputs: Any) -> dict[str, bytes]:
    kept = outputs.parameters | outputs.gradients | outputs.optimizer_state | outputs.fetched
    loss = {} if outputs.loss is None else {"loss": outputs.loss}
    return {name: np.asarray(value).tobytes() for name, value in (kept | loss).items()}


def region_of(step: Executable) -> ExpectingRegion:
    assert step.machine is not None
    regions = [step.machine.region, *(op.attrs.get("region") for op in step.machine.ops)]
    return next(each for each in regions if isinstance(each, ExpectingRegion))


def test_the_run_that_grows_the_code_has_the_bits_of_later_runs():
    s = layers()
    step = training(s)
    before, values = region_of(step).plan, s.values | step.initial_state()

    first, *others = (step.step(values) for _ in range(3))

    assert region_of(step).plan is not before
    assert all(bits(each) == bits(first) for each in others)
    assert all([m.text for m in each.messages] == ["once"] for each in (first, *others))


def test_a_size_in_a_loop_grows_until_it_fits():
    s = layers(inside=True)
    step = compile_forward(read(s.document), ["loss"]).compiled()

    first, *others = (step.step(s.values) for _ in range(3))

    assert max(max(shape) for shape in region_of(step).plan.expected.values()) >= sum(COUNTS)
    assert all(bits(each) == bits(first) for each in others)
    assert all([m.text for m in each.messages] == ["once"] * 2 for each in (first, *others))


def test_a_bound_step_that_grows_the_code_has_the_bits_of_later_steps():
    s = layers()
    step = training(s)
    kept = {name: value for name, value in s.values.items() if name != "counts"} | step.initial_state()
    bound = bind_step(step, kept)
    assert bound is not None
    assert bound.takes({"counts": s.values["counts"]})

    first, second = (bits(bound.step(Run(), 0, 0)) for _ in range(2))

    assert first == second


@pytest.mark.reference
@pytest.mark.parametrize("inside", [False, True])
def test_a_step_that_does_not_grow_leaves_each_larger_size_to_the_reference_executor(inside):
    s = layers(inside)
    step = compile_forward(read(s.document), ["loss"])
    fixed = replace(step, adapts=False).compiled()
    small, large = (s.values | {"counts": np.array(counts)} for counts in ([3, 4, 2, 5, 6], COUNTS))

    first, larger, again, larger_again = (fixed.step(values) for values in (small, large, small, large))

    assert bits(again) == bits(first) == bits(step.compiled().step(small))
    assert bits(larger_again) == bits(larger) == bits(step.step(large))
    assert [m.text for m in larger.messages] == ["once"] * (2 if inside else 1)


def test_the_ops_of_earlier_attempts_do_not_count():
    s = layers()
    step = training(s)
    counted = []
    for _ in range(2):
        run = Run(limits=RunLimits(max_ops=1000))
        assert step.machine is not None
        assert step.machine.region is not None
        args = [(s.values | step.initial_state())[v.name] for v in step.inputs]
        step.machine.region(run, *args)
        counted.append(run.ops_left)

    assert counted[0] == counted[1]


def test_a_run_is_not_repeated_without_end(monkeypatch: pytest.MonkeyPatch):
    """A size that no code is made for: the result is that of the reference executor."""
    s = layers()
    step = training(s)
    region, values = region_of(step), s.values | step.initial_state()
    made = []

    def grows(*_: Any) -> bool:
        made.append(1)
        return True

    monkeypatch.setattr(region, "_grows", grows)
    outputs = step.step(values)

    assert 1 < len(made) < 20
    assert [m.text for m in outputs.messages] == ["once"]
    np.testing.assert_allclose(outputs.loss, training(s).step(values).loss, rtol=1e-5)
