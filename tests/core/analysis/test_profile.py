"""The profile of a step: names, counts and work of kernels. Times are not tested."""

from __future__ import annotations

import time

import numpy as np
import pytest

from core.analysis.profile import as_text, profile_of
from core.codegen import machine_peak as peaks
from core.codegen.machine_peak import ARRAY_BYTES, MachinePeak, _bounds, _rate, machine_peak
from core.compiler.compile import GradientQuery, compile_forward, compile_gradient, compile_training
from core.ir import Block, Op
from core.optim.optimizers import Optimizer
from core.plan import fourier
from core.plan.instructions import Interpreted
from core.runtime.times import Times
from core.wire import read
from tests.core.analysis.test_report import mlp
from tests.core.passes.loops import tanh_loop
from tests.programs import Sketch


@pytest.fixture(autouse=True)
def _transforms_without_machine_code(monkeypatch):
    """Transforms stay with the reference executor, as those of more numbers do."""
    monkeypatch.setattr(fourier, "LONGEST", 1)


def transforming_between() -> Sketch:
    """A product, a transform without machine code, and another product."""
    s = Sketch()
    s.param("w", [[0.5, 0.7], [0.1, 0.9]])
    s.param("v", [[0.5, 0.7], [0.2, 0.3]])
    s.op("mul", "w", "v", out="wv")
    s.op("dft", "wv", out="transformed")
    s.total(s.op("mul", "transformed", "v"))
    return s


def profiled(s: Sketch, compiled: bool = True, steps: int = 1) -> dict:
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    if compiled:
        executable = executable.compiled(timed=True)
    values = {v.name: s.values[v.name] for v in executable.inputs if v.name in s.values}
    executable.step(values)  # not counted
    times = Times()
    for _ in range(steps):
        executable.step(values, times=times)
    return profile_of(times)


def test_matrix_products_have_location_calls_work_and_bytes():
    batch, width = 8, 16
    found = profiled(mlp(batch, width), steps=3)
    products = [each for each in found["kernels"] if each["kernel"].startswith("product")]

    # three forward, three for weights, two for inputs: the first layer's input needs none
    assert len(products) == 8
    assert all(each["compiled"] and each["calls"] == 3 for each in found["kernels"])
    for each in products:
        assert each["flops"] == 3 * 2 * batch * width * width
        assert each["bytes"] == 3 * 8 * (2 * batch * width + width * width)
        assert each["of"]["type"] == "matmul"
    assert sum(each["of"]["backward"] for each in products) == 5


def test_an_elementwise_kernel_counts_each_operation_and_each_array_once():
    s = Sketch()
    s.param("w", np.arange(12.0).reshape(3, 4))
    s.feed("x", np.arange(4.0))  # broadcast over the rows, but read from memory once
    s.op("mul", "w", "x", out="loss")
    program = read(s.document)
    executable = compile_gradient(program, GradientQuery(targets=("loss",), inputs=("w",)), ["loss"])
    times = Times()
    executable.compiled(timed=True).step(s.values, times=times)
    kernels = profile_of(times)["kernels"]
    (product,) = [each for each in kernels if "mul" in each["ops"]]

    assert product["flops"] == 12 * product["ops"].count("mul")
    assert (
        8 * (12 + 4 + 12) <= product["bytes"] <= 8 * (12 + 4 + 12 + 12)
    )  # the same kernel may also compute the gradient


@pytest.mark.parametrize("compiled", [True, False], ids=["machine code", "interpreted"])
def test_kernels_in_a_loop_are_counted_by_trips_and_the_loop_is_not_a_kernel(compiled):
    trips, steps = 7, 2
    found = profiled(tanh_loop(trips), compiled, steps)
    inside = [each for each in found["kernels"] if each["of"] and each["of"]["block"] == 1 and each["calls"] > steps]

    assert inside
    assert {each["calls"] for each in inside} <= {trips * steps, (trips + 1) * steps}
    assert any("tanh" in each["ops"] for each in inside)
    assert any(each["of"]["backward"] for each in inside)
    assert not any(op in ("loop", "while") for each in found["kernels"] for op in (*each["ops"], each["kernel"]))


def test_ops_between_regions_are_profiled():
    found = profiled(transforming_between())
    forward, backward = sorted(
        [each for each in found["kernels"] if each["kernel"] == "dft"], key=lambda each: each["of"]["backward"]
    )

    assert not forward["compiled"] and not backward["compiled"]
    assert forward["calls"] == 1
    assert forward["of"] == {"block": 0, "op": 1, "type": "dft", "backward": False}
    assert forward["bytes"] == 8 * 4 + 8 * 4
    assert any(each["compiled"] for each in found["kernels"])


