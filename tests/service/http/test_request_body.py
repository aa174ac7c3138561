"""Reading of request bodies: media type, size, speed, and the decoded body."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import numpy as np
import pytest
from starlette.requests import Request

from service.formats.safetensors import pack
from service.http import request_body
from service.http.request_body import JSON, SAFETENSORS, Body, media_type, read_body, wants_tensorfile
from service.problems import HttpProblem
from service.settings import Settings

pytestmark = pytest.mark.anyio

SMALL = Settings(json_body_bytes=1000, binary_body_bytes=5000, body_deadline=0.3, body_bytes_per_second=10**6)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def request(*chunks: bytes, pause: float = 0.0, **headers: str) -> Request:
    """A request whose body arrives in `chunks`, each after `pause` seconds."""
    waiting = list(chunks)

    async def receive() -> dict:
        await asyncio.sleep(pause)
        if not waiting:
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.request", "body": waiting.pop(0), "more_body": True}

    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": fields}, receive)


async def refused(problem_of: Request, **options: bool) -> HttpProblem:
    with pytest.raises(HttpProblem) as caught:
        await read_body(problem_of, SMALL, **options)
    return caught.value


async def test_a_json_body_becomes_an_object():
    body = await read_body(request(b'{"a":', b"[1]}", content_type="Application/JSON; charset=UTF-8"), SMALL)

    assert (body.document, body.tensors, body.media_type) == ({"a": [1]}, {}, JSON)


@pytest.mark.parametrize("media_type", [SAFETENSORS, "application/octet-stream"])
async def test_a_safetensors_body_becomes_arrays_and_an_object(media_type: str):
    data = pack({"x": np.arange(3.0)}, {"seq": 1}, key="request")

    body = await read_body(request(data, content_type=media_type), SMALL)

    assert (body.document, body.media_type) == ({"seq": 1}, SAFETENSORS)
    np.testing.assert_array_equal(body.tensors["x"], [0, 1, 2])


async def test_a_large_body_is_parsed_in_a_thread(monkeypatch: pytest.MonkeyPatch):
    numbers = b'{"x":[' + b"1.5," * 20_000 + b"0]}"
    parse, threads = request_body.parse_json, []

    def noted(*args: Any, **named: Any) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return parse(*args, **named)

    monkeypatch.setattr(request_body, "parse_json", noted)
    body = await read_body(request(numbers, content_type=JSON), Settings())
    await read_body(request(b'{"x":[1.5,0]}', content_type=JSON), Settings())

    assert len(body.document["x"]) == 20_001
    assert [thread is threading.main_thread() for thread in threads] == [False, True]


async def test_equal_requests_have_equal_digests_and_different_ones_differ():
    bodies = [await read_body(request(text, content_type=JSON), SMALL) for text in (b'{"a":1}', b'{"a":1}', b'{"a":2}')]

    first, again, other = (body.digest for body in bodies)
    assert first == again != other
    assert Body({}, {}, SAFETENSORS, b'{"a":1}').digest != first


def test_the_digest_depends_on_every_byte_of_a_large_body():
    raw = bytearray(3 * 2**20 + 5)
    seen = {Body({}, {}, SAFETENSORS, bytes(raw)).digest}
    for changed in (0, 2**20 - 1, 2**20, 2 * 2**20 + 7, len(raw) - 1):
        raw[changed] ^= 1
        seen |= {Body({}, {}, SAFETENSORS, raw).digest, Body({}, {}, SAFETENSORS, bytes(raw)).digest}

    assert len(seen) == 6
    assert Body({}, {}, SAFETENSORS, raw + b"\0").digest not in seen


async def test_an_optional_missing_body_is_an_empty_object():
    assert (await read_body(request(), SMALL, optional=True)).document == {}
    assert (await read_body(request(content_length="0"), SMALL, optional=True)).document == {}
    assert (await refused(request())).code == "unsupported-media-type"
    assert (await refused(request(content_type=JSON))).code == "invalid-json"


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "application/json+x"],
)
async def test_an_unsupported_media_type_gets_415_and_the_supported_ones(content_type: str):
    problem = await refused(request(b"{}", content_type=content_type))

    assert (problem.status, problem.code) == (415, "unsupported-media-type")
    assert problem.headers["Accept"] == f"{JSON}, {SAFETENSORS}"


async def test_the_refusal_of_a_json_body_in_another_encoding_names_utf_8():
    problem = await refused(request(b"{}", content_type=f"{JSON}; charset=latin-1"))

    assert (problem.status, problem.code) == (415, "unsupported-media-type")
    assert problem.detail.endswith("with no other parameter than charset=utf-8")


async def test_a_route_for_json_only_refuses_safetensors_with_415():
    problem = await refused(request(b"", content_type=SAFETENSORS), binary=False)

    assert (problem.status, problem.headers["Accept"]) == (415, JSON)


@pytest.mark.parametrize("coding", ["gzip", "zstd", "br", "gzip, gzip"])
async def test_a_content_encoding_is_refused(coding: str):
    problem = await refused(request(b"{}", content_type=JSON, content_encoding=coding))

    assert (problem.status, problem.code) == (415, "unsupported-encoding")


async def test_a_declared_length_over_the_limit_gets_413():
    problem = await refused(request(content_type=JSON, content_length="1001"))

    assert (problem.status, problem.headers["Connection"]) == (413, "close")


async def test_an_oversized_body_without_a_declared_length_gets_413():
    for chunks in ([b"x" * 1001], [b"x" * 400] * 3):
        problem = await refused(request(*chunks, content_type=JSON))

        assert (problem.status, problem.code) == (413, "body-too-large")


async def test_each_media_type_has_its_own_limit():
    assert (await refused(request(b"x" * 4999, content_type=SAFETENSORS))).status == 400
    assert (await refused(request(b"x" * 5001, content_type=SAFETENSORS))).status == 413


async def test_reading_an_oversized_body_stops_after_a_few_seconds():
    started = time.monotonic()

    problem = await refused(request(*[bytes(2**20)] * 100, pause=0.001, content_type=JSON))

    assert problem.status == 413
    assert time.monotonic() - started < 20


async def test_a_slow_body_gets_408():
    started = time.monotonic()

    problem = await refused(request(*[b" "] * 1000, pause=0.05, content_type=JSON))

    assert (problem.status, problem.headers["Connection"]) == (408, "close")
    assert time.monotonic() - started < 40


async def test_a_large_body_gets_a_longer_deadline():
    settings = Settings(body_deadline=1.0, body_bytes_per_second=50)
    text = json.dumps({"x": "y" * 8000}).encode()

    body = await read_body(
        request(*(text[i : i + 1000] for i in range(0, len(text), 1000)), pause=0.13, content_type=JSON), settings
    )

    assert len(body.document["x"]) == 8000


@pytest.mark.parametrize(
    ("accept", "binary"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("application/json", False),
        (SAFETENSORS, True),
        ("application/octet-stream", True),
        (f"{SAFETENSORS}, application/json;q=0.5", True),
        (f"application/json, {SAFETENSORS};q=0.5", False),
        (f"*/*;q=0.1, {SAFETENSORS}", True),
        (f"{SAFETENSORS};q=0, */*", False),
        ("application/*", False),
        ("text/html, application/json;q=nonsense, */*;q=0.3", True),
    ],
)
async def test_the_accept_header_chooses_the_form_of_the_answer(accept: str | None, binary: bool):
    assert wants_tensorfile(request(**({} if accept is None else {"accept": accept}))) is binary


def lines(name: str, *values: str) -> Request:
    """A request with a header in several lines."""
    fields = [(name.encode(), value.encode()) for value in values]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": fields})


async def test_the_lines_of_a_header_are_one_list():
    assert wants_tensorfile(lines("accept", "text/html", SAFETENSORS)) is True
    assert wants_tensorfile(lines("accept", "application/json;q=0.5", f"{SAFETENSORS};q=0.1")) is False
    with pytest.raises(HttpProblem, match="Content-Type must be"):
        media_type(lines("content-type", JSON, SAFETENSORS), True)


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "image/*"])
async def test_an_unsupported_accept_header_gets_406(accept: str):
    with pytest.raises(HttpProblem) as caught:
        wants_tensorfile(request(accept=accept))

    assert caught.value.status == 406
