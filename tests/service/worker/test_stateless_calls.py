"""One-shot gradients and evaluations: their answers depend only on the request and the values of the session."""

from __future__ import annotations

import time
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from service.settings import Settings
from service.worker import sessions
from service.worker.compilation import CompilationPending
from service.worker.compiling import Compilations
from service.worker.handlers import HANDLERS
from service.worker.program_cache import cached_program
from service.worker.state import WorkerState
from tests.programs import Sketch

RNG = np.random.default_rng(5)
SMALL, LARGE = [12, 10, 9, 20, 13], [300, 200, 100, 50, 33]
CALLS = {
    "gradients": {"program_id": "p", "query": {"loss": "loss"}, "returned": "all", "stream": False},
    "session.evaluate": {"id": "s"},
}


def repeated_rows() -> Sketch:
    """Rows that are repeated as often as the feed `counts` says: their number has no largest value."""
    s = Sketch()
    s.param("w", RNG.normal(size=(5, 16)), "float32")
    s.feed("counts", [1] * 5, "int64")
    rows = s.op("sequence_expand", "w", "counts")
    products = s.op("matmul", rows, rows, transpose_y=True)
    s.op("reduce_mean", s.op("square", s.op("tanh", products)), out="loss")
    return s


def started(sketch: Sketch, **settings: Any) -> WorkerState:
    """A worker with the program `p` and its session `s`."""
    going = SimpleNamespace(check=lambda: None, deadline=time.monotonic() + 60, should_stop=lambda: False)
    state = WorkerState("w", "cpu", np, Settings(**settings).model_dump(mode="json"), going)  # type: ignore[arg-type]
    asked = {"id": "s", "program_id": "p", "document": sketch.document, "query": {"loss": "loss"}, "clip": None}
    more = {"seed": 3, "optimizer": {"type": "sgd", "attrs": {"learning_rate": 0.1}}, "initializers": {}}
    sessions.create(state, asked | more, {"w": sketch.values["w"]})
    return state


