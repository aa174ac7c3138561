"""A training step that keeps its values on an emulated GPU, against the steps of the reference executor."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from core.compiler.compile import GradientQuery, Optimizer, compile_training
from core.device import bound_step
from core.device.bind import bind_device_step
from core.device.bound_step import DeviceBoundStep, _bytes
from core.device.feeds import GAP, Fed, spans_of
from core.ir.errors import ExecutionError
from core.runtime.bound_step import KEPT, bind_step
from core.runtime.run import Run, RunLimits
from core.runtime.sparse_rows import RowArray
from core.wire import read
from tests.device.agreement import DRAWN
from tests.device.driver import EmulatedDriver
from tests.device.emulator import compiler
from tests.device.test_region import backend_of
from tests.laws.agreement import like, same, values_like
from tests.laws.random_programs import EXAMPLES
from tests.programs import Sketch

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")


def training(driver):
    """A network with dropout and Adam; its values, and a function that draws the feeds of a step."""
    rng = np.random.default_rng(0)
    s = Sketch()
    x = s.feed("x", rng.standard_normal((8, 5)))
    t = s.feed("t", rng.standard_normal((8, 3)))
    w = s.param("w", rng.standard_normal((5, 7)) / 2)
    v = s.param("v", rng.standard_normal((7, 3)) / 2)
    h = s.op("dropout", s.op("tanh", s.op("matmul", x, w)), p=0.25, seed=3)
    s.total(s.op("square", s.op("sub", s.op("matmul", h, v), t)))
    executable = compile_training(
        read(s.document), GradientQuery(loss="loss"), Optimizer("adam", {"learning_rate": 0.01})
    )
    compiled = executable.on(backend_of(driver)).compiled()
    held = {n: np.array(s.values[n]) for n in ("w", "v")} | executable.initial_state()

    def feeds():
        return {n: rng.standard_normal(s.values[n].shape).astype(s.values[n].dtype) for n in ("x", "t")}

    return compiled, held, feeds


def reference_steps(executable, held, given):
    """The outputs of steps in a row, by the reference executor."""
    held = dict(held)
    for number, feeds in enumerate(given):
        out = executable.on(executable.backend).step({**held, **feeds}, 7, number)
        for place in KEPT:
            held |= getattr(out, place)
        yield out


def test_bound_steps_equal_those_of_the_reference_executor_and_copy_only_feeds_and_words():
    driver = EmulatedDriver()
    executable, held, feeds = training(driver)
    given = [feeds() for _ in range(6)]
    wanted = list(reference_steps(executable, held, given))
    bound = bind_device_step(executable, {n: v.copy() for n, v in held.items()})
    allocations = None

    for number, each in enumerate(given):
        handed = {n: v.copy() for n, v in each.items()}
        assert bound.takes(handed)
        for value in handed.values():
            value[:] = np.nan  # the feeds were copied
        out = bound.step(Run(), 7, number)
        same(out.loss, wanted[number].loss)
        for place in (*KEPT, "gradients"):
            assert getattr(out, place).keys() == getattr(wanted[number], place).keys()
            for name, value in getattr(out, place).items():
                same(value, getattr(wanted[number], place)[name])
        bound.keep()
        if number == 2:  # the third set of arrays was used
            allocations = driver.allocations
    assert driver.allocations == allocations


def test_results_leave_while_the_next_steps_run():
    driver = EmulatedDriver(seed=3)
    executable, held, feeds = training(driver)
    given = [feeds() for _ in range(7)]
    wanted = list(reference_steps(executable, held, given))
    bound = bind_device_step(executable, {n: v.copy() for n, v in held.items()})

    leaving = []
    for number, each in enumerate(given):
        assert bound.takes(each)
        out = bound.step(Run(), 7, number)
        leaving.append(bound.send({"loss": out.loss, **out.gradients}))
        bound.keep()

    for each, want in zip(leaving, wanted, strict=True):
        found = each.arrays()
        same(found.pop("loss"), want.loss)
        for name, value in found.items():
            same(value, want.gradients[name])


def test_a_step_that_is_not_kept_or_fails_changes_no_value():
    driver = EmulatedDriver()
    executable, held, feeds = training(driver)
    given = [feeds() for _ in range(3)]
    wanted = list(reference_steps(executable, held, given))
    bound = bind_device_step(executable, {n: v.copy() for n, v in held.items()})

    for number, each in enumerate(given):
        assert bound.takes(feeds())
        bound.step(Run(), 7, number)
        assert bound.takes(feeds())
        with pytest.raises(ExecutionError):
            bound.step(Run(limits=RunLimits(deadline=0.0)), 7, number)
        assert bound.takes(each)
        same(bound.step(Run(), 7, number).loss, wanted[number].loss)
        bound.keep()


def test_a_series_takes_the_elements_of_stacked_feeds_and_keeps_the_others():
    driver = EmulatedDriver()
    executable, held, feeds = training(driver)
    xs, t = np.stack([feeds()["x"] for _ in range(4)]), feeds()["t"]
    wanted = list(reference_steps(executable, held, [{"x": x, "t": t} for x in xs]))
    bound = bind_device_step(executable, {n: v.copy() for n, v in held.items()})
    assert bound.takes({"x": xs[0], "t": t})
    take = bound.series({"x": xs})

    for number in range(4):
        take(number)
        same(bound.step(Run(), 7, number).loss, wanted[number].loss)
        assert bound.has_finite_gradients()
        bound.keep()


def picking():
    """A network that picks rows, which may be out of range, and whose loop makes as many trips as its feed says."""
    rng = np.random.default_rng(1)
    s = Sketch()
    x = s.feed("x", rng.standard_normal((4, 5)))
    row = s.feed("row", np.array([0, 3, 1]), dtype="int64")
    s.feed("n", 3, dtype="int64")
    w = s.param("w", rng.standard_normal((5, 3)) / 2)
    s.op("gather", s.op("matmul", x, w), row, out="h")
    with s.repeat("n"):
        s.op("sin", "h", out="h")
    s.total("h")
    executable = compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer("momentum", RATE))
    held = {"w": np.array(s.values["w"])} | executable.initial_state()

    def feeds(n=3, row=(0, 3, 1)):
        x = rng.standard_normal((4, 5)).astype(s.values["x"].dtype)
        return {"x": x, "row": np.array(row), "n": np.asarray(n)}

    return executable, held, feeds


RATE = {"learning_rate": 0.05}


def collected(bound, given, runs=None, stop=None):
    """The losses and values of steps in a row, and the error that ended them. stop: after so many, the last unkept."""
    bind = lambda i: bound.takes({n: v.copy() for n, v in given[i].items()}) or pytest.fail("not taken")
    found, error = [], None
    steps = bound.steps(runs or (Run() for _ in given), 7, 0, bind)
    try:
        with closing(steps):
            for out in steps:
                found.append({n: np.array(v) for n, v in (("loss", out.loss), *out.parameters.items())})
                if len(found) == stop:
                    break
    except ExecutionError as refused:
        error = refused.code
    return found, error


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sets", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_steps_in_a_row_equal_single_ones_with_stacks_that_grow_errors_and_an_end_before_the_last(sets, seed):
    executable, held, feeds = picking()
    trips = [3, 40, 3, 900, 2, 1000, 5]
    given = [feeds(n) for n in trips]
    wanted = [each.loss for each in reference_steps(executable, held, given)]
    compiled = executable.on(backend_of(EmulatedDriver(seed=seed))).compiled()
    bound = DeviceBoundStep(compiled, compiled.machine.region, {n: v.copy() for n, v in held.items()}, sets)

    found, error = collected(bound, [*given[:3], feeds(row=(0, 4, 1)), feeds()])
    assert (len(found), error) == (3, "index_out_of_range")
    more, error = collected(bound, [*given[3:5], feeds()], stop=3)  # the third one is not kept
    assert (len(more), error) == (3, None)
    limited = (Run(limits=RunLimits(max_trips=10)) for _ in range(3))
    last, error = collected(bound, [feeds(11), feeds()], runs=limited)
    assert (last, error) == ([], "too_many_trips")
    rest, _ = collected(bound, given[5:])

    for one, loss in zip([*found, *more[:2], *rest], wanted, strict=True):
        same(one["loss"], loss)


def bits_of(out):
    """The loss and the new parameters of a step; of a table its new rows."""
    values = [(v.rows, v.values) if isinstance(v, RowArray) else (v,) for v in (out.loss, *out.parameters.values())]
    return [np.asarray(each).tobytes() for parts in values for each in parts]


def check_series(document, seed, width, dtype):
    """Calls of many steps, some of which end early or fail, have the bits of single steps."""
    draw, values = random.Random(seed), values_like(seed, dtype, width)
    optimizer = draw.choice([("sgd", {"learning_rate": 0.1}), ("momentum", RATE), ("adam", RATE)])
    program = read(like(document, dtype, width))
    shapes = {v.name: np.shape(values[v.name]) for v in program.feeds}
    executable = compile_training(program, GradientQuery(loss="loss"), Optimizer(*optimizer), shapes=shapes)
    held = {**executable.initial_state(), **{v.name: values[v.name] for v in program.parameters}}
    names = [v.name for v in executable.inputs if v.role == "feed"]
    given = [{n: values[n] * draw.choice((0, 1, 1, 2)) for n in names} for _ in range(draw.randint(3, 9))]
    given = [{n: np.asarray(v, values[n].dtype) for n, v in each.items()} for each in given]

    def bound(sets):
        compiled = executable.on(backend_of(EmulatedDriver(draw.randrange(100)))).compiled()
        machine = compiled.machine
        if machine is None or machine.region is None or machine.region.plan.cuts:
            return None
        return DeviceBoundStep(compiled, machine.region, {n: np.array(v) for n, v in held.items()}, sets)

    one, many = bound(2), bound(draw.choice((2, 3, 3)))
    if one is None:
        return
    wanted, kept = [], []
    for feeds in given:
        assert one.takes(feeds)
        try:
            out = one.step(Run(), 7, len(kept))
        except ExecutionError as refused:
            wanted.append(refused.code)
        else:
            kept.append(None)
            wanted.append(bits_of(out))
            one.keep()

    found, at, steps = [], 0, 0
    while at < len(given):
        end = draw.randint(at + 1, len(given))
        stop = draw.randint(1, 4)  # the last step of a call that ends early is not kept, and runs again
        series = many.steps((Run() for _ in range(at, end)), 7, steps, lambda i, at=at: many.takes(given[at + i]))
        try:
            with closing(series):
                for number, out in enumerate(series, 1):
                    if number == stop and draw.random() < 0.3:
                        break
                    found.append(bits_of(out))
                    at, steps = at + 1, steps + 1
        except ExecutionError as refused:
            found.append(refused.code)
            at += 1
    assert found == wanted


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(**DRAWN)
def test_calls_of_many_steps_of_a_random_program_have_the_bits_of_single_steps(document, seed, width, dtype):
    check_series(document, seed, width, dtype)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(**DRAWN)
def test_calls_of_many_steps_of_many_random_programs_have_the_bits_of_single_steps(document, seed, width, dtype):
    check_series(document, seed, width, dtype)


def test_a_step_begins_before_the_one_before_has_ended():
    driver = EmulatedDriver()
    executable, held, feeds = training(driver)
    bound = bind_device_step(executable, held)
    given, region, events = [feeds() for _ in range(5)], executable.machine.region, []
    begin = region.begin
    region.begin = lambda *what: (events.append("begin"), begin(*what))[1]

    events.extend("end" for _ in bound.steps((Run() for _ in given), 7, 0, lambda i: bound.takes(given[i])))

    assert events == ["begin", *["begin", "end"] * 4, "end"]


@pytest.mark.parametrize("sets", [2, 3])
def test_steps_without_feeds_of_their_own_have_those_that_were_taken(sets):
    executable, held, feeds = training(EmulatedDriver())
    given = feeds()
    wanted = [each.loss for each in reference_steps(executable, held, [given] * 7)]
    bound = DeviceBoundStep(executable, executable.machine.region, {n: v.copy() for n, v in held.items()}, sets)
    assert bound.takes(given)

    found = [np.array(out.loss) for out in bound.steps((Run() for _ in range(7)), 7, 0)]

    for one, want in zip(found, wanted, strict=True):
        same(one, want)


def test_a_step_of_large_arrays_has_two_sets_of_them(monkeypatch):
    executable, held, _ = training(EmulatedDriver())
    more = _bytes(executable, executable.machine.region, 3) - _bytes(executable, executable.machine.region, 2)

    for most, sets in ((more - 1, 2), (more, 3)):
        monkeypatch.setattr(bound_step, "MOST_AHEAD", most)
        assert len(bind_device_step(executable, {n: v.copy() for n, v in held.items()})._turns) == sets


def test_a_third_set_of_arrays_needs_memory():
    driver = EmulatedDriver()
    executable, held, _ = training(driver)
    region = executable.machine.region
    two, three = (_bytes(executable, region, sets) for sets in (2, 3))

    class Limited:
        capacity = two

        def used(self):
            return 0

        def available(self, nbytes, keep_idle=False):
            return self.capacity

    assert three > two
    bound = bind_device_step(executable, {n: v.copy() for n, v in held.items()}, Limited())
    assert len(bound._turns) == 2
    Limited.capacity = two - 1
    assert bind_device_step(executable, held, Limited()) is None


def test_feeds_of_another_type_are_not_taken():
    executable, held, feeds = training(EmulatedDriver())
    bound = bind_device_step(executable, held)

    assert not bound.takes({"x": feeds()["x"]})
    assert not bound.takes({**feeds(), "y": np.zeros(1)})
    assert not bound.takes({n: v.astype("float64" if v.dtype == np.float32 else "float32") for n, v in feeds().items()})
    assert not bound.takes({n: v[:-1] for n, v in feeds().items()})


def test_a_step_on_arrays_of_a_gpu_is_not_bound_to_arrays_of_numpy():
    executable, held, _ = training(EmulatedDriver())
    elsewhere = EmulatedDriver(xp=ModuleType("elsewhere"))

    assert bind_step(replace(executable, backend=backend_of(elsewhere)), held) is None


def test_a_step_is_not_bound_without_memory():
    driver = EmulatedDriver()
    executable, held, _ = training(driver)
    driver.capacity = driver.allocated

    assert bind_device_step(executable, held) is None


def test_feeds_that_lie_near_each_other_are_copied_together():
    def fed(offset: int, count: int) -> Fed:
        return Fed(0, "x", (count,), np.dtype("float32"), offset)

    far = 256 + GAP + 8
    assert spans_of([]) == []
    assert spans_of([fed(256, 2), fed(0, 4)]) == [(0, 264)]
    assert spans_of([fed(0, 64), fed(far, 1)]) == [(0, 256), (far, far + 4)]
