"""Steps share one arena in turn, and no step writes into the results of another."""

from __future__ import annotations

import gc
import json
import threading
import tracemalloc
from weakref import WeakSet

import numpy as np
import pytest

from bench.workloads import mlp
from core.compiler.compile import GradientQuery, Optimizer, compile_gradient, compile_training
from core.compiler.trainer import Trainer
from core.ir.aligned import LINE
from core.ops.common.types import as_dtype
from core.runtime import memory
from core.runtime.memory import Arena, Arenas
from core.wire import read

BATCHES = (40, 70, 10, 130, 100, 20, 90)


@pytest.fixture(autouse=True)
def lent_soon(monkeypatch):
    gc.collect()  # arenas of earlier tests
    monkeypatch.setattr(Arenas, "_ALL", WeakSet())  # and those that something still holds
    monkeypatch.setattr(memory, "LENT", 1)
    monkeypatch.setattr(memory, "LARGE", 1)


def models():
    """Networks of one architecture by batch size, with their values: all gradients have the same types."""
    for batch in BATCHES:
        workload = mlp("mlp", batch, (30, 40, 10))
        yield compile_gradient(read(workload.program), GradientQuery(loss="loss")), workload


def arena_bytes():
    return sum(each._own.size for each in Arenas._ALL if each._own is not None)


def test_arenas_have_the_size_of_the_largest_and_are_freed_with_it():
    compiled = [(executable.compiled(), workload) for executable, workload in models()]
    sizes = [executable.machine.region.arena_bytes for executable, _ in compiled]

    for executable, workload in compiled:
        executable.step({**workload.feeds, **workload.parameters})

    assert arena_bytes() == max(sizes) < sum(sizes) / 2
    del compiled[BATCHES.index(max(BATCHES))], executable
    assert arena_bytes() == 0
    for executable, workload in compiled:
        executable.step({**workload.feeds, **workload.parameters})
    assert arena_bytes() == sorted(sizes)[-2]


def test_results_of_a_step_do_not_change_while_other_steps_run():
    compiled = [(executable.compiled(), executable, workload) for executable, workload in models()]
    held = []
    for turn in range(6):
        for native, reference, workload in compiled:
            values = {**workload.feeds, **{n: p * (1 + turn) for n, p in workload.parameters.items()}}
            held.append((native.step(values).gradients, reference.step(values).gradients))
        if turn % 3 == 2:  # their memory is used again
            held = held[::2]
        for found, wanted in held:
            for name in wanted:
                np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-5)


def test_a_view_of_a_result_keeps_its_memory():
    executable, workload = next(models())
    native = executable.compiled()
    values = {**workload.feeds, **workload.parameters}
    view = next(iter(native.step(values).gradients.values()))[1:]
    before = view.copy()

    doubled = {name: 2 * value for name, value in workload.parameters.items()}
    for _ in range(3):
        native.step(workload.feeds | doubled)

    np.testing.assert_array_equal(view, before)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_parameters_between_steps_and_their_gradients_start_at_cache_lines(dtype):
    _, workload = next(models())
    program = read(json.loads(json.dumps(workload.program).replace("float32", dtype)))
    cast = lambda values: {n: v.astype(as_dtype(dtype)) if v.dtype == np.float32 else v for n, v in values.items()}
    training = compile_training(program, GradientQuery(loss="loss"), Optimizer("sgd", {})).compiled()
    trainer = Trainer(training, cast(workload.parameters))
    for _ in range(3):
        trainer.step(cast(workload.feeds))
        last = trainer._last
        large = [*last.parameters.values(), *last.gradients.values()]
        assert len(large) == 8
        assert not any(each.ctypes.data % LINE for each in large)


def test_steps_with_equal_results_share_the_memory_kept_for_them():
    def numpy_bytes():
        found = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)])
        return sum(each.size for each in found.traces)

    compiled = [(executable.compiled(), workload) for executable, workload in models()]
    gradients = sum(p.nbytes for p in compiled[0][1].parameters.values())
    tracemalloc.start()
    try:
        for _ in range(3):
            for executable, workload in compiled:
                executable.step({**workload.feeds, **workload.parameters})
        kept = numpy_bytes() - arena_bytes()
    finally:
        tracemalloc.stop()

    assert kept < 3 * gradients  # with a set or two for each of them it would be seven or more


@pytest.mark.reference  # else the steps to compare with have arenas, too
def test_steps_of_two_threads_use_two_arenas():
    compiled = [(executable.compiled(), executable, workload) for executable, workload in models()][:4]
    wrong: list[str] = []

    def train(native, reference, workload):
        values = {**workload.feeds, **workload.parameters}
        wanted = reference.step(values).gradients
        for _ in range(200):
            found = native.step(values).gradients
            if any(not np.allclose(found[n], wanted[n], rtol=1e-4, atol=1e-5) for n in wanted):
                wrong.append(workload.name)

    threads = [threading.Thread(target=train, args=each) for each in compiled]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert not wrong
    assert arena_bytes() <= sum(each.machine.region.arena_bytes for each, *_ in compiled)


def test_an_arena_is_lent_to_one_step_at_a_time():
    one, other = Arenas(1000), Arenas(500)
    with one.lent() as first, other.lent() as second:
        assert first is not second
        assert {first.size, second.size} == {1000, 500}
    with other.lent() as found:
        assert found.size == 1000
    assert arena_bytes() == 1500
    with Arenas(2000).lent():
        assert arena_bytes() == 2000
    assert arena_bytes() == 0


def test_an_arena_starts_at_a_cache_line_and_has_the_requested_size():
    for size in (1, 63, 64, 1000):
        arena = Arena(size)
        assert arena.address % LINE == 0
        assert arena._memory.ctypes.data == arena.address
        assert arena._memory.nbytes == size
