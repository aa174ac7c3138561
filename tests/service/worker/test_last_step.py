"""Steps bound to a session's arrays give the same results as steps that run op by op."""

from __future__ import annotations

import time
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core.ir.errors import CoreError, ExecutionError
from service.settings import Settings
from service.worker import sessions, training
from service.worker.session import WorkerSession
from service.worker.state import WorkerState
from tests.programs import Sketch

RNG = np.random.default_rng(7)


def noisy() -> Sketch:
    """A regression with dropout, a constant parameter, a state that counts and a state that is only written."""
    s = Sketch()
    s.feed("x", RNG.standard_normal((4, 3)), dtype="float32")
    s.feed("i", [0, 1, 2, 1], dtype="int64")
    s.param("w", RNG.standard_normal((3, 2)), dtype="float32")
    s.param("table", RNG.standard_normal((3, 2)), dtype="float32", trainable=False)
    s._leaf("state", "seen", 0.0, "float32")
    s._leaf("state", "last", np.zeros((4, 2)), "float32")
    s.op("increment", "seen", out="seen", step=1)
    line = s.op("dropout", s.op("matmul", "x", "w"), p=0.25)
    s.op("assign", line, out="last")
    s.op("mse_loss", line, s.op("gather", "table", "i"), out="loss")
    return s


class Side:
    """A session in its own worker state."""

    def __init__(self, sketch: Sketch, compile: str) -> None:
        self.state = WorkerState("w", "cpu", np, Settings(compile=compile).model_dump(mode="json"), going())  # type: ignore[arg-type]
        adam = {"type": "adam", "attrs": {"learning_rate": 0.05}}
        asked = {"id": "s", "document": sketch.document, "query": {"loss": "loss"}, "optimizer": adam, "clip": None}
        given = {n: v for n, v in sketch.values.items() if n not in ("x", "i")}
        sessions.create(self.state, {**asked, "seed": 3, "initializers": {}}, given)

    @property
    def session(self) -> WorkerSession:
        return self.state.sessions["s"]

    @property
    def is_bound(self) -> bool:
        return self.session.last_step is not None and self.session.last_step.bound is not None

    def step(self, feeds: dict[str, Any], returned: str = "none", **args: Any) -> Any:
        """(JSON members, copies of the arrays) of the answer; or the code of the error."""
        asked = {"id": "s", "seq": 1, "fetch": [], "require_finite": False, **args, "returned": returned}
        try:
            said, arrays = training.step(self.state, asked, feeds)
        except CoreError as error:
            return error.code
        timeless = {k: v for k, v in said.items() if k not in ("compiled", "profile")}
        return timeless, {name: np.array(value) for name, value in arrays.items()}

    def held(self) -> dict[str, np.ndarray]:
        s = self.session
        return {k: np.array(v) for each in (s.parameters, s.states, s.slots) for k, v in each.items()}


def going(reason: str | None = None) -> Any:
    """A stop signal with this reason; None never stops."""

    def check() -> None:
        if reason is not None:
            raise ExecutionError("stop", reason)

    return SimpleNamespace(check=check, deadline=time.monotonic() + 60, should_stop=lambda: reason is not None)


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name in wanted:
            same(found[name], wanted[name])
    elif isinstance(wanted, tuple):
        for a, b in zip(found, wanted, strict=True):
            same(a, b)
    elif isinstance(wanted, np.ndarray | float):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=1e-5)
    else:
        assert found == wanted


@pytest.fixture
def sides() -> tuple[Side, Side]:
    sketch = noisy()
    return Side(sketch, "always"), Side(sketch, "never")


def feeds(x: Any = None, **changed: Any) -> dict[str, Any]:
    """The feeds of one step: new read-only arrays, like those from a frame."""
    x = RNG.standard_normal((4, 3)).astype("float32") if x is None else x
    found = {"x": x, "i": np.asarray([0, 1, 2, 1]), **changed}
    for value in found.values():
        value.setflags(write=False)
    return found


def test_bound_steps_equal_interpreted_steps(sides):
    bound, plain = sides
    for number in range(6):
        given = feeds()
        same(bound.step(given, "all"), plain.step(given, "all"))
        assert bound.is_bound == (number > 0)
        same(bound.held(), plain.held())


def test_later_steps_do_not_change_earlier_answers(sides):
    """An evaluation returns arrays that later steps do not overwrite."""
    for _ in range(5):
        given = feeds()
        for side in sides:
            side.step(given)
        evaluated = [training.evaluate(s.state, {"id": "s", "fetch": ["loss"]}, given)[1]["fetch/loss"] for s in sides]
        same(*map(np.array, evaluated))
    assert sides[0].is_bound


WRONG: dict[str, dict[str, Any]] = {
    "index out of range": feeds(i=np.asarray([0, 1, 9, 1])),
    "unknown name": {"x": feeds()["x"], "j": feeds()["i"]},
    "extra feed": feeds(extra=np.zeros(2)),
    "missing feed": {"x": feeds()["x"]},
    "wrong shape": feeds(np.zeros((5, 3), "float32")),
    "wrong dtype": feeds(np.zeros((4, 3))),
    "not finite": feeds(np.full((4, 3), np.nan, "float32")),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("done", [2, 3])
def test_a_bound_step_that_fails_changes_nothing(sides, done, wrong):
    bound, plain = sides
    for _ in range(done):
        given = feeds()
        same(bound.step(given), plain.step(given))
    before = bound.held(), bound.session.about()

    codes = [side.step(WRONG[wrong], require_finite=True) for side in sides]

    assert isinstance(codes[0], str), codes[0]
    assert codes[0] == codes[1]
    same((bound.held(), bound.session.about()), before)
    given = feeds()
    same(bound.step(given, "all"), plain.step(given, "all"))
    assert bound.is_bound
    same(bound.held(), plain.held())


@pytest.mark.parametrize("reason", ["canceled", "deadline_exceeded"])
def test_a_bound_step_does_not_start_after_a_stop_signal(sides, reason):
    bound, _ = sides
    for _ in range(3):
        bound.step(feeds())
    before = bound.held()
    bound.state.stop = going(reason)

    assert bound.step(feeds()) == reason
    same(bound.held(), before)


def test_a_step_sees_every_other_change_of_its_session(sides):
    def put(side: Side) -> None:
        sessions.put_parameters(side.state, {"id": "s"}, {"w": np.ones((3, 2), "float32")})

    def update(side: Side) -> None:
        asked = {"id": "s", "seq": 1, "require_finite": False, "tables": {}}
        training.update(side.state, asked, {"w": np.full((3, 2), 0.5, "float32")})

    def ask(side: Side) -> None:
        training.gradients(side.state, {"id": "s", "fetch": [], "returned": "all", "stream": False}, feeds())

    bound, plain = sides
    for change in (put, update, ask, lambda side: None):
        for more in ({}, {"fetch": ["seen"]}, {"profile": True}, {}):
            for _ in range(3):
                given = feeds()
                same(bound.step(given, **more), plain.step(given, **more))
            for side in sides:
                change(side)
        same(bound.held(), plain.held())


def test_a_session_of_bound_steps_keeps_no_feeds(sides):
    bound, _ = sides
    for _ in range(4):
        given = feeds()
        kept = weakref.ref(given["x"])
        bound.step(given)
    del given
    assert bound.is_bound
    assert kept() is None
