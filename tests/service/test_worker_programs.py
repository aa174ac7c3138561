"""What a worker keeps of programs, called directly."""

from __future__ import annotations

from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core.compiler.compile import GradientQuery
from core.ir.errors import ExecutionError, ProgramError
from core.ir.lru import LRU
from core.optim.optimizers import Optimizer
from service.settings import Settings
from service.worker.compiling import Compilations, Parked
from service.worker.programs import Known, known_program
from tests.service.wire import regression


@pytest.fixture
def state() -> Any:
    kept: LRU[Known] = LRU(1_000_000, lambda known: known.ops, at_least=1)
    return SimpleNamespace(
        device="cpu",
        programs=kept,
        settings=Settings().model_dump(mode="json"),
        compilations=None,
        note_compilation=lambda seconds: None,
    )


def test_a_program_is_read_once_and_then_known_by_its_id(state):
    with pytest.raises(ExecutionError) as unknown:
        known_program(state, {"program_id": "a"})
    first = known_program(state, {"program_id": "a", "document": regression().document})
    assert unknown.value.code == "program_unknown"
    assert known_program(state, {"program_id": "a"}) is first
    assert known_program(state, {"document": regression().document}) is not first
    assert list(state.programs) == ["a"]


def test_an_executable_is_compiled_once_for_each_question(state):
    sketch = regression()
    known = known_program(state, {"document": sketch.document})
    query, other = GradientQuery(loss="loss"), GradientQuery(loss="loss", unconnected="zeros")

    fresh = [known.gradient(q, fetch, sketch.values).fresh for q in (query, other) for fetch in ((), ("x",), ())]

    assert fresh == [True, True, False, True, True, False]


def test_the_least_recently_used_program_goes_when_room_is_short(state):
    document = regression().document  # two ops
    state.programs.limit = 4
    for id in ("a", "b"):
        known_program(state, {"program_id": id, "document": document})
    known_program(state, {"program_id": "a"})
    known_program(state, {"program_id": "c", "document": document})
    assert list(state.programs) == ["a", "c"]


def test_an_executable_asks_only_for_what_it_reads(state):
    sketch = regression()
    known = known_program(state, {"document": sketch.document})
    compiled = known.forward(("prediction",), {})
    assert {v.name for v in compiled.executable.inputs} == {"x", "w"}
    out = compiled.executable.step({name: sketch.values[name] for name in "xw"})
    np.testing.assert_allclose(out.fetched["prediction"], sketch.values["x"] @ sketch.values["w"])


QUERY = GradientQuery(loss="loss")
SGD = Optimizer("sgd", {"learning_rate": 0.1})
CODE = {
    "training": lambda known, feeds: known.training(QUERY, SGD, None, (), feeds),
    "gradient": lambda known, feeds: known.gradient(QUERY, (), feeds, repeated=True),
    "update": lambda known, feeds: known.update(("w",), SGD, None, ()),
    "timed": lambda known, feeds: known.timed(CODE["training"](known, feeds)),
}


def settled(known: Known, ask: Any) -> Any:
    """What `ask` gives in the end."""
    assert known.compilations is not None
    told: SimpleQueue[int] = SimpleQueue()
    known.compilations._tell = told.put
    for number in range(3):
        try:
            return ask()
        except Parked as parked:
            known.compilations.wait(parked.job, number)
            assert told.get(timeout=60) == number
    raise AssertionError("parked again and again")


@pytest.mark.parametrize("what", CODE)
def test_what_becomes_machine_code_is_compiled_beside_the_calls_and_once(state, what):
    state.compilations = Compilations(lambda number: None)
    sketch = regression()
    known = known_program(state, {"program_id": "a", "document": sketch.document})
    feeds = {name: sketch.values[name] for name in "xy"}
    if what == "timed":
        settled(known, lambda: CODE["training"](known, feeds))

    with pytest.raises(Parked):
        CODE[what](known, feeds)
    found = settled(known, lambda: CODE[what](known, feeds))
    again = CODE[what](known, feeds)

    assert (found.fresh, again.fresh) == (True, False)
    assert again.executable is found.executable
    assert found.executable.machine is not None


@pytest.mark.parametrize("machine", ["auto", "always"])
def test_nothing_becomes_machine_code_before_its_sizes_are_known(state, machine):
    state.settings["compile"] = machine
    sketch = regression()
    for feed in sketch.document["blocks"][0]["vars"]:
        if feed["role"] == "feed":
            feed["shape"][0] = -1
    known = known_program(state, {"document": sketch.document})

    opened = known.training(QUERY, SGD, None, (), {})
    stepped = known.training(QUERY, SGD, None, (), {name: sketch.values[name] for name in "xy"})

    assert opened.executable.machine is None  # what would be compiled here no step could use
    assert stepped.executable.machine is not None


def test_a_mistake_found_while_compiling_is_told_to_whoever_asked(state):
    state.compilations = Compilations(lambda number: None)
    known = known_program(state, {"program_id": "a", "document": regression().document})
    wrong = GradientQuery(loss="nothing")

    for _ in range(2):
        with pytest.raises(ProgramError):
            settled(known, lambda: known.training(wrong, SGD, None, (), {}))


@pytest.mark.reference
def test_a_short_question_that_is_asked_once_is_answered_at_once(state):
    state.compilations = Compilations(lambda number: None)
    sketch = regression()
    known = known_program(state, {"program_id": "a", "document": sketch.document})
    assert known.gradient(QUERY, (), sketch.values).fresh
    assert known.forward(("prediction",), {}).fresh
