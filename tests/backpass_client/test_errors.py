"""The texts of the client's exceptions."""

from __future__ import annotations

import pickle

import pytest

import backpass_client as bp
from backpass_client import Refused, Service, Unreachable
from backpass_client.builder.types import InvalidOp
from tests.ports import free_port


def refused(*errors: dict[str, str]) -> list[str]:
    """The lines of the exception for a problem with these errors."""
    problem = {"status": 422, "code": "invalid-request", "detail": "two mistakes", "errors": list(errors)}
    return str(Refused(problem, "POST /v1/x")).splitlines()


def test_an_error_is_shown_with_its_pointer_or_its_parameter():
    assert refused(
        {"pointer": "/a", "detail": "is missing"}, {"pointer": "", "parameter": "query: b", "detail": "is wrong"}
    ) == ["POST /v1/x: 422 invalid-request: two mistakes", "  /a: is missing", "  query: b: is wrong"]


def test_an_error_about_the_whole_body_is_shown_without_a_colon_and_not_twice():
    assert refused({"pointer": "", "detail": "is empty"})[1:] == ["  is empty"]
    assert refused({"pointer": "", "detail": "two mistakes"})[1:] == []
    assert refused({"pointer": "", "detail": "two mistakes", "suggestion": "send one"})[1:] == [
        "  two mistakes (send one)"
    ]


def test_a_single_mistake_whose_place_is_in_the_detail_is_shown_once():
    mistake = {"pointer": "/loss", "detail": "is missing"}
    problem = {"status": 422, "code": "invalid-request", "detail": "/loss: is missing", "errors": [mistake]}

    assert str(Refused(problem, "POST /v1/x")) == "POST /v1/x: 422 invalid-request: /loss: is missing"


def test_every_error_survives_a_pickle():
    problem = {"status": 409, "code": "rolled-back", "detail": "gone", "retryable": True, "expected_seq": 3}
    step = bp.Step(None, {}, {}, {"applied": 2})
    for error in (
        Refused(problem, "POST /v1/x", 1.5),
        bp.Stopped(step, {"batch": 2, "detail": "not finite"}),
        bp.JobFailed({"id": "job_x", "state": "failed", "step": 3, "reason": "internal", "error": None}),
        Unreachable("no answer"),
        InvalidOp("wrong"),
    ):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.fixture
def closed() -> str:
    """The address of a port of this machine where nothing listens."""
    return f"127.0.0.1:{free_port()}"


def test_the_error_of_a_service_that_does_not_answer_has_its_address_without_the_password(closed):
    with Service(f"http://me:secret@{closed}/", attempts=1) as service, pytest.raises(Unreachable) as raised:
        service.call("GET", "/v1/me")

    assert f"GET http://{closed}/v1/me: " in str(raised.value)
    assert "secret" not in str(raised.value)


def test_the_error_of_a_stream_from_a_service_that_does_not_answer_has_its_address(closed):
    with Service(f"http://me:secret@{closed}", attempts=1) as service:
        stream = bp.Session(service, {"id": "ses_1", "next_seq": 1, "weights_version": "e1.v0"}).stream_step({})

        with pytest.raises(Unreachable) as raised:
            list(stream)

    assert f"POST http://{closed}/v1/sessions/ses_1/steps: " in str(raised.value)
    assert "secret" not in str(raised.value)


def test_columns_in_place_of_a_stored_dataset_are_a_type_error_with_the_cure():
    with Service("http://service") as service:
        session = bp.Session(service, {"id": "ses_1", "next_seq": 1, "weights_version": "e1.v0"})

        with pytest.raises(TypeError, match=r"stored dataset, or its id, not a dict: .*datasets\.upload"):
            session.fit({"x": [1.0]})


def test_a_program_function_without_a_return_is_an_error():
    def forgotten(x: bp.f32[2]):
        x.sum()

    with pytest.raises(InvalidOp, match="'forgotten' returns nothing: return its outputs"):
        bp.program(forgotten)

    assert bp.program(lambda x=bp.f32[2]: {}).document()["blocks"][0]["ops"] == []
