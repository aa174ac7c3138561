"""Operations in the Python client: calls that go on in the service while no connection waits for them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

import backpass_client as bp
from backpass_client import connection
from examples.models import line
from tests.paths import ROOT

FEEDS = {"x": np.array([[1.0, 2.0], [3.0, 4.0]]), "y": np.array([1.0, 0.0])}
W = np.array([0.5, -0.25])
VALUES = {**FEEDS, "w": W}
LOSS = 0.625
"""The loss at these values, as in the README."""


@pytest.fixture
def program(service: bp.Service) -> bp.Program:
    return service.programs.create(line())


def steps(service: bp.Service, session: bp.Session, count: int) -> bp.Operation:
    """Many steps of a session, which end later than the answer 202."""
    asked = {"batches": count, "return_gradients": "none"}
    operation = service.operations.start(f"{session.path}/steps", asked, FEEDS)
    assert (operation.said["state"], operation.said["request"]) == ("running", f"POST {session.path}/steps")
    return operation


@pytest.fixture
def session(service: bp.Service) -> Iterator[bp.Session]:
    """A session whose steps leave its parameters as they are."""
    with service.create_session(line(), "loss", {"w": W}, optimizer={"type": "sgd", "learning_rate": 0.0}) as session:
        yield session


def test_an_operation_has_the_result_of_the_call(service: bp.Service, session: bp.Session):
    operation = steps(service, session, 20_000)

    said, tensors = operation.result(timeout=60)

    assert tensors["loss"].tolist() == [LOSS] * 20_000
    assert (said["applied"], said["step"]) == (20_000, 20_000)
    assert operation.wait() == operation.view() | {"state": "succeeded", "status": 200}
    found = service.operations.get(operation.id)
    assert found.result()[1]["loss"].tolist() == [LOSS] * 20_000
    assert operation.id in [each.id for each in service.operations.list()]
    found.delete()
    assert operation.result() == (said, tensors)
    with pytest.raises(bp.Refused, match="not-found"):
        operation.view()


def test_a_call_with_json_alone_has_no_tensors(service: bp.Service, program: bp.Program):
    operation = service.operations.start("/v1/programs", {"program": line()}, query={"validate_only": "true"})

    assert operation.result(timeout=60)[1] == {}
    assert operation.result()[0]["signature"] == program.signature


def test_a_call_that_ends_within_the_wait_is_no_operation_and_has_its_result(service: bp.Service, program: bp.Program):
    operation = service.operations.start(f"/v1/programs/{program.id}/gradients", {"loss": "loss"}, VALUES, wait=60)

    assert operation.id is None
    assert operation.wait()["state"] == operation.view()["state"] == operation.cancel()["state"] == "succeeded"
    assert operation.result()[1]["grad/w"].tolist() == [0.5, 0.0]
    with pytest.raises(bp.Refused, match="ended at once"):
        operation.delete()


def test_the_problem_of_a_call_is_raised_by_its_result(service: bp.Service, program: bp.Program):
    wrong = VALUES | {"y": np.array([1.0, 0.0, 2.0])}

    with pytest.raises(bp.Refused, match="shape-mismatch") as refusal:  # by `start` if the call has failed by then
        service.operations.start(f"/v1/programs/{program.id}/gradients", {"loss": "loss"}, wrong).result(timeout=60)

    assert refusal.value.status == 422
    assert str(refusal.value).startswith(f"POST /v1/programs/{program.id}/gradients: 422")


def test_a_stored_problem_is_read_once_though_the_same_problem_of_the_service_is_retried(
    service: bp.Service, monkeypatch: pytest.MonkeyPatch
):
    asked = []
    problem = {"status": 503, "code": "no-capacity", "title": "No capacity", "detail": "", "retryable": True}

    def answer(method: str, path: str, **_: object) -> httpx.Response:
        asked.append(path)
        ended = {"id": "opn_a", "state": "failed", "status": 503, "request": "POST /v1/gradients"}
        return httpx.Response(503, json=problem) if path.endswith("/result") else httpx.Response(200, json=ended)

    other = bp.Service(service.url)
    monkeypatch.setattr(other._http, "request", answer)
    operation = bp.Operation(other, {"id": "opn_a", "state": "running", "request": "POST /v1/gradients"})
    with pytest.raises(bp.Refused, match="POST /v1/gradients: 503 no-capacity"):
        operation.result()

    assert asked == ["/v1/operations/opn_a", "/v1/operations/opn_a/result"]


def test_an_operation_is_awaited_for_a_time_and_canceled(service: bp.Service, session: bp.Session):
    session.step(FEEDS)
    operation = steps(service, session, 500_000)

    with pytest.raises(TimeoutError, match=r"steps\) runs after 0.5 s"):
        operation.wait(timeout=0.5)
    operation.cancel()
    said, _ = operation.result(timeout=60)

    assert said["stopped"]["code"] == "canceled"
    assert 0 < said["applied"] < 500_000
    with pytest.raises(AttributeError, match=r"write cancel\(\)"):
        operation.stop()


def test_a_call_whose_answer_is_lost_becomes_one_operation(
    service: bp.Service, session: bp.Session, monkeypatch: pytest.MonkeyPatch
):
    other = bp.Service(service.url)
    send, answers = other._http.request, []

    def lost_at_first(*args: object, **more: object) -> httpx.Response:
        answers.append(send(*args, **more))
        if len(answers) == 1:
            raise connection.httpx.ReadError("the connection broke")
        return answers[-1]

    monkeypatch.setattr(other._http, "request", lost_at_first)
    operation = steps(other, session, 20_000)

    assert [each.status_code for each in answers] == [202, 202]
    assert {each.json()["id"] for each in answers} == {operation.id}
    monkeypatch.undo()
    assert operation.result(timeout=60)[0]["step"] == 20_000


def test_the_examples_of_the_page_run(service: bp.Service, session: bp.Session, capsys: pytest.CaptureFixture[str]):
    page = (ROOT / "docs/client/service.md").read_text()
    listing, awaiting = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    given = {"np": np, "service": service, "program": service.programs.create(line())}

    exec(listing, given)  # noqa: S102
    assert f"{session.id} 0 {given['program'].id}" in capsys.readouterr().out.splitlines()

    exec(awaiting, given)  # noqa: S102
    assert capsys.readouterr().out.split() == ["1.0", "[-2.", "-4.]"]
