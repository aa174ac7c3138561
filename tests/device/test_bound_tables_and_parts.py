"""Bound steps that update rows of tables, or consist of several regions, equal those of the reference executor."""

from __future__ import annotations

import gc
import random
import weakref
from contextlib import closing

import numpy as np
import pytest

pytest.importorskip("cupy", reason="the stand-in is made from the installed cupy")
from core.compiler.compile import GradientQuery, Optimizer, compile_training
from core.device.bind import bind_device_step
from core.device.bound_step import DeviceBoundStep
from core.device.parted_step import PartedStep
from core.ir.errors import ExecutionError
from core.runtime.bound_step import KEPT
from core.runtime.run import Run, RunLimits
from core.runtime.sparse_rows import RowArray
from core.wire import read
from tests.cupy_stand_in import installed
from tests.device.driver import EmulatedDriver
from tests.device.emulator import compiler
from tests.device.worker_gpu import backend_on
from tests.laws.agreement import same
from tests.programs import Sketch

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

ROWS, WIDTH, IDS = 7, 3, 4


@pytest.fixture
def driver():
    with installed() as cupy:
        yield EmulatedDriver(seed=2, xp=cupy)


def training(driver, prints, optimizer):
    """A step with a sparse table, and with a message in the middle if `prints`; its values, and a drawer of feeds."""
    rng = np.random.default_rng(0)
    s = Sketch()
    ids = s.feed("ids", np.zeros(IDS), dtype="int64")
    t = s.feed("t", rng.standard_normal((IDS, WIDTH)))
    table = s.param("table", rng.standard_normal((ROWS, WIDTH)))
    w = s.param("w", rng.standard_normal((WIDTH, WIDTH)))
    h = s.op("tanh", s.op("embedding", table, ids, is_sparse=True))
    if prints:
        h = s.op("print", h, message="hidden", summarize=2)
    h = s.op("dropout", h, p=0.25, seed=3)
    s.total(s.op("square", s.op("sub", s.op("matmul", h, w), t)))
    query = GradientQuery(loss="loss")
    executable = compile_training(
        read(s.document), query, Optimizer(optimizer, {"learning_rate": 0.1}), fetch=["table"]
    )
    compiled = executable.on(backend_on(driver)).compiled()
    held = {n: np.array(s.values[n]) for n in ("table", "w")} | executable.initial_state()

    def feeds():
        return {"ids": rng.integers(0, ROWS, IDS), "t": rng.standard_normal((IDS, WIDTH))}

    return compiled, held, feeds


def reference_steps(executable, held, given):
    """(outputs, values afterwards) of steps in a row, by the reference executor."""
    for number, feeds in enumerate(given):
        out = executable.on(executable.backend).step({**held, **feeds}, 7, number)
        held = {name: value.copy() for name, value in held.items()}
        for place in KEPT:
            for name, value in getattr(out, place).items():
                if isinstance(value, RowArray):
                    value.write(held[name])
                else:
                    held[name] = value
        yield out, held


def to_host(value):
    return getattr(value, "array", value)


CASES = [(False, "sgd"), (False, "momentum"), (True, "adagrad")]
"""Whether a message splits the step, and the optimiser: momentum changes all rows of a table."""


@pytest.mark.parametrize(("prints", "optimizer"), CASES)
def test_steps_keep_their_tables_on_the_gpu_and_write_rows_in_place(driver, prints, optimizer):
    executable, held, feeds = training(driver, prints, optimizer)
    given = [feeds() for _ in range(5)]
    on_gpu = {name: driver.xp.asarray(value) for name, value in held.items()}
    wanted = list(reference_steps(executable, held, given))
    bound = bind_device_step(executable, dict(on_gpu))
    assert isinstance(bound, PartedStep if prints else DeviceBoundStep)
    assert bound.put_tables(on_gpu)

    leaving = []
    for number, each in enumerate(given):
        assert bound.takes(each)
        with pytest.raises(ExecutionError):
            bound.step(Run(driver.xp, RunLimits(deadline=0.0)), 7, number)
        assert bound.takes(each)
        bound.step(Run(driver.xp), 7, number)  # not kept
        assert bound.takes(each)
        out = bound.step(Run(driver.xp), 7, number)
        bound.drop_feeds()
        want, values = wanted[number]
        assert bound.has_finite_gradients()
        rows = out.gradients["table"]
        same(to_host(rows.rows), want.gradients["table"].rows)
        same(to_host(rows.values), want.gradients["table"].values)
        assert len(out.messages) == prints
        leaving.append(bound.send({"loss": out.loss, "table": out.fetched["table"], "w": out.gradients["w"]}))
        bound.keep()
        for name, value in {**out.parameters, **out.optimizer_state}.items():
            same(to_host(on_gpu[name] if isinstance(value, RowArray) else value), values[name])

    before = held["table"]
    for each, (want, values) in zip(leaving, wanted, strict=True):
        found = each.arrays()
        same(found["loss"], want.loss)
        same(found["w"], want.gradients["w"])
        same(found["table"], before)
        before = values["table"]