@pytest.fixture
def slow_transform(monkeypatch):
    """Each transform takes 20 ms; machine code calls it back, here in each trip of a loop."""
    kernel = np.fft.fft

    def slow(x, **given):
        time.sleep(0.02)
        return kernel(x, **given)

    monkeypatch.setattr(np.fft, "fft", slow)


def test_an_op_called_back_from_machine_code_is_one_entry_and_its_time_is_counted_once(slow_transform):
    s = Sketch()
    s.param("w", [[2.0, 0.5], [0.5, 3.0]])
    s.op("assign", "w", out="h")
    with s.repeat(3):
        s.op("matmul", s.op("dft", "h"), "w", out="g")
        s.op("add", s.op("scale", "g", scale=0.1), "w", out="h")
    s.total("h")
    executable = compile_forward(read(s.document), ["loss"]).compiled(timed=True)
    times = Times()
    executable.step(s.values, times=times)
    assert any(isinstance(each, Interpreted) for each in executable.machine.region.timed)

    found = profile_of(times)

    (transform,) = [each for each in found["kernels"] if "dft" in each["ops"]]
    assert not transform["compiled"]
    assert transform["calls"] == 3
    assert 60 <= transform["ms"] <= found["ms"]
    inside = sum(each["ms"] for each in found["kernels"])
    assert inside <= found["ms"]
    assert found["outside_ms"] == pytest.approx(found["ms"] - inside, abs=1e-3)
    assert found["outside_ms"] > 0


def test_the_slowest_kernel_comes_first_and_the_shares_add_up():
    found = profiled(mlp())
    times = [each["ms"] for each in found["kernels"]]

    assert times == sorted(times, reverse=True)
    assert sum(each["share_of_time"] for each in found["kernels"]) <= 1.001
    assert found["ms"] > 0
    assert all(each["share_of_peak"] >= 0 for each in found["kernels"])


def test_code_with_timers_gives_the_same_bytes():
    s = mlp(8, 16)
    executable = compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer("adam", {}))
    values = {**executable.initial_state(), **s.values}
    plain = executable.compiled().step(values)
    timed = executable.compiled(timed=True).step(values, times=Times())

    for name, value in plain.parameters.items():
        assert value.tobytes() == timed.parameters[name].tobytes()
    assert plain.loss.tobytes() == timed.loss.tobytes()


def test_the_shortest_possible_time_is_limited_by_arithmetic_or_by_the_memory_level():
    machine = MachinePeak(1, {"float32": 100.0, "float64": 50.0}, ((10, 1000.0), (100, 10.0)))

    assert machine.seconds(200, 10, "float32") == 2.0
    assert machine.seconds(200, 10, "float64") == 4.0
    assert machine.seconds(0, 10, "float32") == 0.01
    assert machine.seconds(0, 50, "float32") == 5.0
    assert machine.seconds(0, 1000, "float32") == 100.0
    assert machine.seconds(200, 0, "int64") == 2.0


@pytest.mark.parametrize("held_up", [set(), {0}, set(range(6, 8)), set(range(36, 42)), set(range(0, 90, 2))])
def test_a_delay_during_the_measurement_does_not_lower_the_peak(monkeypatch, held_up):
    clock, calls = [0.0], []

    def run(_thread: int, times: int) -> None:
        clock[0] += 5e-5 + times * 1e-6  # the start takes time too
        clock[0] += 0.005 * 1.5 ** (len(calls) % 7) * (len(calls) in held_up)
        calls.append(times)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    assert _rate(run, 1) == pytest.approx(1e6, rel=0.1)
    assert clock[0] < 2


def test_the_measured_peak_is_positive():
    machine = machine_peak(1)

    assert all(rate > 1e7 for rate in machine.flops.values())
    assert all(rate > 1e6 for _, rate in machine.bandwidth)


def test_a_peak_that_work_exceeds_is_measured_again_and_no_share_exceeds_1(monkeypatch):
    slow = MachinePeak(1, {"float32": 1.0, "float64": 1.0, "bfloat16": 3.0}, ((2**30, 1.0),))
    fast = MachinePeak(1, {"float32": 1e15, "float64": 1e15, "bfloat16": 2.0}, ((2**30, 1e15),))
    measured = iter([slow, fast])
    monkeypatch.setattr(peaks, "_measured", {})
    monkeypatch.setattr(peaks, "_measure", lambda threads: next(measured))
    found = profiled(mlp())

    assert found["peak"]["flops_per_s"] == {"float32": 10**15, "float64": 10**15, "bfloat16": 3}
    assert found["peak"]["bytes_per_s"] == [{"up_to_bytes": 2**30, "rate": 10**15}]
    assert all(each["share_of_peak"] < 0.1 for each in found["kernels"])
    assert next(measured, None) is None


