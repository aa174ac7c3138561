"""Sorts of inputs run beside the rest of a step on a GPU: where they may, and what waits for them."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.device.backend import DeviceBackend
from core.device.beside import Beside
from core.device.early_sorts import sorts_first
from core.device.gpu import DEVICE_TARGET
from core.device.kernels import sort_waits
from core.device.launches import Launch
from core.device.rules import RULES
from core.device.step import write_timed_step
from core.ir.errors import ExecutionError, InternalError
from core.plan import plan_block
from core.plan.instructions import Kernel
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.device.driver import EmulatedDriver, _Stream
from tests.device.emulator import compiler
from tests.laws.agreement import same
from tests.laws.random_programs import EXAMPLES
from tests.programs import Sketch

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

IDS, ROWS, WIDTH = 300, 90, 4


def lookups(*tables: str, computed: bool = False):
    """The gradient of tables whose rows are looked up by ids of their own, and its arguments.

    computed: whether the step computes the ids.
    """
    rng, s = np.random.default_rng(1), Sketch()
    found = s.feed("x", rng.standard_normal((IDS, WIDTH)), dtype="float32")
    for name in tables:
        ids = s.feed(f"ids_{name}", rng.integers(0, ROWS // 2, IDS), dtype="int64")
        if computed:
            ids = s.op("add", ids, ids)
        table = s.param(name, rng.standard_normal((ROWS, WIDTH)), dtype="float32")
        found = s.op("mul", found, s.op("tanh", s.op("embedding", table, ids, is_sparse=True)))
    w = s.param("w", rng.standard_normal((WIDTH, WIDTH)), dtype="float32")
    s.total(s.op("square", s.op("softmax", s.op("matmul", found, w))))
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    return executable.interpreter.block, [s.values[each.name] for each in executable.inputs]


def is_sort(each) -> bool:
    return isinstance(each, Kernel) and sort_waits(each) > 0


def native_of(block, driver, **rules):
    """The block on a GPU, where every instruction that may leave the launch of others does so."""
    apart = replace(RULES, launch=0.0, block_bandwidth=1.0, block_flops=1.0, **rules)
    return native_interpreter(block, DeviceBackend(driver, driver.make, blocks=2, block=64, rules=apart))


def test_sorts_of_inputs_come_first_and_those_of_computed_ids_stay():
    for computed in (False, True):
        plan = plan_block(lookups("a", "b", computed=computed)[0], DEVICE_TARGET)
        before = plan.body.instructions
        after = sorts_first(plan.body).instructions

        places = [i for i, each in enumerate(after) if is_sort(each)]
        assert len(places) == 2 and set(before) == set(after)
        assert (places == [0, 1]) != computed
        assert [each for each in after if not is_sort(each)] == [each for each in before if not is_sort(each)]
        assert not computed or after == before


def test_a_sort_runs_beside_all_work_before_its_first_reader():
    region = native_of(lookups("a", "b")[0], EmulatedDriver()).region
    first, second, *others = region.code.work

    assert [first.beside > 2, second.beside > 2, *(each.beside for each in others)] == [True, True] + [0] * len(others)
    for sort, position in ((first, 0), (second, 1)):
        reader = region.code.work[position + sort.beside + 1]
        kernel = re.search(rf"^define [^\n]*@{reader.kernel}\(.*?^}}", region.code.text, re.DOTALL | re.MULTILINE)
        assert kernel and "call void @merge_rows" in kernel[0]


def test_a_step_whose_times_are_measured_runs_one_launch_after_the_other():
    code, _ = write_timed_step(plan_block(lookups("a")[0], DEVICE_TARGET), 2, 64)

    assert all(each.beside == 0 for each in code.launches)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(6))
def test_sorts_beside_the_step_change_no_results_in_any_order_of_the_streams(seed):
    block, values = lookups("a", "b")
    driver = EmulatedDriver(seed)
    native = native_of(block, driver)
    for shift in range(4):
        given = [np.roll(each, shift, 0) for each in values]
        for found, wanted in zip(native(Run(), *given), interpreter_of(block)(Run(), *given), strict=True):
            same(found, wanted)

    assert (native.region.captured, driver.graph_launches) == (1, 3)


def test_a_step_that_does_not_wait_for_its_sort_is_wrong(monkeypatch):
    block, values = lookups("a")
    monkeypatch.setattr(Beside, "join", lambda self, position: False)
    monkeypatch.setattr(Beside, "__exit__", lambda self, *_: None)
    monkeypatch.setattr(EmulatedDriver, "some_work", lambda self: None)  # only what someone waits for
    native = native_of(block, EmulatedDriver())

    found, wanted = native(Run(), *values), interpreter_of(block)(Run(), *values)

    assert any(f.shape != w.shape or not np.allclose(f, w, atol=1e-5) for f, w in zip(found, wanted, strict=True))
    with pytest.raises(AssertionError, match="has not waited"):
        native(Run(), *values)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("failing", range(1, 5))
def test_a_launch_that_fails_behind_a_sort_leaves_no_stream_alone(failing, captured, monkeypatch):
    """The error is that of the launch, and the next run is right: the main stream has waited for the sort."""
    block, values = lookups("a")
    native = native_of(block, EmulatedDriver(failing))
    if captured:  # the second run is
        native(Run(), *values)
    launch, count = _Stream.launch, 0

    def launched(self, *given):
        nonlocal count
        count += 1
        if count == failing + 1:
            raise ExecutionError("no such launch", "launch_failed")
        return launch(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(_Stream, "launch", launched)
        with pytest.raises(ExecutionError, match="no such launch"):
            native(Run(), *values)

    for _ in range(2):
        for found, wanted in zip(native(Run(), *values), interpreter_of(block)(Run(), *values), strict=True):
            same(found, wanted)


def test_blocks_that_wait_for_each_other_do_not_run_beside_other_launches():
    stream = EmulatedDriver().stream()

    with pytest.raises(InternalError, match="wait for each other"), Beside(stream, stream) as apart:
        apart.launch(0, None, Launch("step0", 4, 64, cooperative=True, beside=3), ())


def drawn_lookups(seed: int):
    """A gradient with lookups in tables, some of them in loops or branches, by ids that several of them share."""
    draw, rng, s = random.Random(seed), np.random.default_rng(seed), Sketch()
    rows, count, width = draw.choice((3, 40, 500)), draw.choice((1, 7, 200)), draw.choice((1, 4))
    x = s.op("tanh", s.feed("x", rng.standard_normal((count, width))))
    ids = [
        s.feed(f"ids{i}", rng.integers(0, rows // 2 + 1, count), dtype="int64") for i in range(draw.choice((1, 2, 3)))
    ]
    if draw.random() < 0.3:
        ids.append(s.op("minimum", ids[0], ids[-1]))
    tables = [s.param(f"table{i}", rng.standard_normal((rows, width))) for i in range(draw.choice((1, 2, 3)))]
    w = s.param("w", rng.standard_normal((width, width)))

    def looked_up() -> str:
        more = {"padding_idx": draw.choice((0, rows - 1))} if draw.random() < 0.3 else {}
        return s.op("embedding", draw.choice(tables), draw.choice(ids), is_sparse=draw.random() < 0.8, **more)

    for _ in range(draw.choice((1, 2, 4))):
        kind = draw.choice(("plain", "plain", "product", "loop", "branch"))
        if kind == "loop":
            with s.repeat(draw.choice((1, 3))):
                s.op("tanh", s.op("add", x, looked_up()), out=x)
        elif kind == "branch":
            yes, go = s.count + 1000, s.op("less_than", s.op("reduce_sum", x), s.const(draw.choice((-50.0, 50.0))))
            with s.block() as one:
                s.op("mul", x, looked_up(), out=f"b{yes}")
            with s.block() as other:
                s.op("tanh", x, out=f"b{yes}")
            s.branch(go, one, other)
            x = f"b{yes}"
        else:
            x = s.op("mul", x, s.op("sigmoid", looked_up()))
            x = s.op("matmul", x, w) if kind == "product" else x
    s.total(s.op("square", x))
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    return executable.interpreter.block, [s.values[each.name] for each in executable.inputs]


def test_random_steps_with_lookups_agree_with_the_reference_executor():
    beside, seeds = 0, min(32, EXAMPLES // 10)  # `make test-all` draws 32 programs
    for seed in range(seeds):
        block, values = drawn_lookups(seed)
        driver = EmulatedDriver(seed, watches=seed % 4 == 0, multiplies=seed % 3 == 0)
        native = native_of(block, driver, sorted_apart=1)
        for _ in range(3):
            for found, wanted in zip(native(Run(), *values), interpreter_of(block)(Run(), *values), strict=True):
                same(found, wanted)
        beside += native.region is not None and any(each.beside for each in native.region.code.launches)
    assert beside >= seeds // 4


def test_an_id_out_of_range_is_the_error_of_the_reference_executor():
    block, values = lookups("a", "b")
    native = native_of(block, EmulatedDriver(3))
    for table in (0, 1):
        given = [each.copy() for each in values]
        ids = [each for each in given if each.dtype == "int64"]
        ids[table][17] = ROWS
        for _ in range(3):
            found = [error_of(each, given) for each in (native, interpreter_of(block))]
            assert found[0] == found[1] is not None


def error_of(executor, values):
    try:
        executor(Run(), *values)
    except ExecutionError as error:
        return error.code, error.location
    return None


def test_few_ids_are_sorted_with_other_work():
    region = native_of(lookups("a")[0], EmulatedDriver(), sorted_apart=IDS + 1).region

    assert all(each.beside == 0 for each in region.code.launches)