@pytest.mark.sampled(1, each="optimizer")
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("seed", range(4))
def test_steps_in_a_row_write_the_rows_of_kept_steps_only(optimizer, seed):
    """Some ids are out of range, and some calls end before the last step, when the next one has begun already.

    Between calls the tables move to other arrays.
    """
    draw, events = random.Random(seed), []
    with installed() as cupy:
        driver = EmulatedDriver(seed=seed, xp=cupy)
        executable, held, feeds = training(driver, False, optimizer)
        given = [feeds() for _ in range(12)]
        wanted = [values for _, values in reference_steps(executable, held, given)]
        on_gpu = {name: driver.xp.asarray(value) for name, value in held.items()}
        bound = bind_device_step(executable, dict(on_gpu))
        assert bound.put_tables(on_gpu)
        tables = [name for name, value in wanted[0].items() if value.shape[:1] == (ROWS,)]
        begin = executable.machine.region.begin
        executable.machine.region.begin = lambda *what: (events.append("begin"), begin(*what))[1]

        done, ahead = 0, 0
        while done < len(given):
            if draw.random() < 0.4:
                on_gpu = {name: value.copy() for name, value in on_gpu.items()}
                assert bound.put_tables(on_gpu)
            some = given[done : done + draw.randint(1, 5)]
            wrong = draw.choice([None, None, *range(len(some))])
            stop = draw.choice([None, *range(1, len(some) + 1)])  # the step of this number is not kept
            bad = [{**each, "ids": each["ids"] + ROWS * (i == wrong)} for i, each in enumerate(some)]
            series = bound.steps((Run(driver.xp) for _ in some), 7, done, lambda i, bad=bad: bound.takes(bad[i]))
            kept = 0
            events.clear()
            try:
                with closing(series):
                    for number, _ in enumerate(series, 1):
                        if number == stop:
                            break
                        kept += 1
            except ExecutionError as error:
                assert (error.code, kept) == ("index_out_of_range", wrong)
            ahead += len(events) > kept + 1
            done += kept
            for name in tables:
                same(on_gpu[name].get(), wanted[done - 1][name] if done else held[name])

    assert ahead, "a step that began early was taken back"


def test_a_step_is_not_bound_to_a_table_of_the_host(driver):
    executable, held, _ = training(driver, False, "sgd")
    bound = bind_device_step(executable, {name: driver.xp.asarray(value) for name, value in held.items()})

    assert not bound.put_tables(held)


def test_a_step_with_a_result_of_an_open_size_keeps_its_values_on_the_gpu(driver):
    rng = np.random.default_rng(0)
    s = Sketch()
    mask = s.feed("mask", np.ones(5, bool), dtype="bool")
    x = s.feed("x", rng.standard_normal((5, WIDTH)))
    w = s.param("w", rng.standard_normal((WIDTH, 1)))
    errors = s.op("reshape", s.op("square", s.op("matmul", x, w)), shape=[-1])
    s.op("masked_select", errors, mask, out="chosen")
    s.total("chosen")
    query, optimizer = GradientQuery(loss="loss"), Optimizer("sgd", {"learning_rate": 0.1})
    executable = compile_training(read(s.document), query, optimizer, fetch=["chosen"])
    executable = executable.on(backend_on(driver)).compiled()
    given = [{"mask": np.arange(5) < n, "x": rng.standard_normal((5, WIDTH))} for n in (3, 5, 0, 1)]
    held = {"w": np.array(s.values["w"])}
    wanted = list(reference_steps(executable, held, given))

    bound = bind_device_step(executable, {"w": driver.xp.asarray(held["w"])})

    assert isinstance(bound, PartedStep)
    for number, each in enumerate(given):
        assert bound.takes(each)
        out = bound.step(Run(driver.xp), 7, number)
        bound.keep()
        same(to_host(out.fetched["chosen"]), wanted[number][0].fetched["chosen"])
        same(to_host(out.parameters["w"]), wanted[number][1]["w"])


def test_each_step_whose_feeds_lie_on_the_gpu_runs_behind_the_work_that_made_them(driver):
    """An element of stacked feeds may need a copy, which the array module makes on its own stream."""
    rng, s = np.random.default_rng(1), Sketch()
    x, w = s.feed("x", rng.standard_normal((3, 5))), s.param("w", rng.standard_normal((5, 2)))
    s.total(s.op("square", s.op("matmul", x, w)))
    optimizer = Optimizer("sgd", {"learning_rate": 0.1})
    executable = compile_training(read(s.document), GradientQuery(loss="loss"), optimizer)
    compiled, held = executable.on(backend_on(driver)).compiled(), {"w": np.array(s.values["w"])}
    stacked = rng.standard_normal((4, 3, 5))
    wanted = [out.loss for out, _ in reference_steps(compiled, held, [{"x": each} for each in stacked])]
    bound = bind_device_step(compiled, {"w": driver.xp.asarray(held["w"])})
    events, stream = [], compiled.machine.region.stream
    wait, begin = stream.wait, compiled.machine.region.begin
    stream.wait = lambda event: (events.append("wait"), wait(event))
    compiled.machine.region.begin = lambda *what: (events.append("begin"), begin(*what))[1]
    on_gpu = driver.xp.asarray(stacked)
    assert bound.takes({"x": on_gpu[0, ...]})

    series = bound.series({"x": on_gpu})
    found = [to_host(out.loss).copy() for out in bound.steps((Run(driver.xp) for _ in stacked), 7, 0, series)]

    for one, want in zip(found, wanted, strict=True):
        same(one, want)
    assert "".join(each[0] for each in events) == "w" + "wb" * 4


def test_a_step_frees_its_memory_with_the_last_reference_to_it(driver):
    executable, held, feeds = training(driver, False, "adagrad")
    on_gpu = {name: driver.xp.asarray(value) for name, value in held.items()}
    gc.disable()
    try:
        bound = bind_device_step(executable, dict(on_gpu))
        assert bound.put_tables(on_gpu)
        assert bound.takes(feeds())
        for _ in bound.steps((Run(driver.xp) for _ in range(5)), 7, 0):
            pass
        gone = weakref.ref(bound)
        del bound

        assert gone() is None
    finally:
        gc.enable()
