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


VALUES = tensors(SKETCH.values)
ONE_SHOT: dict[str, dict[str, Any]] = REQUESTS | {
    "good": {"json": {"loss": "loss", "feeds": VALUES}},
    "file": file_of(SKETCH.values, loss="loss"),
    "stream": {"json": {"loss": "loss", "feeds": VALUES}, "headers": {"accept": "application/x-ndjson"}},
    "lacks-values": {"json": {"loss": "loss"}},
    "no-gradient": {"json": {"loss": "x", "feeds": VALUES}},
}


@pytest.mark.parametrize("request_", ONE_SHOT.values(), ids=ONE_SHOT)
def test_both_paths_give_the_same_one_shot_gradients(client: httpx.Client, request_: dict[str, Any]):
    id = client.post("/v1/programs", json={"program": SKETCH.document}).json()["id"]
    named = request_
    if request_ is ONE_SHOT["file"]:
        named = file_of(SKETCH.values, loss="loss", program_id=id)
    elif "json" in request_:
        named = {**request_, "json": {**request_["json"], "program_id": id}}

    for path, given in ((f"/v1/programs/{id}/gradients", request_), ("/v1/gradients", named)):
        straight, routine = (client.post(path + query, **given) for query in ("", THROUGH_FASTAPI))

        assert said(straight) == said(routine)
        assert (straight.status_code == 200) == any(request_ is ONE_SHOT[name] for name in ("good", "file", "stream"))


@pytest.mark.parametrize("id", ["prg_" + "a" * 26, "prg_short", "", "a/b"])
def test_both_paths_refuse_an_unknown_program_equally(client: httpx.Client, id: str):
    answers = [client.post(f"/v1/programs/{id}/gradients{query}", json={}) for query in ("", THROUGH_FASTAPI)]

    assert said(answers[0]) == said(answers[1])
    assert answers[0].status_code in (404, 405, 422)


LINE = {"parameters": tensors({"w": 2.0}), "ops": [{"type": "exp", "inputs": {"x": ["w"]}, "outputs": {"out": ["y"]}}]}
ON_TAPE: dict[str, tuple[str, dict[str, Any]]] = {
    "ops": ("ops", {"json": {"ops": LINE["ops"]}}),
    "gap": ("ops", {"json": {"ops": [], "seq": 9}}),
    "backward": ("backward", {"json": {"target": "y"}}),
    "record": ("backward", {"json": {"target": "y", "record": True, "seq": 2}}),
    "no-target": ("backward", {"json": {}}),
    "no-json": ("backward", {"content": b"{", "headers": {"content-type": "application/json"}}),
}


@pytest.mark.parametrize(("name", "request_"), ON_TAPE.values(), ids=ON_TAPE)
def test_both_paths_give_the_same_answer_on_a_tape(client: httpx.Client, name: str, request_: dict[str, Any]):
    found = []
    for query in ("", THROUGH_FASTAPI):
        tape = client.post("/v1/tapes", json={}).headers["location"]
        appended = client.post(f"{tape}/ops{query}", json=LINE)
        assert appended.status_code == 200, appended.text
        found.append((said(appended), said(client.post(f"{tape}/{name}{query}", **request_))))
        client.delete(tape)

    assert found[0] == found[1]


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
    text = re.sub(rb"req_\w+|(ses|tap)_[a-z2-7]{26}", b"", answer.content)
    text = re.sub(rb'\\?"timing_ms\\?":\{.*?\}|"compiled\\?":\w+', b"", text)
    if FILE in str(headers):
        text = re.sub(rb" +", b"", text[8:])  # the header is padded with spaces, so its length may differ
    return answer.status_code, headers, text
