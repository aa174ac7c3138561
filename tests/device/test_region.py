"""The host's part of a step on a GPU: launches, graphs, stacks, limits and failures, on a driver that is emulated."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from core.codegen.cache import DiskCache
from core.compiler.compile import GradientQuery, compile_forward, compile_gradient, key_of
from core.device.backend import DeviceBackend
from core.device.driver import DeviceFault
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError, OutOfMemory
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run, RunLimits
from core.wire import read
from tests.device.agreement import DRAWN, looping, training_step
from tests.device.driver import EmulatedDriver
from tests.device.emulator import compiler
from tests.laws.agreement import like, same, values_like
from tests.laws.random_programs import EVERY, EXAMPLES, POLICIES, second_order
from tests.programs import Sketch

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")


def backend_of(driver: EmulatedDriver, disk: DiskCache | None = None, **rules: int) -> DeviceBackend:
    found = DeviceBackend(driver, driver.make, blocks=2, block=64, disk=disk)
    found.rules = replace(found.rules, **rules)
    return found


def check_program(document, seed, width, dtype):
    """Three runs, two of them as a graph, have equal bits, and the results or the error of the reference executor."""
    values = values_like(seed, dtype, width)
    program = read(like(document, dtype, width))
    draw = random.Random(seed)
    query = GradientQuery(targets=("loss",), loop_memory=draw.choice(POLICIES), **EVERY)
    memory = (draw.choice(POLICIES), draw.choice(POLICIES))
    driver = EmulatedDriver(seed)
    backend = backend_of(driver, sorted_apart=draw.choice((1, 256)))
    for executable in (compile_gradient(program, query, fetch=["loss"]), second_order(program, memory=memory)):
        block = executable.interpreter.block
        args = [key_of(0, 0) if v.role == "key" else values[v.name] for v in executable.inputs]
        native = native_interpreter(block, backend)
        with np.errstate(all="ignore"):
            try:
                wanted = interpreter_of(block)(Run(), *args)
            except ExecutionError as refused:
                for _ in range(3):
                    with pytest.raises(ExecutionError) as caught:
                        native(Run(), *args)
                    assert (caught.value.code, caught.value.location) == (refused.code, refused.location)
                continue
            runs = [Run(), Run(), Run()]
            found = [native(run, *args) for run in runs]
        assert len({run.ops_left for run in runs}) == 1
        for one, two, three, want in zip(*found, wanted, strict=True):
            same(one, want)
            assert np.asarray(one).tobytes() == np.asarray(two).tobytes() == np.asarray(three).tobytes()


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(**DRAWN)
def test_a_random_program_runs_as_launches_and_as_a_graph_with_the_results_of_the_reference_executor(
    document, seed, width, dtype
):
    check_program(document, seed, width, dtype)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(**DRAWN)
def test_many_random_programs_run_as_launches_and_as_graphs(document, seed, width, dtype):
    check_program(document, seed, width, dtype)


def region_of(block, driver):
    native = native_interpreter(block, backend_of(driver))
    assert native.region is not None
    return native.region


def test_the_third_run_launches_the_graph_of_the_second_on_other_arrays():
    block, values = training_step()
    driver = EmulatedDriver()
    region = region_of(block, driver)

    for factor in (1, 2, 3, 4):
        given = [value * factor for value in values]
        for found, wanted in zip(region(Run(), *given), interpreter_of(block)(Run(), *given), strict=True):
            same(found, wanted)

    assert region.captured == 1
    assert driver.graph_launches == 3
    assert region.launched == driver.launches == 4


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_an_array_that_begins_at_any_address_is_read(shift):
    b = BlockBuilder()
    x, y = (b.param(TensorType((16, 16), "float32")) for _ in range(2))
    block = b.build([b.emit("matmul", x, y)])
    room = np.arange(256 + shift, dtype="float32") % 7
    shifted, eye = room[shift:].reshape(16, 16), np.eye(16, dtype="float32")
    region = region_of(block, EmulatedDriver())

    for both in ((shifted, eye), (eye, shifted)):
        (found,) = region(Run(), *both)
        assert np.array_equal(found, shifted)


def test_runs_that_begin_before_others_have_ended_have_errors_and_results_of_their_own():
    b = BlockBuilder()
    block = b.build([b.emit("gather", b.param(TensorType((4, 3), "float32")), b.param(TensorType((2,), "int64")))])
    x, driver = np.arange(12, dtype="float32").reshape(4, 3), EmulatedDriver(seed=5)
    region = region_of(block, driver)
    rows = [np.array(each) for each in ([0, 1], [0, 4], [3, 2])]
    bound = [region.bind([x, each, np.zeros((2, 3), "float32")]) for each in rows]

    for _ in range(4):
        for each in bound:
            each.arrays[-1][:] = -1
        begun = [region.begin(each, Run()) for each in bound]
        with pytest.raises(ExecutionError) as caught:
            begun[1].end()
        begun[2].end()
        begun[0].end()
        assert caught.value.code == "index_out_of_range"
        assert np.array_equal(bound[0].arrays[-1], x[:2]) and np.array_equal(bound[2].arrays[-1], x[[3, 2]])

    assert region.captured == 3
    rows[1][1] = 2  # the addresses stay, and the words of the run that failed are not those of the next one
    region.begin(bound[1], Run()).end()
    assert np.array_equal(bound[1].arrays[-1], x[[0, 2]])


@pytest.mark.parametrize("memory", ["arena", "stacks"])
def test_memory_that_a_run_still_uses_is_freed_behind_it(memory):
    block, values = looping(trips=700)
    driver = EmulatedDriver(seed=2)
    region = region_of(block, driver)
    wanted = region(Run(), *values)
    results = [np.zeros_like(each) for each in wanted]

    begun = region.begin(region.bind([*map(np.asarray, values), *results]), Run())
    assert region._stream.pending
    if memory == "arena":
        region._arena.free_idle()
    else:
        region.free_idle()
    assert not region._stream.pending
    begun.end()

    for one, want in zip(results, wanted, strict=True):
        same(one, want)


def test_words_are_sent_only_when_they_change_unless_loops_change_them():
    block, values = training_step()
    driver = EmulatedDriver()
    region = region_of(block, driver)
    copies = []
    region._stream.copy, copy = lambda *what: (copies.append(what), copy(*what)), region._stream.copy
    arrays = region.bind([*map(np.asarray, values), *region.results()])

    for _ in range(3):
        region.run(arrays, Run())
    assert len(copies) == 1
    arrays.put(0, arrays.arrays[0] * 2)
    region.run(arrays, Run())

    assert len(copies) == 2
    given, found = arrays.arrays[: len(values)], arrays.arrays[len(values) :]
    for one, want in zip(found, interpreter_of(block)(Run(), *given), strict=True):
        same(one, want)


def test_runs_allocate_device_memory_only_once():
    block, values = training_step()
    driver = EmulatedDriver()
    region = region_of(block, driver)
    region(Run(), *values)
    before = driver.allocations

    for _ in range(5):
        region(Run(), *values)

    assert driver.allocations == before


def test_a_region_with_a_larger_arena_takes_the_arena_of_the_others_and_they_run_again():
    driver = EmulatedDriver()
    backend = backend_of(driver)
    small, values = looping(trips=3)
    large, others = training_step()
    first = native_interpreter(small, backend).region
    for _ in range(2):
        first(Run(), *values)
    second = native_interpreter(large, backend).region
    assert second.arena_bytes > first.arena_bytes
    driver.capacity = driver.allocated + second.arena_bytes - 1  # both arenas together find no room
    second(Run(), *others)

    found = first(Run(), *values)

    for one, want in zip(found, interpreter_of(small)(Run(), *values), strict=True):
        same(one, want)
    assert backend.arena.nbytes == second.arena_bytes


def test_a_stack_grows_once_and_the_ops_of_the_run_count_once():
    block, values = looping(trips=700)
    driver = EmulatedDriver()
    region = region_of(block, driver)
    reference, run, again = Run(), Run(), Run()
    wanted = interpreter_of(block)(reference, *values)

    found = region(run, *values)
    grown = region.launched
    region(again, *values)

    for one, want in zip(found, wanted, strict=True):
        same(one, want)
    assert grown > 1
    assert region.launched == grown + 1
    assert run.ops_left == again.ops_left


def test_a_loop_that_records_too_much_is_refused_at_its_place():
    block, values = looping(trips=5000)
    region = region_of(block, EmulatedDriver())

    with pytest.raises(ExecutionError) as caught:
        region(Run(limits=RunLimits(max_bytes=1 << 14)), *values)

    assert caught.value.code == "too_large"
    assert caught.value.location is not None and caught.value.location.type == "while"
    few = [np.asarray(3) if v.ndim == 0 else v for v in values]
    for one, want in zip(region(Run(), *few), interpreter_of(block)(Run(), *few), strict=True):
        same(one, want)


FOR_EVER = {"max_trips": 10**9, "max_ops": 10**12, "max_bytes": 2**50}


def test_one_launch_stops_when_its_deadline_passes():
    s = Sketch()
    s.param("h", [0.5, -0.25])
    s.feed("n", 10**8, dtype="int64")
    with s.repeat("n"):
        s.op("sin", "h", out="h")
    executable = compile_forward(read(s.document), fetch=["h"])
    values = [s.values[each.name] for each in executable.inputs]
    region = region_of(executable.interpreter.block, EmulatedDriver())
    assert not region.plan.stacks, "a run that repeats its launches looks at the deadline between them"

    started = time.monotonic()
    with pytest.raises(ExecutionError) as caught:
        region(Run(limits=RunLimits(deadline=started + 0.3, **FOR_EVER)), *values)

    assert caught.value.code == "deadline_exceeded"
    assert time.monotonic() - started < 20


def test_a_loop_stops_when_its_run_is_canceled_and_the_next_run_is_right():
    block, values = looping(trips=10**8)
    region = region_of(block, EmulatedDriver())
    canceled = threading.Event()
    threading.Timer(0.3, canceled.set).start()

    with pytest.raises(ExecutionError) as caught:
        region(Run(limits=RunLimits(should_stop=canceled.is_set, **FOR_EVER)), *values)

    assert caught.value.code == "canceled"
    few = [np.asarray(5) if v.ndim == 0 else v for v in values]
    for one, want in zip(region(Run(), *few), interpreter_of(block)(Run(), *few), strict=True):
        same(one, want)


@pytest.mark.parametrize("limits", [{"max_trips": 5}, {"max_ops": 20}])
def test_limits_of_trips_and_ops_have_the_error_of_the_reference_executor(limits):
    block, values = looping(trips=9)
    region = region_of(block, EmulatedDriver())
    with pytest.raises(ExecutionError) as wanted:
        interpreter_of(block)(Run(limits=RunLimits(**limits)), *values)

    for _ in range(3):
        with pytest.raises(ExecutionError) as caught:
            region(Run(limits=RunLimits(**limits)), *values)
        assert (caught.value.code, caught.value.location) == (wanted.value.code, wanted.value.location)


def test_an_index_error_of_one_run_leaves_the_next_run_alone():
    b = BlockBuilder()
    block = b.build([b.emit("gather", b.param(TensorType((4, 3), "float32")), b.param(TensorType((2,), "int64")))])
    x = np.arange(12, dtype="float32").reshape(4, 3)
    region = region_of(block, EmulatedDriver())

    for _ in range(3):
        with pytest.raises(ExecutionError) as caught:
            region(Run(), x, np.array([0, 4]))
        assert caught.value.code == "index_out_of_range"
        (found,) = region(Run(), x, np.array([-4, 3]))
        assert found.tolist() == [[0, 1, 2], [9, 10, 11]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("call", ["allocate", "pinned"])
@pytest.mark.parametrize("before", range(4))
def test_a_run_without_memory_is_refused_and_the_next_one_is_right(call, before):
    block, values = looping(trips=700)
    driver = EmulatedDriver()
    region = region_of(block, driver)
    driver.failing[call] = before

    refused = None
    try:
        region(Run(), *values)
    except OutOfMemory as error:
        refused = error
    driver.failing.clear()

    assert refused is not None or before == 3
    for one, want in zip(region(Run(), *values), interpreter_of(block)(Run(), *values), strict=True):
        same(one, want)


def test_a_full_gpu_refuses_a_step_and_keeps_no_memory_for_it():
    block, values = training_step()
    driver = EmulatedDriver()
    region = region_of(block, driver)
    driver.capacity = region.arena_bytes - 1

    with pytest.raises(OutOfMemory):
        region(Run(), *values)

    assert driver.allocated < region.arena_bytes


def test_a_run_whose_stacks_found_no_room_leaves_room_for_a_shorter_one():
    block, values = looping(trips=100_000)
    driver = EmulatedDriver()
    region = region_of(block, driver)
    driver.capacity = region.arena_bytes + 4 * region.stack_bytes

    with pytest.raises(OutOfMemory):
        region(Run(limits=RunLimits(max_trips=10**6)), *values)

    few = [np.asarray(3) if v.ndim == 0 else v for v in values]
    for one, want in zip(region(Run(), *few), interpreter_of(block)(Run(), *few), strict=True):
        same(one, want)


@pytest.mark.parametrize("failure", ["launch", "timeout"])
def test_a_gpu_that_fails_stays_lost(failure):
    block, values = training_step()
    driver = EmulatedDriver()
    region = region_of(block, driver)
    region(Run(), *values)
    driver.failing[failure] = 0

    for _ in range(2):
        with pytest.raises(DeviceFault):
            region(Run(), *values)


def test_machine_code_on_disk_is_not_made_twice(tmp_path):
    block, values = training_step()
    made = []
    driver = EmulatedDriver()

    def make(code, architecture):
        if code.launches[0].kernel != "copy_words":
            made.append(code)
        return driver.make(code, architecture)

    def compiled(block, threads=64):
        disk = DiskCache(tmp_path / "code", 1 << 26)
        return native_interpreter(block, DeviceBackend(driver, make, blocks=2, block=threads, disk=disk))

    for _ in range(2):
        compiled(block)(Run(), *values)
    assert len(made) == 1
    compiled(block, threads=32)
    assert len(made) == 2
    compiled(looping(trips=3)[0])
    assert len(made) == 3