def answered(state: WorkerState, op: str, values: dict[str, Any], **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(members, arrays) of the answer to a call of `op`."""
    args = {**CALLS[op], "fetch": ["loss"], "seed": 0, "step": 0, **more}
    given = {name: value for name, value in values.items() if op == "gradients" or name != "w"}
    members, arrays = HANDLERS[op](state, args, given)
    return members, {name: np.asarray(array).tobytes() for name, array in arrays.items()}


@pytest.mark.parametrize("op", CALLS)
def test_the_bits_of_a_stateless_call_do_not_depend_on_sizes_of_earlier_calls(op):
    sketch = repeated_rows()
    state = started(sketch, compile="always")

    small, large, small_again, large_again = (
        answered(state, op, sketch.values | {"counts": np.array(counts)})[1] for counts in (SMALL, LARGE) * 2
    )

    assert small_again == small
    assert large_again == large


@pytest.mark.sampled(1)
@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize(
    ("setting", "asked", "compiled"),
    [
        ("auto", "auto", False),
        ("auto", "always", True),
        ("always", "auto", True),
        ("always", "always", True),
        ("never", "auto", False),
        ("never", "always", False),
        ("auto", "dynamic", True),
        ("always", "dynamic", True),
        ("never", "dynamic", False),
    ],
)
def test_machine_code_runs_on_request_unless_the_setting_forbids_it(op, setting, asked, compiled):
    sketch = repeated_rows()
    state = started(sketch, compile=setting)

    said, _ = answered(state, op, sketch.values, compile=asked, profile=True)

    assert any(each["compiled"] for each in said["profile"]["kernels"]) is compiled


def test_the_setting_never_gives_the_bits_of_the_interpreter():
    sketch = repeated_rows()

    never, auto = (
        answered(started(sketch, compile=setting), "gradients", sketch.values, compile=asked)[1]
        for setting, asked in (("never", "always"), ("auto", "auto"))
    )

    assert never == auto


@pytest.mark.parametrize("asked", ["always", "dynamic"])
def test_a_stream_of_gradients_is_not_compiled(asked):
    sketch = repeated_rows()
    state = started(sketch, compile="auto")
    sent = []
    state.send_part = lambda result, arrays: sent.append(result["name"])

    plain, streamed = (
        answered(state, "gradients", sketch.values, stream=True, profile=True, compile=asked)[0]
        for asked in ("auto", asked)
    )

    assert sent == ["w", "w"]
    assert (plain["compiled"], streamed["compiled"]) == (True, False)  # both run the same executable
    assert not any(each["compiled"] for each in streamed["profile"]["kernels"])


@pytest.mark.parametrize("op", CALLS)
def test_a_call_with_machine_code_is_parked_while_it_is_compiled(op):
    sketch, done = repeated_rows(), SimpleQueue[int]()
    state = started(sketch, compile="auto")
    compilations = cached_program(state, {"program_id": "p"}).compilations = Compilations(done.put)
    interpreted = answered(state, op, sketch.values)

    with pytest.raises(CompilationPending) as pending:
        answered(state, op, sketch.values, compile="always")
    assert answered(state, op, sketch.values)[1] == interpreted[1]  # others go on meanwhile
    compilations.wait(pending.value.compilation, 7)
    assert done.get(timeout=60) == 7

    assert [answered(state, op, sketch.values, compile="always")[0]["compiled"] for _ in range(2)] == [True, False]


def open_rows() -> Sketch:
    """The squares of rows, whose number is open, divided by their largest element."""
    s = Sketch()
    s.param("w", RNG.normal(size=(5, 16)), "float32")
    s.feed("x", RNG.normal(size=(9, 5)), "float32")
    hidden = s.op("tanh", s.op("matmul", "x", "w"), out="hidden")
    s.op("reduce_mean", s.op("square", s.op("div", hidden, s.op("reduce_max", hidden))), out="loss")
    for v in s.document["blocks"][0]["vars"]:
        if v["name"] == "x":
            v["shape"] = [-1, 5]
    return s


SESSION = {"id": "s", "returned": "all", "stream": False}
DYNAMIC = {**CALLS, "session.gradients": SESSION}


@pytest.mark.parametrize("op", DYNAMIC)
@pytest.mark.parametrize("for_test", [False, True])
def test_dynamic_calls_share_one_code_for_all_sizes_up_to_the_next_power_of_two(monkeypatch, op, for_test):
    monkeypatch.setitem(CALLS, "session.gradients", SESSION)
    sketch = open_rows()
    dynamic, interpreted = started(sketch, compile="auto"), started(sketch, compile="never")
    compiled = {}
    for rows in (33, 64, 40, 7, 33, 2, 64):
        values = sketch.values | {"x": np.random.default_rng(rows).normal(size=(rows, 5)).astype(np.float32)}
        more = {"fetch": ["hidden", "loss"], "for_test": for_test}

        said, found = answered(dynamic, op, values, compile="dynamic", **more)
        again = answered(dynamic, op, values, compile="dynamic", **more)[1]
        _, wanted = answered(interpreted, op, values, **more)

        compiled.setdefault(rows, said["compiled"])
        assert again == found
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            a, b = (np.frombuffer(each, np.float32) for each in (found[name], value))
            np.testing.assert_allclose(a, b, 1e-4, 1e-5, err_msg=name)

    assert compiled == {33: True, 64: False, 40: False, 7: True, 2: False}


@pytest.mark.parametrize("op", CALLS)
def test_without_open_sizes_dynamic_calls_give_the_bits_of_compiled_calls(op):
    sketch = repeated_rows()
    state = started(sketch, compile="auto")

    always, dynamic = (answered(state, op, sketch.values, compile=how) for how in ("always", "dynamic"))

    assert dynamic[1] == always[1]
    assert (always[0]["compiled"], dynamic[0]["compiled"]) == (True, False)


def test_a_dynamic_call_gives_gradients_of_feeds_with_open_sizes():
    sketch = open_rows()
    state, at = started(sketch, compile="auto"), {"query": {"targets": ["loss"], "inputs": ["x", "w"]}}
    for rows in (12, 3):
        values = sketch.values | {"x": np.random.default_rng(rows).normal(size=(rows, 5)).astype(np.float32)}

        found, wanted = (
            answered(state, "gradients", values, compile=how, fetch=[], **at)[1] for how in ("dynamic", "auto")
        )

        assert len(found["grad/x"]) == rows * 5 * 4
        np.testing.assert_allclose(*(np.frombuffer(each["grad/x"], np.float32) for each in (found, wanted)), 1e-4, 1e-5)


def test_a_profile_of_a_dynamic_call_names_the_ops_of_the_program():
    sketch = open_rows()
    state = started(sketch, compile="auto")
    plain = answered(state, "gradients", sketch.values, compile="dynamic")[1]

    said, found = answered(state, "gradients", sketch.values, compile="dynamic", profile=True)

    assert found == plain
    named = {(each["of"]["op"], each["of"]["type"]) for each in said["profile"]["kernels"] if each["of"]}
    assert (0, "matmul") in named
    assert named <= {(i, op["type"]) for i, op in enumerate(sketch.blocks[0]["ops"])}
