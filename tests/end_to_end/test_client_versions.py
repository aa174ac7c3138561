"""If-Match in the Python client: each call of a session is made for a version, and several clients take turns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest

import backpass_client as bp
from examples.models import line

FEEDS = {"x": np.array([[1.0, 2.0], [3.0, 4.0]]), "y": np.array([1.0, 0.0])}
W = np.array([0.5, -0.25])
OPTIMIZER = {"type": "momentum", "learning_rate": 0.01}

CALLS: dict[str, Callable[..., Any]] = {
    "step": lambda s, **m: s.step(FEEDS, **m),
    "stream_step": lambda s, **m: s.stream_step(FEEDS, **m).result,
    "stream_gradients": lambda s, **m: s.stream_gradients(FEEDS, **m).result,
    "update": lambda s, **m: s.update({"w": W}, **m),
    "gradients": lambda s, **m: s.gradients(FEEDS, **m),
    "discard_gradients": lambda s, **m: s.discard_gradients(**m),
    "change_optimizer": lambda s, **m: s.change_optimizer(learning_rate=0.1, **m),
    "evaluate": lambda s, **m: s.evaluate(FEEDS, **m),
    "parameters": lambda s, **m: s.parameters(**m),
    "put_parameters": lambda s, **m: s.put_parameters({"w": W}, **m),
    "to_onnx": lambda s, **m: s.to_onnx(outputs=["error"], **m),
    "histograms": lambda s, **m: s.histograms(**m),
    "checkpoint": lambda s, **m: s.checkpoint(**m),
    "fork": lambda s, **m: s.fork(**m).close(),
    "optimizer_state": lambda s, **m: s.optimizer_state(**m),
    "load_optimizer_state": lambda s, **m: s.load_optimizer_state(s.optimizer_state(), **m),
    "close": lambda s, **m: s.close(**m),
}
UNCONDITIONAL = {
    "view": "its answer has the version",
    "fit": "a job ends if another client changes its session",
    "checkpoints": "lists what was saved",
    "metrics": "past steps",
    "events": "past steps",
    "load_into": "parameters() has the condition",
    "from_checkpoint": "opens a session",
}


@pytest.fixture
def session(service):
    made = bp.Program(service, line()).session("loss", {"w": W}, optimizer=OPTIMIZER)
    made.step(FEEDS)
    yield made
    try:
        made.close()
    except bp.Refused as error:
        assert error.code == "not-found"


def test_every_call_of_a_session_has_a_case_here():
    calls = {name for name, each in inspect.getmembers(bp.Session, callable) if not name.startswith("_")}
    assert calls == set(CALLS) | set(UNCONDITIONAL)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_for_another_version_changes_nothing(session, name: str):
    before = session.view()

    with pytest.raises(bp.PreconditionFailed) as caught:
        CALLS[name](session, if_match='"e1.v0"')

    assert (caught.value.code, caught.value.etag) == ("precondition-failed", session.etag)
    assert {**session.view(), "lease_left_s": 0} == {**before, "lease_left_s": 0}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_for_the_present_version_takes_effect(session, name: str):
    CALLS[name](session, if_match=session.etag)


@pytest.mark.parametrize("form", ["e1.v1", '"e1.v1"', '"e9.v9", "e1.v1"', "*"])
def test_a_version_is_given_as_text_in_any_form_of_the_header(session, form: str):
    assert session.step(FEEDS, if_match=form).said["step"] == 2


def test_a_session_refuses_versions_other_than_text(session):
    with pytest.raises(TypeError, match=r"if_match is a version, such as session.etag, not 1"):
        session.step(FEEDS, if_match=1)


def test_the_etag_is_that_of_the_last_answer_to_this_object(service, session):
    other = bp.Session(service, session.id)
    assert other.etag == session.etag == '"e1.v1"'

    session.update({"w": W})

    assert (session.etag, other.etag) == ('"e1.v2"', '"e1.v1"')
    other.parameters()
    assert other.etag == '"e1.v2"'


def test_two_clients_that_read_change_and_write_lose_no_update(service, session):
    """Each client takes the number that is next, although the other one has used some."""
    clients = [session, bp.Session(service, session.id)]
    session.put_parameters({"w": np.zeros(2)})

    for i in range(6):
        first, second = clients[i % 2], clients[(i + 1) % 2]
        values = first.parameters()["w"], second.parameters()["w"]
        first.put_parameters({"w": values[0] + 1}, if_match=first.etag)
        with pytest.raises(bp.PreconditionFailed):
            second.put_parameters({"w": values[1] + 1}, if_match=second.etag)
        second.parameters()
        second.update({"w": np.ones(2)}, learning_rate=0.0, if_match=second.etag)

    assert session.view()["next_seq"] == 8
    assert session.parameters()["w"].tolist() == [6.0, 6.0]


def test_a_numbered_call_for_a_version_of_another_client_is_no_repetition_of_its_call(service, session):
    """Both clients send the same body: with the same number, the second one would get the answer to the first."""
    other = bp.Session(service, session.id)
    session.gradients(FEEDS, accumulate=True)
    other.view()
    session.gradients(FEEDS, accumulate=True)
    other.view()

    assert session.update(reduction="sum")["step"] == 2
    session.gradients(FEEDS, accumulate=True)
    other.parameters()
    answer = other.update(reduction="sum", if_match=other.etag)

    assert answer["step"] == 3 and session.view()["accumulated"] == 0


def test_a_failed_precondition_tells_the_version_with_the_sum_of_gradients(service, session):
    session.gradients(FEEDS, accumulate=True)
    before, other = session.etag, bp.Session(service, session.id)
    other.gradients(FEEDS, accumulate=True)

    with pytest.raises(bp.PreconditionFailed) as error:
        session.update(reduction="sum", if_match=before)

    assert error.value.etag == other.etag != before
    session.update(reduction="sum", if_match=error.value.etag)
    assert session.view()["accumulated"] == 0


def test_after_a_failed_precondition_the_next_call_has_the_right_number(service, session):
    other = bp.Session(service, session.id)
    session.step(FEEDS)
    session.step(FEEDS)

    with pytest.raises(bp.PreconditionFailed):
        other.step({**FEEDS, "y": W}, if_match=other.etag)

    assert other.next_seq == 4
    assert other.step(FEEDS).said["step"] == 4


@pytest.mark.parametrize("name", ["step", "stream_step"])
def test_a_call_for_any_version_takes_the_number_that_another_client_left(service, session, name: str):
    other = bp.Session(service, session.id)
    session.step({**FEEDS, "y": W})

    found = CALLS[name](other, if_match="*")

    assert (found.said["step"], other.next_seq) == (3, 4)


@pytest.mark.parametrize("name", ["step", "stream_step"])
def test_a_call_for_any_version_takes_a_number_though_another_client_is_faster(
    service, session, monkeypatch, name: str
):
    other = bp.Session(service, session.id)
    sending, left = "exchange" if name == "step" else "stream", [3]
    send = getattr(service, sending)

    def late(*args: Any, **more: Any) -> Any:
        if left[0] and args[1].endswith("/steps"):
            left[0] -= 1
            monkeypatch.setattr(service, sending, send)
            session.step({**FEEDS, "y": W + left[0]})
            monkeypatch.setattr(service, sending, late)
        return send(*args, **more)

    monkeypatch.setattr(service, sending, late)
    found = CALLS[name](other, if_match="*")

    assert (found.said["step"], left) == (5, [0])


def test_a_stream_without_a_version_does_not_take_the_number_of_another_client(service, session):
    other = bp.Session(service, session.id)
    session.step({**FEEDS, "y": W})

    with pytest.raises(bp.Refused, match="sequence-conflict"):
        _ = other.stream_step(FEEDS).result

    assert session.view()["step"] == 2


def test_after_a_failed_precondition_of_a_stream_the_next_call_has_the_right_number(service, session):
    other = bp.Session(service, session.id)
    session.step(FEEDS)
    session.step(FEEDS)

    with pytest.raises(bp.PreconditionFailed):
        _ = other.stream_step({**FEEDS, "y": W}, if_match=other.etag).result

    assert other.next_seq == 4
    assert other.stream_step(FEEDS).result.said["step"] == 4


def test_a_stream_takes_its_number_when_it_is_read(session):
    stream = session.stream_step(FEEDS)
    session.step({**FEEDS, "y": W})

    assert stream.result.said["step"] == 3


def test_a_stream_that_broke_after_its_effect_is_not_executed_again(service, session, monkeypatch):
    """Its number is taken then, by itself: another number would execute it twice."""
    opened, calls = service.stream, []

    @contextmanager
    def broken(*args, **more):
        calls.append(more["content"])
        with opened(*args, **more) as answer:
            if len(calls) == 1:
                answer.read()  # the step has taken effect
                raise httpx.ReadError("the connection broke", request=answer.request)
            yield answer

    monkeypatch.setattr(service, "stream", broken)
    found = session.stream_step(FEEDS, if_match="*").result

    assert (found.said["step"], session.view()["step"], len(calls)) == (2, 2, 2)
    assert calls[0] == calls[1]


def test_the_etag_covers_the_sum_of_gradients(service, session):
    """An answer, a read, and the view of another client name the same version, which an update is made for."""
    session.gradients(FEEDS, accumulate=True)
    after_call = session.etag
    session.parameters()
    other = bp.Session(service, session.id)
    assert session.etag == after_call == other.etag != '"e1.v1"'

    session.gradients(FEEDS, accumulate=True)
    with pytest.raises(bp.PreconditionFailed):
        other.evaluate(FEEDS, if_match=other.etag)
    assert session.update(reduction="mean", if_match=session.etag)["step"] == 2
    assert session.etag == '"e1.v2"'