def test_shares_of_a_peak_that_stays_too_low_are_1_and_end_the_measurements(monkeypatch):
    slow, calls = MachinePeak(1, {"float32": 1.0, "float64": 1.0}, ((2**30, 1.0),)), []
    monkeypatch.setattr(peaks, "_measured", {})
    monkeypatch.setattr(peaks, "_measure", lambda threads: calls.append(threads) or slow)
    found = [profiled(mlp()) for _ in range(3)][-1]

    assert max(each["share_of_peak"] for each in found["kernels"]) == 1.0
    assert len(calls) == peaks.MOST_MEASUREMENTS


def test_the_table_shows_means_per_step_and_the_number_of_steps():
    kernel = {"kernel": "rows 2", "ops": ["mul"], "calls": 20, "flops": 40, "bytes": 80}
    of = {"block": 1, "op": 3, "type": "mul", "backward": False}
    times = {"ms": 0.004, "share_of_time": 0.4, "share_of_peak": 0.5}
    found = {"ms": 0.01, "outside_ms": 0.006, "peak": {"threads": 3}}
    found["kernels"] = [{**kernel, **times, "of": of, "compiled": True}]
    _, line, outside, end = as_text(found, steps=4).splitlines()

    assert line.split() == ["1.00", "40.0%", "5", "0.0", "0.0", "50%", "rows", "2", "1:3", "mul"]
    assert outside.split()[:2] == ["1.50", "60.0%"]
    assert end == "2.50 us per step, the mean of 4, on 3 threads"


def test_the_table_marks_kernels_of_the_optimizer():
    executable = compile_training(read(mlp(8, 16).document), GradientQuery(loss="loss"), Optimizer("adam", {}))
    values = {**executable.initial_state(), **mlp(8, 16).values}
    times = Times()
    executable.compiled(timed=True).step(values, times=times)
    lines = as_text(profile_of(times)).splitlines()

    assert any(" optimizer [" in line and "sqrt" in line for line in lines)


def test_the_table_has_a_line_for_each_kernel():
    found = profiled(transforming_between())
    lines = as_text(found).splitlines()

    assert len(lines) == 1 + len(found["kernels"]) + 2
    assert lines[0].split()[:3] == ["us", "time", "calls"]
    assert any("dft (interpreted)" in line and "0:1 dft" in line for line in lines)
    assert any("backward of 0:1 dft" in line for line in lines)


def test_a_rate_bounds_larger_arrays_and_a_disturbed_measurement_bounds_none():
    rates = [900.0, 700.0, 100.0, 400.0, 300.0, 50.0, 40.0]  # the third was disturbed
    machine = MachinePeak(2, {"float32": 1.0}, _bounds(rates))

    assert [rate for _, rate in machine.bandwidth] == [900.0, 700.0, 400.0, 400.0, 300.0, 50.0, 40.0]
    assert machine.seconds(0, 2**16, "float32") == 2**16 / 900.0  # larger than 2**14, which moves at this rate
    assert machine.seconds(0, ARRAY_BYTES[-1] * 100, "float32") == pytest.approx(ARRAY_BYTES[-1] * 100 / 40.0)


def test_bytes_of_an_op_that_runs_alone_are_those_in_memory():
    """A view moves none, and an element that a view repeats is one."""
    x = np.ones((100, 50))
    repeated = np.broadcast_to(np.ones(50), (100, 50))
    add, transpose, expand, same = (Op(name, (), (), {}) for name in ("add", "transpose", "expand", "assign"))
    times, block = Times(), Block((), (), (), {})

    times.call(add, block, lambda xp, a, b: a + b, np, x, repeated)
    times.call(transpose, block, lambda xp, a: a.T, np, x)
    times.call(expand, block, lambda xp, a: xp.broadcast_to(a, (7, 100, 50)), np, x)
    times.call(same, block, lambda xp, a: (a,), np, x)

    assert [spent.nbytes for _, _, spent in times.ops.values()] == [2 * x.nbytes + 50 * 8, 0, 0, 0]
