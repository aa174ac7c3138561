"""Laws over all routes: HEAD, Allow, slashes at the end of paths."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import httpx
import pytest

from service.http.sse import EVENT_STREAM
from service.schemas.examples import FITTED_ID
from tests.service.openapi import DOCUMENT, OPERATIONS, filled
from tests.service.wire import FILE, opened, problem, regression

SKETCH = regression()

HIDDEN = ["/", "/docs", "/openapi.json", "/static/docs.js", "/static/console/main.js", "/guide", "/guide/"]
GETS = [path for path, method, _ in OPERATIONS if method == "get"]
STREAMS = [
    path
    for path, method, operation in OPERATIONS
    if EVENT_STREAM in operation["responses"].get("200", {}).get("content", {})
]
NOT_REPEATED = {"date", "request-id", "server-timing", "content-length"}
"""Headers of one request. The length of an answer with times changes from one to the next."""


def of_representation(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in NOT_REPEATED}


@pytest.mark.parametrize("path", GETS + HIDDEN)
def test_head_answers_the_status_and_headers_of_get_without_content(client: httpx.Client, path: str):
    request = {"url": path} if path in HIDDEN else filled(path, "get")
    get, head = client.get(**request), client.head(**request)

    assert (head.status_code, of_representation(head)) == (get.status_code, of_representation(get))
    assert head.content == b""
    assert ("content-length" in head.headers) == ("content-length" in get.headers)


@pytest.mark.parametrize("path", STREAMS)
def test_head_of_a_stream_ends_with_the_headers(client: httpx.Client, path: str):
    begun = time.monotonic()
    head = client.head(**filled(path, "get") | {"headers": {"accept": EVENT_STREAM}})

    assert head.status_code == 200
    assert head.headers["content-type"].startswith(EVENT_STREAM)
    assert head.headers["vary"] == client.get(**filled(path, "get")).headers["vary"] == "Accept"
    assert time.monotonic() - begun < 60


def test_head_ignores_a_range(client: httpx.Client):
    request = filled("/v1/datasets/{dataset_id}/content", "get") | {"headers": {"range": "bytes=0-9"}}
    part, head = client.get(**request), client.head(**request)

    assert (part.status_code, head.status_code) == (206, 200)
    assert head.headers["content-length"] == part.headers["content-range"].rpartition("/")[2]


def test_head_is_counted_under_its_route(client: httpx.Client):
    client.head("/v1/ops/relu")

    assert 'method="HEAD",route="/v1/ops/{type}",status="200"' in client.get("/metrics").text


def test_head_of_an_unknown_thing_has_the_headers_of_the_problem(client: httpx.Client):
    head = client.head("/v1/sessions/ses_" + "a" * 26)

    assert (head.status_code, head.content) == (404, b"")
    assert head.headers["content-type"] == "application/problem+json"


def test_a_wrong_method_is_answered_with_all_right_ones(client: httpx.Client):
    for path, methods in DOCUMENT["paths"].items():
        right = {each.upper() for each in methods}
        answer = client.request("OPTIONS", filled(path, next(iter(methods)))["url"])

        problem(answer, 405, "method-not-allowed")
        assert set(answer.headers["allow"].split(", ")) == right | ({"HEAD"} if "GET" in right else set())


def test_a_query_parameter_that_takes_one_value_is_refused_with_two(client: httpx.Client):
    seen = 0
    for path, method, operation in OPERATIONS:
        for parameter in operation.get("parameters", []):
            kinds = {each.get("type") for each in (parameter["schema"], *parameter["schema"].get("anyOf", []))}
            if parameter["in"] != "query" or "array" in kinds:
                continue
            request = filled(path, method)
            name = parameter["name"]
            request["params"] = [*dict(request.get("params") or {}).items(), (name, "1"), (name, "2")]
            answer = client.request(method.upper(), **request)
            errors = problem(answer, 422, "invalid-request")["errors"]
            assert f"query: {name}" in [each.get("parameter") for each in errors], (path, name, errors)
            seen += 1

    assert seen > 50


def test_a_slash_too_many_redirects_requests_that_read(client: httpx.Client):
    for path in [*GETS, "/docs", "/openapi.json"]:
        if path.endswith("{name}"):  # the name of a variable may contain slashes
            continue
        url = filled(path, "get")["url"] if path in GETS else path
        answer = client.get(f"{url}/?page_size=1")

        assert answer.status_code == 308
        assert str(answer.next_request.url) == str(client.base_url.join(f"{url}?page_size=1"))
        assert client.head(f"{url}/").headers["location"] == answer.headers["location"].partition("?")[0]


def test_a_slash_too_many_is_told_to_requests_that_write(client: httpx.Client):
    answer = client.post("/v1/sessions/", json={})

    assert problem(answer, 404, "not-found")["detail"] == (
        "no route has this path; there is one without the slash at its end"
    )
    assert client.get("/v1/sessions//").status_code == 404


NEGOTIATED = {
    path: [kind for kind in operation["responses"]["200"]["content"] if kind != EVENT_STREAM]
    for path, method, operation in OPERATIONS
    if method == "get" and len(operation["responses"]["200"].get("content", {})) > 1
}
"""Paths whose answer depends on Accept, and its media types without streams, which the test above reads."""


def test_the_form_of_an_answer_is_a_representation_of_its_own(client: httpx.Client):
    """RFC 9110, sections 8.8.1 and 12.5.5: a cache never gives one form to a client that asked for another."""
    for path, kinds in NEGOTIATED.items():
        request = filled(path, "get", program_id=FITTED_ID)
        answers = {kind: client.get(**request | {"headers": {"accept": kind}}) for kind in kinds}
        for kind, answer in answers.items():
            assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, kind), answer.text
            assert answer.headers["vary"] == "Accept", path
        tags = {kind: answer.headers["etag"] for kind, answer in answers.items() if "etag" in answer.headers}
        assert len(set(tags.values())) == len(tags), path
        for kind, tag in tags.items():
            for asked, own in tags.items():
                again = client.get(**request | {"headers": {"accept": asked, "if-none-match": f'"x", {tag}'}})
                assert again.status_code == (304 if tag == own else 200), (path, kind, asked)
                assert (again.headers["etag"], again.headers["vary"]) == (own, "Accept"), path
        refused = client.get(**request | {"headers": {"accept": "image/png"}})
        assert refused.status_code in (200, 406)
        assert refused.headers["vary"] == "Accept", path


@pytest.mark.parametrize("part", ["parameters", "optimizer"])
def test_the_etag_of_either_form_protects_a_change(client: httpx.Client, part: str):
    with opened(client, SKETCH, optimizer={"type": "momentum"}) as path:
        for kind in ("application/json", FILE):
            tag = client.get(f"{path}/{part}", headers={"accept": kind}).headers["etag"]
            member = "parameters" if part == "parameters" else "slots"
            sent = {member: client.get(f"{path}/{part}").json()[member]}

            assert client.put(f"{path}/{part}", json=sent, headers={"if-match": tag}).status_code == 200
            assert client.put(f"{path}/{part}", json=sent, headers={"if-match": tag}).status_code == 412


def test_the_service_links_to_every_resource_below_it(client: httpx.Client):
    links = client.get("/v1").json()["links"]

    assert {path for path in DOCUMENT["paths"] if re.fullmatch(r"/v1/\w+", path)} <= set(links.values())
    for path in set(links.values()) - {"/guide/"}:  # the guide may not be built
        assert client.get(path).status_code in (200, 405), path


@pytest.mark.parametrize(("path", "kind"), [(path, kind) for path, kinds in NEGOTIATED.items() for kind in kinds])
def test_a_form_is_found_in_any_line_of_accept(client: httpx.Client, path: str, kind: str):
    request = filled(path, "get", program_id=FITTED_ID)
    answer = client.get(**request | {"headers": [("accept", "image/png"), ("accept", kind)]})

    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, kind), answer.text


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_is_found_in_any_line_of_accept(client: httpx.Client, path: str):
    request = filled(path, "get") | {"headers": [("accept", "image/png"), ("accept", EVENT_STREAM)]}
    with client.stream("GET", **request) as answer:
        assert answer.headers["content-type"].startswith(EVENT_STREAM)


COUNTS = re.compile(r"(.*_)?(bytes(_in|_out)?|steps?|requests|size|rows|ops|used|offset|seq)")


def members(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Each number of an answer with the name of its member."""
    if isinstance(value, dict):
        if "b64" not in value and "data" not in value:  # no tensor
            for key, each in value.items():
                if key != "compute_seconds":  # its `used` is no count
                    yield from members(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from members(each, name)
    else:
        yield name, value


def test_counts_are_integers_and_times_have_microseconds(client: httpx.Client):
    for path in GETS:
        answer = client.get(**filled(path, "get"))
        if answer.headers.get("content-type") != "application/json":
            continue
        document = answer.json()
        timing = document.pop("timing_ms", {})
        assert all(round(ms, 3) == ms for ms in timing.values()), path
        floats = [name for name, value in members(document) if COUNTS.fullmatch(name) and isinstance(value, float)]
        assert floats == [], path
