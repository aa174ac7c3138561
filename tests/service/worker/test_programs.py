"""The worker's cache of programs and executables, called directly."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core.autodiff.hooks import Hook
from core.compiler.compile import GradientQuery
from core.ir.errors import ExecutionError, ProgramError
from core.ir.lru import LRU
from core.optim.optimizers import Optimizer
from core.runtime.run import RunLimits
from service.settings import Settings
from service.worker.compilation import CompilationPending
from service.worker.compiling import Compilations
from service.worker.executables import executables
from service.worker.program_cache import cached_program
from service.worker.programs import CachedProgram
from service.worker.step_kinds import ForwardStep, GradientStep, TrainingStep
from tests.programs import Sketch
from tests.service.wire import regression


@pytest.fixture
def state() -> Any:
    kept: LRU[CachedProgram] = LRU(1_000_000, lambda cached: cached.ops, at_least=1)
    return SimpleNamespace(
        device="cpu",
        programs=kept,
        settings=Settings().model_dump(mode="json"),
        compilations=None,
        note_compilation=lambda seconds: None,
        memory=None,
        executables=executables(),
    )


def test_a_program_is_read_once_and_then_found_by_its_id(state):
    with pytest.raises(ExecutionError) as unknown:
        cached_program(state, {"program_id": "a"})
    first = cached_program(state, {"program_id": "a", "document": regression().document})
    assert unknown.value.code == "program_unknown"
    assert cached_program(state, {"program_id": "a"}) is first
    assert cached_program(state, {"document": regression().document}) is not first
    assert list(state.programs) == ["a"]


def test_an_executable_is_compiled_once_for_each_query(state):
    sketch = regression()
    known = cached_program(state, {"document": sketch.document})
    query, other = GradientQuery(loss="loss"), GradientQuery(loss="loss", unconnected="zeros")

    fresh = [
        known.step(GradientStep(q, fetch), sketch.values).fresh for q in (query, other) for fetch in ((), ("x",), ())
    ]

    assert fresh == [True, True, False, True, True, False]


@pytest.mark.parametrize("repeated", [True, False], ids=["machine code", "interpreted"])
@pytest.mark.parametrize("order", [(True, False), (False, True)], ids=["streamed first", "called first"])
def test_a_call_and_a_stream_of_one_program_share_a_plan(state, repeated, order):
    sketch = regression()
    known = cached_program(state, {"program_id": "a", "document": sketch.document})
    query, feeds = GradientQuery(loss="loss"), {name: sketch.values[name] for name in "xy"}

    def asked(streamed: bool) -> Any:
        return known.step(GradientStep(query, ()), feeds, repeated=repeated, streamed=streamed)

    first, second = (asked(streamed) for streamed in order)
    made = dict(zip(order, (first.executable, second.executable), strict=True))

    assert made[True].interpreter is made[False].interpreter
    assert made[True].machine is None
    assert (made[False].machine is not None) == repeated
    assert (first.fresh, second.fresh) == (True, repeated and order[0])
    assert len(state.executables) == 1, "its memory counts once"
    assert [asked(streamed).fresh for streamed in order] == [False, False]


def test_a_full_cache_drops_the_least_recently_used_program(state):
    document = regression().document  # two ops
    state.programs.limit = 4
    for id in ("a", "b"):
        cached_program(state, {"program_id": id, "document": document})
    cached_program(state, {"program_id": "a"})
    cached_program(state, {"program_id": "c", "document": document})
    assert list(state.programs) == ["a", "c"]


def test_an_executable_has_only_the_inputs_that_it_reads(state):
    sketch = regression()
    known = cached_program(state, {"document": sketch.document})
    compiled = known.step(ForwardStep(("prediction",)), {})
    assert {v.name for v in compiled.executable.inputs} == {"x", "w"}
    out = compiled.executable.step({name: sketch.values[name] for name in "xw"})
    np.testing.assert_allclose(out.fetched["prediction"], sketch.values["x"] @ sketch.values["w"])


QUERY = GradientQuery(loss="loss")
SGD = Optimizer("sgd", {"learning_rate": 0.1})
CODE = {
    "training": lambda known, feeds: known.step(TrainingStep(QUERY, SGD, None), feeds, repeated=True),
    "gradient": lambda known, feeds: known.step(GradientStep(QUERY, ()), feeds, repeated=True),
    "update": lambda known, feeds: known.update(("w",), SGD, None, ()),
    "timed": lambda known, feeds: known.timed(CODE["training"](known, feeds)),
}


def settled(known: CachedProgram, ask: Any) -> Any:
    """The result of `ask`, called again after each compilation that it waits for."""
    assert known.compilations is not None
    done: SimpleQueue[int] = SimpleQueue()
    known.compilations._notify = done.put
    for number in range(3):
        try:
            return ask()
        except CompilationPending as pending:
            known.compilations.wait(pending.compilation, number)
            assert done.get(timeout=60) == number
    raise AssertionError("the call was parked three times")


@pytest.mark.parametrize("what", CODE)
def test_machine_code_is_compiled_once_in_the_compilation_thread(state, what):
    state.compilations = Compilations(lambda number: None)
    sketch = regression()
    known = cached_program(state, {"program_id": "a", "document": sketch.document})
    feeds = {name: sketch.values[name] for name in "xy"}
    if what == "timed":
        settled(known, lambda: CODE["training"](known, feeds))

    with pytest.raises(CompilationPending):
        CODE[what](known, feeds)
    found = settled(known, lambda: CODE[what](known, feeds))
    again = CODE[what](known, feeds)

    assert (found.fresh, again.fresh) == (True, False)
    assert again.executable is found.executable
    assert found.executable.machine is not None


@pytest.mark.parametrize("machine", ["auto", "always"])
def test_machine_code_is_compiled_only_for_known_sizes(state, machine):
    state.settings["compile"] = machine
    sketch = regression()
    for feed in sketch.document["blocks"][0]["vars"]:
        if feed["role"] == "feed":
            feed["shape"][0] = -1
    known = cached_program(state, {"document": sketch.document})

    opened = known.step(TrainingStep(QUERY, SGD, None), {}, repeated=True)
    stepped = known.step(TrainingStep(QUERY, SGD, None), {name: sketch.values[name] for name in "xy"}, repeated=True)

    assert opened.executable.machine is None  # no step could use code for open sizes
    assert stepped.executable.machine is not None


@pytest.mark.reference
@pytest.mark.parametrize("waits", [False, True])
def test_a_step_whose_code_never_fits_into_the_memory_stays_with_the_reference_executor(state, waits):
    """Code has memory for a row of w for each element of the mask; the reference executor for those that are chosen."""
    sketch = Sketch()
    sketch.param("w", np.linspace(-1, 1, 30_000).reshape(2000, 15))
    sketch.feed("mask", np.arange(2000) % 500 == 7, "bool")
    rows = sketch.op("gather_nd", "w", sketch.op("nonzero", "mask"))
    sketch.total(sketch.op("square", sketch.op("matmul", rows, sketch.const(1.0, (15, 500)))))
    state.settings["compile"] = "always"
    state.compilations = Compilations(lambda number: None) if waits else None
    wanted = 500 * np.square(sketch.values["w"][7::500].sum(1)).sum()
    inside = RunLimits(memory=SimpleNamespace(capacity=4_000_000, used=int, available=lambda *_, **__: 4_000_000))
    found = []

    for capacity in (None, 4_000_000):
        state.memory = None if capacity is None else inside.memory
        known = cached_program(state, {"program_id": str(capacity), "document": sketch.document})
        ask = partial(known.step, GradientStep(QUERY, ()), sketch.values)
        executable = (settled(known, ask) if waits else ask()).executable
        found.append(executable.machine is not None)
        limits = RunLimits() if capacity is None else inside
        np.testing.assert_allclose(executable.step(sketch.values, limits=limits).loss, wanted)

    assert found == [True, False]


def test_a_compilation_error_reaches_every_caller(state):
    state.compilations = Compilations(lambda number: None)
    known = cached_program(state, {"program_id": "a", "document": regression().document})
    wrong = GradientQuery(loss="nothing")

    for _ in range(2):
        with pytest.raises(ProgramError):
            settled(known, lambda: known.step(TrainingStep(wrong, SGD, None), {}, repeated=True))


@pytest.mark.reference
def test_a_single_call_of_a_small_program_is_not_parked(state):
    state.compilations = Compilations(lambda number: None)
    sketch = regression()
    known = cached_program(state, {"program_id": "a", "document": sketch.document})
    assert known.step(GradientStep(QUERY, ()), sketch.values).fresh
    assert known.step(ForwardStep(("prediction",)), {}).fresh


def test_queries_with_zeros_of_different_sign_are_compiled_separately(state):
    sketch = regression()
    known = cached_program(state, {"document": sketch.document})

    def gradient(factor: float) -> np.ndarray:
        hook = Hook.read({"match": {"role": "parameter"}, "do": "scale", "factor": factor})
        executable = known.step(GradientStep(GradientQuery(loss="loss", hooks=(hook,)), ()), sketch.values).executable
        return np.asarray(executable.step(sketch.values).gradients["w"])

    plus, minus, again = gradient(0.0), gradient(-0.0), gradient(0.0)

    assert (np.signbit(plus) != np.signbit(minus)).all()  # g * 0.0 and g * -0.0
    assert plus.tobytes() == again.tobytes()
    rates = [
        known.step(TrainingStep(QUERY, Optimizer("sgd", {"learning_rate": r}), None), {}, repeated=True).fresh
        for r in (0.0, -0.0)
    ]
    assert rates == [True, True]
