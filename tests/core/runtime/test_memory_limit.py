"""A run asks for memory before it allocates, and is refused with the place of the op and the bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_forward, compile_gradient
from core.ir.errors import ExecutionError, OutOfMemory
from core.runtime import memory
from core.runtime.executable import Executable
from core.runtime.run import RunLimits
from core.tape import Tape
from core.wire import read
from tests.programs import Sketch

MIB = 2**20


class Traced:
    """A `MemoryLimit` of the arrays of numpy that are allocated inside a test, and the most that were alive."""

    def __init__(self, capacity: int, held: int = 0) -> None:
        self.capacity, self.held = capacity, held
        self.base = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()

    def used(self) -> int:
        return self.held + tracemalloc.get_traced_memory()[0] - self.base

    def available(self, wanted: int, keep_idle: bool = False) -> int:
        if not keep_idle:
            memory.free_idle()
        return self.capacity - self.used()

    @property
    def peak(self) -> int:
        return tracemalloc.get_traced_memory()[1] - self.base


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def forward(s: Sketch, fetch: str) -> Executable:
    return compile_forward(read(s.document), [fetch])


def refusal(run: Callable[[], Any]) -> OutOfMemory:
    with pytest.raises(OutOfMemory) as caught:
        run()
    return caught.value


def of_size(n: int) -> Sketch:
    """Random numbers, their sum in `total`: eight bytes each, and about ten times that while they are drawn."""
    s = Sketch()
    s.op("uniform_random", out="r", shape=[n], dtype="float64")
    s.op("reduce_sum", "r", out="total")
    return s


def doubling() -> Sketch:
    s = Sketch()
    s.op("fill_constant", out="h", shape=[1000], value=1.0, dtype="float64")
    with s.repeat(60):
        s.op("concat", ["h", "h"], out="h", axis=0)
    s.op("reduce_sum", "h", out="total")
    return s


def recording(trips: int, n: int = 20_000) -> Sketch:
    s = Sketch()
    s.param("w", np.full(n, 0.5))
    s.op("assign", "w", out="h")
    with s.repeat(trips):
        s.op("sin", s.op("mul", "h", "w"), out="h")
    s.total("h")
    return s


@pytest.mark.reference
def test_a_step_that_does_not_fit_is_refused_before_its_first_op():
    limit = Traced(40 * MIB)

    error = refusal(lambda: forward(of_size(10**6), "total").step({}, limits=RunLimits(memory=limit)))

    assert (error.code, error.location.type) == ("too_large", "uniform_random")
    assert error.wanted > limit.capacity >= error.allowed
    assert limit.peak < MIB


@pytest.mark.reference
def test_a_step_that_fits_alone_but_not_beside_others_may_be_repeated_later():
    limit = Traced(200 * MIB, held=190 * MIB)

    assert refusal(lambda: forward(of_size(10**6), "total").step({}, limits=RunLimits(memory=limit))).code == (
        "out_of_memory"
    )
    limit.held = 0
    assert forward(of_size(10**6), "total").step({}, limits=RunLimits(memory=limit)).fetched["total"].shape == ()
    assert limit.peak <= limit.capacity


@pytest.mark.reference
def test_a_value_that_doubles_is_refused_before_the_kernel_allocates():
    limit = Traced(32 * MIB)

    error = refusal(lambda: forward(doubling(), "total").step({}, limits=RunLimits(memory=limit)))

    assert (error.code, error.location.type) == ("too_large", "concat")
    assert limit.peak <= limit.capacity


@pytest.mark.reference
def test_an_array_beyond_the_limit_of_one_array_is_refused_before_it_exists():
    limit = Traced(64 * MIB)

    with pytest.raises(ExecutionError) as caught:
        forward(doubling(), "total").step({}, limits=RunLimits(memory=limit, max_bytes=8 * MIB))

    assert caught.value.code == "too_large"
    assert limit.peak < 16 * MIB


@pytest.mark.parametrize("compiled", [False, True])
def test_the_record_of_a_loop_counts_while_it_grows(compiled):
    limit = Traced(16 * MIB)
    executable = compile_gradient(read(recording(500).document), GradientQuery(loss="loss"))
    executable = executable.compiled() if compiled else executable

    error = refusal(lambda: executable.step(recording(500).values, limits=RunLimits(memory=limit)))

    assert error.location.type == "while"
    assert limit.peak <= limit.capacity
    roomy = RunLimits(memory=Traced(400 * MIB))
    assert np.isfinite(executable.step(recording(500).values, limits=roomy).loss)


def test_the_record_of_the_runs_of_an_inner_loop_is_refused_by_its_size():
    s = Sketch()
    s.param("h", [0.5])
    s.feed("n", 1000, dtype="int64")
    s.feed("m", 1, dtype="int64")
    with s.repeat("n"), s.repeat("m"):
        s.op("sin", "h", out="h")
    s.total("h")
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss", loop_memory="store")).compiled()

    with pytest.raises(ExecutionError, match="recorded more than 5000 bytes") as caught:
        executable.step(s.values, limits=RunLimits(max_bytes=5000))

    assert (caught.value.code, caught.value.location.type) == ("too_large", "while")


@pytest.mark.reference
def test_an_array_of_arrays_counts_while_it_grows():
    s = Sketch()
    s.op("create_array", out="kept", shape=[100_000], dtype="float64")
    s.op("fill_constant", out="x", shape=[100_000], value=1.0, dtype="float64")
    s.op("fill_constant", out="at", shape=[], value=0, dtype="int64")
    with s.repeat(500):
        s.op("array_write", s.op("sin", "x"), "at", "kept", out="kept")
        s.op("increment", "at", out="at", step=1.0)
    s.op("array_length", "kept", out="total")
    limit = Traced(16 * MIB)

    error = refusal(lambda: forward(s, "total").step({}, limits=RunLimits(memory=limit)))

    assert error.code == "too_large"
    assert limit.peak <= limit.capacity


def test_an_op_that_does_not_fit_leaves_a_tape_as_it_was():
    tape = Tape("immediate")
    tape.append([{"type": "fill_constant", "outputs": {"out": ["x"]}, "attrs": {"shape": [4], "value": 1.0}}])
    limit = Traced(8 * MIB)

    error = refusal(
        lambda: tape.append(
            [{"type": "uniform_random", "outputs": {"out": ["r"]}, "attrs": {"shape": [10**6]}}],
            limits=RunLimits(memory=limit),
        )
    )

    assert error.location.op == 1
    assert (len(tape), set(tape.computed)) == (1, {"x"})
    assert limit.peak < MIB


def test_idle_buffers_of_machine_code_are_freed_for_a_run_that_needs_them():
    s = recording(300)
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss")).compiled()
    executable.step(s.values)
    before = memory.idle_bytes()
    assert before > 40 * MIB  # the record of the loop

    memory.free_idle()

    assert memory.idle_bytes() < before - 40 * MIB
    assert np.isfinite(executable.step(s.values).loss)
