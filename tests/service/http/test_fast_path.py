"""The fast path and the path through FastAPI give the same answers."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from service.routes import training
from tests.service.wire import FILE, file_of, opened, regression, tensors

SKETCH = regression()
FEEDS = {name: SKETCH.values[name] for name in "xy"}
THROUGH_FASTAPI = (
    "?&"  # a request with a query string takes the path through FastAPI, and an empty parameter has no effect
)
NAMES = [route.path.rpartition("/")[2] for route in training.router.routes]

REQUESTS: dict[str, dict[str, Any]] = {
    "good": {"json": {"feeds": tensors(FEEDS)}},
    "file": file_of(FEEDS),
    "gradients": {"json": {"gradients": tensors({"w": SKETCH.values["w"]})}},
    "no-such-member": {"json": {"feed": {}}},
    "no-json": {"content": b"{", "headers": {"content-type": "application/json"}},
    "no-file": {"content": b"\0" * 20, "headers": {"content-type": FILE}},
    "wrong-type": {"content": b"x", "headers": {"content-type": "text/plain"}},
    "not-acceptable": {"json": {}, "headers": {"accept": "image/png"}},
    "unknown-feed": {"json": {"feeds": tensors({"z": 1.0})}},
    "gap": {"json": {"feeds": tensors(FEEDS), "seq": 17}},
    "too-late": {"json": {"feeds": tensors(FEEDS), "deadline_s": 1e9}},
    "nothing": {},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_both_paths_give_the_same_answer(client: httpx.Client, name: str, request_: dict[str, Any]):
    with (
        opened(client, SKETCH, optimizer={"type": "sgd"}) as one,
        opened(client, SKETCH, optimizer={"type": "sgd"}) as two,
    ):
        for _ in range(2):
            straight = client.post(f"{one}/{name}", **request_)
            routine = client.post(f"{two}/{name}{THROUGH_FASTAPI}", **request_)

            assert said(straight) == said(routine)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("id", ["ses_" + "a" * 26, "ses_short", "", "a/b", "%2e%2e", "ses_" + "A" * 26])
def test_both_paths_refuse_an_unknown_session_equally(client: httpx.Client, name: str, id: str):
    answers = [client.post(f"/v1/sessions/{id}/{name}{query}", json={}) for query in ("", THROUGH_FASTAPI)]

    assert said(answers[0]) == said(answers[1])
    assert answers[0].status_code in (404, 422)


def test_both_paths_refuse_other_methods_equally(client: httpx.Client):
    path = f"/v1/sessions/ses_{'a' * 26}/steps"
    assert said(client.get(path)) == said(client.get(path + THROUGH_FASTAPI))


def test_both_paths_are_counted_under_one_route(client: httpx.Client):
    with opened(client, SKETCH, optimizer={"type": "sgd"}) as path:
        for query in ("", THROUGH_FASTAPI):
            client.post(f"{path}/steps{query}", json={"feeds": tensors(FEEDS)})

    page = client.get("/metrics").text
    routes = set(re.findall(r'route="([^"]*steps)"', page))
    assert routes == {"/v1/sessions/{session_id}/steps"}


def said(answer: httpx.Response) -> tuple[Any, ...]:
    """The answer without the parts that differ between requests."""
    own = {"date", "request-id", "server-timing", "content-length"}
    headers = sorted((name, value) for name, value in answer.headers.items() if name not in own)
    text = re.sub(rb"req_\w+|ses_[a-z2-7]{26}", b"", answer.content)
    text = re.sub(rb'\\?"timing_ms\\?":\{.*?\}|"compiled\\?":\w+', b"", text)
    if FILE in str(headers):
        text = re.sub(rb" +", b"", text[8:])  # the header is padded with spaces, so its length may differ
    return answer.status_code, headers, text
