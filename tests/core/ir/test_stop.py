"""Long transformations poll their caller, so that it can stop them."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import FrameType

import pytest

from core.codegen.backend import write_plan
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.recursion import headroom
from core.ir.stop import poll, waiting, watched_by
from core.plan.partition import plan_parts
from core.wire import read
from tests.policy_nests import nest
from tests.programs import Sketch


class Stopped(Exception):
    pass


class Watch:
    """Counts calls of functions between polls; stops the transformation at poll number `last`."""

    def __init__(self, last: int = sys.maxsize) -> None:
        self.last = last
        self.polls = self.calls = self.longest = 0

    def poll(self) -> None:
        self.polls += 1
        self.longest, self.calls = max(self.longest, self.calls), 0
        if self.polls >= self.last:
            raise Stopped

    def waiting(self):
        return nullcontext()

    def counted(self, frame: FrameType, event: str, argument: object) -> None:
        self.calls += event in ("call", "c_call")


def compile_all(document: object) -> None:
    block = compile_gradient(read(document), GradientQuery(loss="loss")).interpreter.block
    with headroom():
        (plan,) = plan_parts(block, CPU_TARGET).regions
        module, _ = write_plan(plan)
    module.texts(2)


def chain(ops: int) -> Sketch:
    s = Sketch()
    s.param("w", [[0.5, 0.7], [0.1, 0.2]])
    s.op("assign", "w", out="h")
    for _ in range(ops // 2):
        s.op("tanh", s.op("matmul", "h", "w"), out="h")
    s.total("h")
    return s


def norms(ops: int) -> Sketch:
    """A row kernel with several loops for each op."""
    s = Sketch()
    s.param("w", [[0.5] * 33] * 2)
    s.op("assign", "w", out="h")
    for _ in range(ops):
        s.op("layer_norm", "h", out="h")
    s.total("h")
    return s


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sketch", [chain(60), norms(4), nest("while", 5, "recompute"), nest("if_else", 8)])
def test_compilation_polls_after_a_bounded_amount_of_work(sketch: Sketch):
    compile_all(sketch.document)  # fills caches
    watch = Watch()

    with watched_by(watch):
        sys.setprofile(watch.counted)
        try:
            compile_all(sketch.document)
        finally:
            sys.setprofile(None)

    assert watch.polls > 500
    assert watch.longest < 4_000  # less than a millisecond


def test_a_watch_stops_a_compilation_at_any_poll():
    document = nest("while", 3, "recompute").document
    whole = Watch()
    with watched_by(whole):
        compile_all(document)

    for last in range(1, whole.polls, whole.polls // 40):
        with pytest.raises(Stopped), watched_by(Watch(last)):
            compile_all(document)
    with watched_by(Watch()):
        compile_all(document)


def test_without_a_watch_nothing_is_polled():
    with waiting():
        poll()
