"""What a worker keeps of programs, called directly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core.compile import GradientQuery
from core.errors import ExecutionError
from service.settings import Settings
from service.worker import programs
from service.worker.programs import known_program
from tests.service.wire import regression


@pytest.fixture
def state() -> Any:
    return SimpleNamespace(device="cpu", programs={}, settings=Settings().model_dump(mode="json"))


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


def test_what_was_not_used_for_longest_goes_when_room_is_short(state, monkeypatch):
    document = regression().document  # two ops
    monkeypatch.setattr(programs, "PROGRAM_ROOM", 4)
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
