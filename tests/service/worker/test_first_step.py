"""The first training step on feeds of new shapes runs in the reference executor; the later ones run as machine code."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core.runtime.executable import Executable
from service.settings import Settings
from service.worker import sessions, training
from service.worker.checkpoint_state import decode, encode
from service.worker.session import WorkerSession
from service.worker.snapshot import _state_of
from service.worker.state import WorkerState
from tests.programs import Sketch

RNG = np.random.default_rng(11)
ROWS = (4, 5, 4, 5, 7)


def softmax_regression(width: int = 8) -> Sketch:
    s = Sketch()
    s.feed("x", RNG.standard_normal((4, width)), dtype="float32")
    s.param("w", RNG.standard_normal((width, width)) / np.sqrt(width), dtype="float32")
    s.op("mean", s.op("exp", s.op("softmax", s.op("matmul", "x", "w"))), out="loss")
    for v in s.document["blocks"][0]["vars"]:
        if v["name"] == "x":
            v["shape"] = [-1, width]
    return s


def started(sketch: Sketch, compile: str) -> WorkerState:
    going = SimpleNamespace(check=lambda: None, deadline=time.monotonic() + 60, should_stop=lambda: False)
    state = WorkerState("w", "cpu", np, Settings(compile=compile).model_dump(mode="json"), going)  # type: ignore[arg-type]
    asked = {"id": "s", "document": sketch.document, "query": {"loss": "loss"}, "clip": None, "seed": 3}
    optimizer = {"type": "adam", "attrs": {"learning_rate": 0.05}}
    sessions.create(state, {**asked, "optimizer": optimizer, "initializers": {}}, {"w": sketch.values["w"]})
    return state


def session_of(state: WorkerState) -> WorkerSession:
    session: WorkerSession = state.sessions["s"]
    return session


def stepped(state: WorkerState, x: np.ndarray, **args: Any) -> bool:
    """One step; whether it ran as machine code."""
    asked = {"id": "s", "seq": 1, "fetch": [], "require_finite": False, "returned": "none", **args}
    training.step(state, asked, {"x": x})
    last = session_of(state).last_step
    assert last is not None
    return last.compiled.executable.machine is not None


def feeds_of(rows: tuple[int, ...], width: int = 8) -> list[np.ndarray]:
    return [RNG.standard_normal((n, width)).astype(np.float32) for n in rows]


def test_the_first_step_on_each_shape_is_interpreted_and_the_others_are_not():
    sketch, batches = softmax_regression(), feeds_of(ROWS)
    auto, never = started(sketch, "auto"), started(sketch, "never")

    ran = [stepped(auto, x) for x in batches]
    stepped(never, batches[0])

    assert ran == [False, False, True, True, False]
    first = started(sketch, "auto")
    stepped(first, batches[0])
    np.testing.assert_array_equal(session_of(first).parameters["w"], session_of(never).parameters["w"])


def refuse(executable: Executable, timed: bool = False) -> Executable:
    raise AssertionError("a stream waits for machine code")


@pytest.mark.sampled(1)
@pytest.mark.reference
@pytest.mark.parametrize("compile", ["auto", "always"])
def test_streams_need_no_machine_code_and_are_no_first_steps(monkeypatch, compile):
    sketch, x = softmax_regression(width=2048), feeds_of((64,), 2048)[0]
    state, never = started(sketch, compile), started(sketch, "never")
    parts: list[dict[str, Any]] = []
    for each in (state, never):
        each.send_part = lambda result, arrays: parts.append(arrays)
    with monkeypatch.context() as patch:
        patch.setattr(Executable, "compiled", refuse)
        for each in (state, never):
            asked = {"id": "s", "fetch": [], "returned": "all", "stream": True}
            training.gradients(each, asked, {"x": x})
            for seq in (1, 2):
                assert not stepped(each, x, seq=seq, **{k: asked[k] for k in ("returned", "stream")})

    assert len(parts) == 6
    for own, wanted in zip(parts[:3], parts[3:], strict=True):
        np.testing.assert_array_equal(own["grad/w"], wanted["grad/w"])
    assert not session_of(state).seen
    assert stepped(state, x, seq=3), "a step that is not a stream waits for its code"


def test_a_step_that_takes_longer_than_its_compilation_waits_for_it():
    sketch = softmax_regression(width=2048)
    state = started(sketch, "auto")

    assert stepped(state, feeds_of((64,), 2048)[0])


def test_a_profile_is_one_of_machine_code():
    state = started(softmax_regression(), "auto")

    assert stepped(state, feeds_of((4,))[0], profile=True)


@pytest.mark.parametrize("count", [1, 4])
def test_batches_in_one_call_give_the_bits_of_single_steps(count):
    sketch, batches = softmax_regression(), feeds_of((4,) * 4)
    single, joint = started(sketch, "auto"), started(sketch, "auto")

    for x in batches:
        stepped(single, x)
    for at in range(0, len(batches), count):
        stepped(joint, np.stack(batches[at : at + count]), batches=count)

    for place in ("parameters", "slots"):
        for name, value in getattr(session_of(single), place).items():
            np.testing.assert_array_equal(getattr(session_of(joint), place)[name], value, err_msg=name)


def test_a_saved_session_knows_the_shapes_that_it_has_seen():
    sketch, batches = softmax_regression(), feeds_of((4, 5, 4))
    state, other = started(sketch, "auto"), started(sketch, "auto")
    for x in batches[:2]:
        stepped(state, x)

    saved = decode(encode(_state_of(session_of(state), {})))
    session_of(other).seen = set(saved.seen)

    assert sorted(saved.seen) == ["x:4,8", "x:5,8"]
    assert stepped(other, batches[2])
