"""A session whose feeds change their sizes from step to step runs them on one code with room for many sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.compiler.compile import Executable, compile_training
from core.ir.errors import ProgramError
from service.worker import roomy, step_kinds, training
from service.worker.checkpoint_state import decode, encode
from service.worker.session import FEW_SHAPES, RECURRING
from service.worker.snapshot import _state_of
from service.worker.state import WorkerState
from tests.programs import Sketch
from tests.service.worker.test_first_step import feeds_of, session_of, softmax_regression, started, stepped

SEEN = tuple(range(2, 2 + FEW_SHAPES))
OTHERS = (9, 11, 16, 1, 9, 15)


def is_roomy(state: WorkerState) -> bool:
    last = session_of(state).last_step
    assert last is not None
    return last.compiled.executable.packs is not None


def varied(sketch: Sketch) -> WorkerState:
    """A session that has seen some shapes."""
    state = started(sketch, "auto")
    for x in feeds_of(SEEN):
        stepped(state, x)
        assert not is_roomy(state)
    return state


def assert_same_values(a: WorkerState, b: WorkerState, **how: Any) -> None:
    for place in ("parameters", "slots"):
        for name, value in getattr(session_of(a), place).items():
            np.testing.assert_allclose(getattr(session_of(b), place)[name], value, err_msg=name, **how)


def test_steps_on_further_shapes_share_one_code():
    state, codes = varied(softmax_regression()), set()

    for x in feeds_of(OTHERS):
        assert stepped(state, x) and is_roomy(state)
        codes.add(id(session_of(state).last_step.compiled.executable))

    assert len(codes) == 1
    assert stepped(state, feeds_of(SEEN)[0]) and not is_roomy(state)


def test_the_steps_have_the_results_of_the_reference_executor():
    sketch, batches = softmax_regression(), feeds_of((*SEEN, *OTHERS, 40))
    auto, never = started(sketch, "auto"), started(sketch, "never")

    for x in batches:
        stepped(auto, x)
        stepped(never, x)

    assert is_roomy(auto)
    assert_same_values(auto, never, rtol=1e-4, atol=1e-6)


def test_a_shape_that_recurs_gets_code_of_its_own():
    state = varied(softmax_regression())
    (x,) = feeds_of((9,))

    ran = []
    for _ in range(RECURRING + 2):
        stepped(state, x)
        ran.append(is_roomy(state))

    assert ran == [True] * RECURRING + [False] * 2


def added(state: WorkerState, x: np.ndarray) -> dict[str, Any]:
    """The answer of a call that adds up gradients."""
    asked = {"id": "s", "seq": 1, "fetch": [], "returned": "none", "stream": False, "accumulate": True}
    return training.gradients(state, asked, {"x": x})[0]


def test_added_gradients_on_further_shapes_share_one_code():
    sketch = softmax_regression()
    auto, never, updating = started(sketch, "auto"), started(sketch, "never"), {"id": "s", "seq": 2}
    compiled = []
    for rows in (*SEEN, *OTHERS):
        (x,) = feeds_of((rows,))
        compiled.append(added(auto, x)["compiled"])
        added(never, x)
    for state in (auto, never):
        training.update(state, {**updating, "require_finite": False}, {})

    assert compiled == [True] * (len(SEEN) + 1) + [False] * (len(OTHERS) - 1)
    assert session_of(auto).roomy["x:9,8"] == 2
    assert_same_values(auto, never, rtol=1e-4, atol=1e-6)


def accumulated(state: WorkerState, parts: list[np.ndarray]) -> None:
    """Updates with gradients of two batches, each update of `parts` in one call."""
    asked = {"id": "s", "seq": 1, "fetch": [], "require_finite": False, "returned": "none", "accumulate": 2}
    several = {} if len(parts) == 1 else {"batches": len(parts)}
    x = parts[0] if len(parts) == 1 else np.stack(parts)
    training.step(state, asked | several | {"reduction": "mean"}, {"x": x})


def test_updates_with_gradients_of_several_batches_run_on_code_with_room_until_their_shape_recurs():
    """The updates of one call have the bits of single ones. With so many rows the bits of the two codes differ."""
    sketch, count = softmax_regression(), RECURRING + 2
    single, joint, parted = (started(sketch, "auto") for _ in range(3))
    for x in feeds_of(SEEN):
        for state in (single, joint, parted):
            stepped(state, x)
    updates = [np.stack(feeds_of((301, 301))) for _ in range(count)]

    ran = []
    for update in updates:
        accumulated(single, [update])
        ran.append(session_of(single).roomy.get("x:301,8"))
    accumulated(joint, updates)
    accumulated(parted, updates[: RECURRING - 1])
    accumulated(parted, updates[RECURRING - 1 :])

    assert ran == [*range(1, RECURRING), None, None, None]
    assert_same_values(single, joint, rtol=0)
    assert_same_values(single, parted, rtol=0)


@pytest.mark.parametrize("count", [3, 6])
def test_batches_in_one_call_give_the_bits_of_single_steps(count):
    sketch, batches = softmax_regression(), feeds_of((9,) * 6)
    before = feeds_of(SEEN)
    single, joint = started(sketch, "auto"), started(sketch, "auto")
    for x in before:
        stepped(single, x)
        stepped(joint, x)

    for x in batches:
        stepped(single, x)
    for at in range(0, len(batches), count):
        stepped(joint, np.stack(batches[at : at + count]), batches=count)

    assert is_roomy(single) and is_roomy(joint)
    assert_same_values(single, joint, rtol=0)


def test_a_shape_that_recurs_gets_code_of_its_own_within_a_call_of_many_batches():
    state, other = (started(softmax_regression(), "auto") for _ in range(2))
    for x in feeds_of(SEEN):
        stepped(state, x)
        stepped(other, x)

    stepped(state, np.stack(feeds_of((9,) * RECURRING)), batches=RECURRING)
    assert is_roomy(state)
    stepped(other, np.stack(feeds_of((9,) * (RECURRING + 1))), batches=RECURRING + 1)
    assert not is_roomy(other)


def test_a_program_whose_loops_would_be_interpreted_has_code_for_each_shape(monkeypatch):
    monkeypatch.setattr(roomy, "is_nearly_code", lambda executable: False)
    state = varied(softmax_regression())

    ran = [stepped(state, x) for x in feeds_of((9, 9, 11, 9))]

    assert ran == [False, True, False, True] and not is_roomy(state)
    assert not session_of(state).roomy


@pytest.mark.parametrize("limit", ["largest", "capacity"])
def test_a_shape_has_code_of_its_own_if_its_room_exceeds_a_limit_of_arrays(limit):
    state = varied(softmax_regression())
    fits, exceeds = feeds_of((32, 33))
    stepped(state, fits)
    assert is_roomy(state)

    setattr(session_of(state).cached, limit, 40 * 8 * 4)  # 33 rows have room for 64
    stepped(state, exceeds)

    assert not is_roomy(state)


def test_a_fault_of_the_code_with_room_ends_no_session(monkeypatch, caplog):
    def faulty(*args: Any, room: Any, **more: Any) -> Executable:
        if room is not None:
            raise ZeroDivisionError
        return compile_training(*args, **more)

    monkeypatch.setattr(step_kinds, "compile_training", faulty)
    state = varied(softmax_regression())

    ran = [stepped(state, x) for x in feeds_of((9, 9, 11))]

    assert ran == [False, True, False]
    assert "room for many sizes cannot be compiled" in caplog.text


def test_a_saved_session_goes_on_with_the_same_bits():
    sketch = softmax_regression()
    state, other = varied(sketch), started(sketch, "auto")
    for x in feeds_of(OTHERS):
        stepped(state, x)

    saved = decode(encode(_state_of(session_of(state), {})))

    session_of(other).seen, session_of(other).roomy = set(saved.seen), dict(saved.roomy)
    assert saved.roomy == {"x:1,8": 1, "x:11,8": 1, "x:15,8": 1, "x:16,8": 1, "x:9,8": 2}
    for place in ("parameters", "slots"):
        setattr(session_of(other), place, {n: v.copy() for n, v in getattr(session_of(state), place).items()})
    session_of(other).steps = session_of(state).steps
    for x in feeds_of((13, 3)):
        stepped(state, x)
        stepped(other, x)
        assert is_roomy(other) == is_roomy(state)
    assert_same_values(state, other, rtol=0)


def test_sizes_that_do_not_fit_are_refused_with_the_names_of_the_feeds():
    s = Sketch()
    s.feed("x", np.ones((4, 3)))
    s.feed("y", np.ones((4, 3)))
    s.param("w", np.ones(3))
    s.op("mean", s.op("mul", s.op("sub", "x", "y"), "w"), out="loss")
    for v in s.document["blocks"][0]["vars"]:
        if v["name"] in ("x", "y"):
            v["shape"] = [-1, 3]
    state = started(s, "auto")
    asked = {"fetch": [], "require_finite": False, "returned": "none"}

    def step(m: int, n: int) -> None:
        training.step(state, {"id": "s", "seq": 1, **asked}, {"x": np.ones((m, 3)), "y": np.ones((n, 3))})

    for n in (*SEEN, 9, 10):
        step(n, n)
    assert is_roomy(state)
    with pytest.raises(ProgramError, match=r"the sizes of 'x' \[9, 3\] and 'y' \[10, 3\] do not fit together") as error:
        step(9, 10)
    assert [each.pointer for each in error.value.problems] == ["/feeds/x/shape", "/feeds/y/shape"]
