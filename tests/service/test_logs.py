"""Log lines: one JSON object each, with the request that they belong to, in every process."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from service import logs
from tests.paths import ROOT
from tests.service.conftest import serve
from tests.service.engine.conftest import Pool, anyio_backend, open_pool  # noqa: F401  (fixtures)
from tests.service.wire import opened, problem, regression, tensors


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def formatted(message: str, *args: object) -> str:
    return logs.JsonFormatter({}).format(logging.LogRecord("test", logging.INFO, "", 0, message, args, None))


@pytest.mark.parametrize("text", ["a\r\nINFO forged", "a\x00\x1b[31m\x7f", "a\x85b\u2028c\u2029d", "\ud800"])
def test_every_control_character_is_escaped(text: str) -> None:
    line = formatted("%s", text)

    assert not re.search(r"[\x00-\x1f\x80-\x9f\u2028\u2029]", line)
    assert json.loads(line)["message"] == text


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    message = json.loads(formatted("%s", "first" + "x" * 50_000 + "last"))["message"]

    assert message.startswith("first") and message.endswith("last")
    assert len(message) == logs.FIELD_CHARACTERS


def test_a_line_names_the_current_request_and_what_is_known_of_it() -> None:
    token = logs.FIELDS.set({"request_id": "req_1"})
    try:
        logs.note(tenant="acme")
        found = json.loads(formatted("hello"))
    finally:
        logs.FIELDS.reset(token)

    assert (found["request_id"], found["tenant"]) == ("req_1", "acme")


def test_notes_outside_of_a_request_are_not_kept() -> None:
    logs.note(tenant="acme")

    assert "tenant" not in json.loads(formatted("hello"))


def test_an_uncaught_exception_and_a_warning_are_json_lines() -> None:
    program = (
        "import warnings; from service import logs; logs.configure('info', worker='wrk_1'); warnings.warn('old'); 1/0"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)

    warning, error = map(json.loads, ended.stderr.splitlines())
    assert "old" in warning["message"]
    assert "ZeroDivisionError" in error["traceback"]
    assert error["worker"] == "wrk_1"


@pytest.mark.anyio
async def test_log_lines_of_a_worker_name_the_request_of_the_call(open_pool: Pool, capfd: Any) -> None:  # noqa: F811
    async with open_pool(workers=1) as pool:
        for id in ("req_one", "req_two"):
            token = logs.FIELDS.set({"request_id": id, "session": "ses_x"})
            with pytest.raises(Exception, match="inside the worker"):
                await pool.call("bug", {}, deadline=60)
            logs.FIELDS.reset(token)

    found = [json.loads(line) for line in capfd.readouterr().err.splitlines() if "inside its handler" in line]
    assert [(line["request_id"], line["session"]) for line in found] == [("req_one", "ses_x"), ("req_two", "ses_x")]
    assert all(line["worker"].startswith("wrk_") for line in found)


@pytest.mark.anyio
async def test_supervision_of_a_pool_does_not_belong_to_the_request_that_started_it(
    open_pool: Pool,  # noqa: F811
    capfd: Any,
) -> None:
    logs.FIELDS.set({"request_id": "req_first"})
    before = logging.getLogger().handlers[:]
    logs.configure("info")
    try:
        async with open_pool(workers=1):
            pass
    finally:
        logging.getLogger().handlers[:] = before

    found = [json.loads(line) for line in capfd.readouterr().err.splitlines() if "is ready" in line]
    assert len(found) == 1
    assert "request_id" not in found[0]


def test_each_request_has_one_line_without_its_body_or_path(tmp_path: Path) -> None:
    path = tmp_path / "log"
    sketch = regression()
    feeds = tensors({name: sketch.values[name] for name in ("x", "y")})
    with path.open("w") as file, serve(tmp_path / "data", stderr=file, workers=1, log_level="info") as served:
        client = served.client
        with opened(client, sketch) as session:
            client.post(f"{session}/steps", json={"feeds": feeds}, headers={"request-id": "mine"})
        client.post("/v1/gradients", content=b'{"secret": NaN}', headers={"content-type": "application/json"})
        forged = client.get("/v1/a%0d%0a%7B%22level%22:%22forged%22%7D", headers={"request-id": "forged"})
        httpx.get(f"{served.url}/healthz/ready", timeout=60, verify=False)

    assert forged.status_code == 404
    text = path.read_text()
    assert "secret" not in text
    assert '"forged"' not in text.replace('"request_id":"forged"', "")
    access = [line for line in lines(path) if line["logger"] == "backpass.access"]
    (step,) = [line for line in access if line["request_id"] == "mine"]
    assert (step["method"], step["route"], step["status"]) == ("POST", "/v1/sessions/{session_id}/steps", 200)
    assert step["session"] == session.rpartition("/")[2]
    assert step["tenant"] == "local"
    assert step["bytes_in"] > 100 < step["bytes_out"]
    assert 0 < step["ms"] < 60_000
    routes = [(line["route"], line["status"]) for line in access]
    assert ("/v1/gradients", 400) in routes
    assert ("unmatched", 404) in routes
    assert not any(route.startswith("/healthz") for route, _ in routes)


@pytest.mark.parametrize(("which", "statuses"), [("errors", {404}), ("off", set())])
def test_the_setting_chooses_the_requests_with_a_line(which: Any, statuses: set[int], caplog: Any) -> None:
    from service.http.access_log import AccessLog

    with caplog.at_level("INFO"):
        assert {status for status in (200, 404) if AccessLog(which).wants("/v1", status)} == statuses


def test_a_failure_inside_a_request_is_logged_under_its_id(client: httpx.Client) -> None:
    answer = client.post("/v1/gradients", content=b"{", headers={"content-type": "application/json"})

    assert problem(answer, 400, "invalid-json")["request_id"] == answer.headers["request-id"]
