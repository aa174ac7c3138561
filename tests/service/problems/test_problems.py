"""Every error is a problem document: complete, bounded, and without values of the request."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from fastapi import FastAPI, Query
from fastapi import Path as PathParameter
from pydantic import BaseModel, ConfigDict, Field
from starlette.testclient import TestClient

from core.ir.errors import ExecutionError, InvalidProgram, Location, NotDifferentiable, Problem
from service import problems
from service.engine import DeadlineExceeded, NoCapacity, QueueFull, RemoteError, WorkerLost
from service.http.middleware import install as install_middleware
from service.observability.metrics import Metrics
from service.problems import CODES, FieldError, HttpProblem

MEMBERS = {"type", "title", "status", "detail", "instance", "code", "request_id", "retryable"}
PLACE = Location(1, 3, "mul", "x", "h")
REMOTE = {"code": "x", "message": "no", "location": None, "problems": []}


class Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    rate: float
    names: list[Annotated[int, Field(ge=0)]] = []
    kind: Literal["a", "b"] = "a"


class Idle:
    """An engine without calls."""

    events: dict = {}
    waiting = 0

    def workers(self) -> list:
        return []


def client(error: Exception | None = None) -> TestClient:
    app = FastAPI()
    problems.install(app)
    install_middleware(app, Metrics(Idle()))

    @app.get("/raise")
    async def fail() -> None:
        assert error is not None
        raise error

    @app.post("/model/{number}")
    async def model(
        body: Model, number: Annotated[int, PathParameter(le=9)], page: Annotated[int, Query()] = 1
    ) -> None:
        return None

    return TestClient(app, raise_server_exceptions=False)


def checked(response: Any, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert len(response.content) < 32 * 1024
    document = response.json()
    assert document.keys() >= MEMBERS
    assert (document["status"], document["code"]) == (status, code)
    assert document["request_id"] == response.headers["request-id"]
    assert document["type"] == f"/problems/{code}"
    return document


RAISED = {
    "http": (HttpProblem("in-use", "two sessions use it"), 409, "in-use", False),
    "other status": (HttpProblem("limit-exceeded", "deep", status=400), 400, "limit-exceeded", False),
    "worker lost": (WorkerLost("wrk_1", "killed by SIGKILL"), 503, "worker-lost", True),
    "deadline": (DeadlineExceeded("late", waited=False), 504, "deadline-exceeded", False),
    "deadline in line": (DeadlineExceeded("late", waited=True), 504, "deadline-exceeded", True),
    "queue full": (QueueFull("full", retry_after=7.2), 429, "queue-full", True),
    "no capacity": (NoCapacity("none"), 503, "no-capacity", True),
    "remote program": (RemoteError("program", "bad_slot", "no", REMOTE), 422, "invalid-program", False),
    "remote gradient": (RemoteError("program", "no_gradient", "no", REMOTE), 422, "no-gradient", False),
    "remote feed": (RemoteError("program", "feed_shape", "no", REMOTE), 422, "shape-mismatch", False),
    "remote loop": (RemoteError("execution", "too_many_trips", "no", REMOTE), 422, "iteration-limit", False),
    "remote index": (RemoteError("execution", "index_out_of_range", "no", REMOTE), 422, "execution-failed", False),
    "remote memory": (RemoteError("memory", "out_of_memory", "no", REMOTE), 503, "device-out-of-memory", True),
    "remote bug": (RemoteError("internal", "internal", "secret", REMOTE), 500, "internal", False),
    "core program": (NotDifferentiable("no way", location=PLACE), 422, "no-gradient", False),
    "core run": (ExecutionError("nan", "not_finite"), 422, "numeric-error", False),
    "bug": (ZeroDivisionError("secret"), 500, "internal", False),
}


@pytest.mark.parametrize("name", RAISED)
def test_an_exception_becomes_its_problem(name: str):
    error, status, code, retryable = RAISED[name]

    response = client(error).get("/raise")

    document = checked(response, status, code)
    assert document["retryable"] is retryable
    assert "secret" not in response.text
    if status in (429, 503):
        assert int(response.headers["retry-after"]) >= 1


def test_retry_after_is_the_engines_delay_rounded_up():
    assert client(QueueFull("full", retry_after=7.2)).get("/raise").headers["retry-after"] == "8"


def test_mistakes_of_a_program_have_pointers_and_locations():
    mistakes = [Problem("use_before_write", f"mistake {n}", f"/blocks/1/ops/{n}", PLACE, "write it") for n in range(60)]

    document = checked(client(InvalidProgram(mistakes)).get("/raise"), 422, "invalid-program")

    assert len(document["errors"]) == 50
    assert document["errors_truncated"] is True
    assert document["errors"][3]["pointer"] == "/program/blocks/1/ops/3"
    assert document["errors"][3]["code"] == "use-before-write"
    assert document["errors"][3]["location"]["variable"] == "h"
    assert document["errors"][3]["suggestion"] == "write it"


def test_without_a_prefix_pointers_start_at_the_program():
    remote = RemoteError("program", "bad_slot", "no", {"problems": [{"pointer": "/a", "code": "c", "message": "m"}]})

    assert problems.from_remote(remote, prefix="").errors[0].pointer == "/a"


def test_errors_of_the_router_are_problem_documents():
    document = checked(client().get("/nowhere"), 404, "not-found")
    assert document["instance"].startswith("/nowhere#req_")
    assert document["detail"].startswith("no route has this path; GET /v1 names the collections")
    response = client().delete("/raise")
    assert checked(response, 405, "method-not-allowed")["detail"] == "this path has no DELETE; it has GET, HEAD"
    assert response.headers["allow"] == "GET, HEAD"


SECRET = "hunter2" * 1000
BAD_BODIES = {
    "wrong type": ({"rate": SECRET}, "/rate"),
    "missing": ({}, "/rate"),
    "unknown": ({"rate": 1.0, "rat": SECRET}, "/rat"),
    "in a list": ({"rate": 1.0, "names": [1, SECRET]}, "/names/1"),
    "out of range": ({"rate": 1.0, "names": [-7654321]}, "/names/0"),
    "not a choice": ({"rate": 1.0, "kind": SECRET}, "/kind"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_an_error_points_to_the_invalid_value_and_never_quotes_it(name: str):
    body, pointer = BAD_BODIES[name]

    response = client().post("/model/1", json=body)

    document = checked(response, 422, "invalid-request")
    assert document["errors"][0]["pointer"] == pointer
    assert "hunter2" not in response.text
    assert "7654321" not in response.text


def test_errors_name_invalid_parameters():
    document = checked(client().post("/model/12?page=x", json={"rate": 1.0}), 422, "invalid-request")

    assert [error["parameter"] for error in document["errors"]] == ["path: number", "query: page"]


def test_a_document_with_a_thousand_mistakes_is_truncated():
    body = {"rate": 1.0, "names": [SECRET] * 1000, SECRET: 1}

    assert checked(client().post("/model/1", json=body), 422, "invalid-request")["errors_truncated"] is True


def test_long_texts_and_surrogates_leave_a_document_valid():
    fields = [FieldError("/x" * 10_000, "c", "\ud800" * 10_000, {"variable": "v" * 10_000}, "s" * 9999)] * 99

    checked(
        client(HttpProblem("invalid-request", "\udc00" * 100_000, errors=fields)).get("/raise"), 422, "invalid-request"
    )


def test_invalid_json_gets_400():
    response = client().post("/model/1", content=b"{", headers={"content-type": "application/json"})

    checked(response, 400, "invalid-json")


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_an_html_page_and_a_json_page(code: str):
    as_json = client().get(f"/problems/{code}")
    as_html = client().get(f"/problems/{code}", headers={"accept": "text/html"})

    assert as_json.json()["statuses"] == list(CODES[code].statuses)
    assert CODES[code].title in as_html.text
    assert "unsafe-inline" in as_html.headers["content-security-policy"]


def test_an_unknown_code_has_no_page():
    checked(client().get("/problems/nonsense"), 404, "not-found")


def test_every_code_can_be_documented():
    answers = problems.responses(*CODES)

    assert set(answers) == {kind.status for kind in CODES.values()}
    assert "`worker-lost`" in answers[503]["description"]
    shared, examples = problems.components(), {}
    shown = {status: problems.show(each, status, examples) for status, each in answers.items()}
    media = shown[503]["content"]["application/problem+json"]
    assert media["schema"] == {"$ref": "#/components/schemas/Problem"} and "Problem" in shared["schemas"]
    assert media["examples"]["no-capacity"] == {"$ref": "#/components/examples/no-capacity"}
    assert examples["no-capacity"]["value"]["status"] == 503
    (example,) = shared["schemas"]["Problem"]["examples"]
    assert example.keys() <= shared["schemas"]["Problem"]["properties"].keys()


def test_the_table_contains_every_code_that_the_service_uses():
    used = set()
    for path in Path(problems.__file__).parents[1].rglob("*.py"):
        used |= set(re.findall(r'(?:HttpProblem|TensorError)\(\s*"([a-z-]+)"', path.read_text()))

    assert used
    assert used <= CODES.keys()
