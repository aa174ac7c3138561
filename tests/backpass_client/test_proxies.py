"""The client behind a reverse proxy: answers that are not of the service, lost connections, and waits between tries."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx
import pytest

from backpass_client import BackpassError, Refused, Service, Unreachable
from backpass_client.idempotent_calls import IdempotentCalls

HTML = {"content-type": "text/html", "server": "nginx"}
PAGE = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"
Step = httpx.Response | Exception


def page(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(status, text=PAGE, headers=HTML | {name.replace("_", "-"): v for name, v in headers.items()})


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the client waits; it does not really wait."""
    found: list[float] = []
    monkeypatch.setattr("time.sleep", found.append)
    return found


def service_with(*steps: Step) -> tuple[Service, list[httpx.Request]]:
    """A client whose requests get these answers in turn, and the requests."""
    left, seen = iter(steps), []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        step = next(left)
        if isinstance(step, Exception):
            raise step
        return step

    service = Service("http://service")
    service._http = httpx.Client(base_url=service.url, transport=httpx.MockTransport(answer))
    return service, seen


OK = {"done": True}
LOST: dict[str, Callable[[], Step]] = {
    "502": lambda: page(502),
    "503": lambda: page(503),
    "504": lambda: page(504),
    "502 in JSON of the proxy": lambda: httpx.Response(502, json={"message": "upstream"}),
    "503 in a JSON list": lambda: httpx.Response(503, json=["upstream"]),
    "reset by peer": lambda: httpx.ReadError("reset by peer"),
    "closed without an answer": lambda: httpx.RemoteProtocolError("Server disconnected"),
}
"""What a client sees while a service behind a proxy starts again."""


@pytest.mark.parametrize("lost", LOST)
def test_the_client_repeats_safe_requests(lost, waits):
    service, seen = service_with(*(LOST[lost]() for _ in range(5)), httpx.Response(200, json=OK))

    assert service.call("GET", "/v1") == OK

    assert len(seen) == 6
    assert all(later > earlier for earlier, later in itertools.pairwise(waits))
    assert 9 < sum(waits) < 16  # a service stops and starts again in this time


@pytest.mark.parametrize("lost", LOST)
def test_a_request_that_may_have_taken_effect_is_sent_once(lost, waits):
    service, seen = service_with(LOST[lost](), httpx.Response(200, json=OK))

    with pytest.raises((Refused, Unreachable)):
        service.call("POST", "/v1/tapes", {})

    assert (len(seen), waits) == (1, [])


def test_a_request_that_a_proxy_limits_was_not_started_and_is_sent_again(waits):
    service, seen = service_with(page(429, retry_after="2"), httpx.Response(200, json=OK))

    assert service.call("POST", "/v1/tapes", {}) == OK
    assert (len(seen), waits) == (2, [2.0])


DATES = {
    "seconds": ({"retry_after": "7"}, 7.0),
    "a date": ({"retry_after": "Sun, 06 Nov 1994 08:49:37 GMT", "date": "Sun, 06 Nov 1994 08:49:30 GMT"}, 7.0),
    "a date in the past": ({"retry_after": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0.0),
    "a date far in the future": ({"retry_after": "Sun, 06 Nov 2994 08:49:37 GMT"}, None),
}


@pytest.mark.parametrize("given", DATES)
def test_the_client_waits_as_long_as_it_is_asked_to_by_seconds_or_by_a_date(given, waits):
    headers, expected = DATES[given]
    service, _ = service_with(page(503, **headers), httpx.Response(200, json=OK))

    if expected is None:
        with pytest.raises(Refused):
            service.call("GET", "/v1")
    else:
        service.call("GET", "/v1")

    assert waits == ([] if expected is None else [expected])


@pytest.mark.parametrize("wrong", ["soon", "-1", "1.5e3", "\u0661", ""])
def test_an_invalid_time_to_wait_is_ignored(wrong, waits):
    answer = httpx.Response(503, text=PAGE, headers=[(b"retry-after", wrong.encode())])
    service, _ = service_with(answer, httpx.Response(200, json=OK))

    assert service.call("GET", "/v1") == OK
    assert len(waits) == 1 and 0 < waits[0] < 1


def test_the_error_names_the_proxy_and_shows_its_text_without_tags():
    service, _ = service_with(page(413))

    with pytest.raises(Refused) as caught:
        service.call("POST", "/v1/programs", {})

    assert (caught.value.status, caught.value.code, caught.value.retryable) == (413, "", False)
    text = str(caught.value)
    assert text.startswith("POST /v1/programs: 413 Request Entity Too Large: this is no answer of Backpass")
    assert "(nginx)" in text and "502 Bad Gateway" in text and "<" not in text


def test_a_redirect_is_an_error_that_names_the_other_address():
    service, seen = service_with(httpx.Response(301, text=PAGE, headers={"location": "https://service/v1"}))

    with pytest.raises(Refused, match="redirects to https://service/v1"):
        service.call("GET", "/v1")
    assert len(seen) == 1


CALLS: dict[str, Callable[[Service], object]] = {
    "call": lambda service: service.call("GET", "/v1"),
    "exchange": lambda service: service.exchange("POST", "/v1/gradients", {}, repeat=True),
    "upload": lambda service: service.upload("/v1/programs", {}, {}),
    "datasets": lambda service: list(service.datasets.list()),
    "stream": lambda service: list(steps_of(service)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_page_of_another_server_is_no_answer(name):
    service, _ = service_with(page(200))

    with pytest.raises(BackpassError, match="no answer of Backpass"):
        CALLS[name](service)


def steps_of(service: Service) -> Iterable[tuple[str, object]]:
    return IdempotentCalls(service, "/v1/sessions/ses_1", 1).stream("steps", {}, {}, lambda said, found: None)


@pytest.mark.parametrize("lost", LOST)
def test_a_stream_whose_begin_is_lost_is_asked_for_again_after_a_pause(lost, waits):
    lines = json.dumps({"event": "done", "loss": None, "next_seq": 2})
    answer = httpx.Response(200, text=lines, headers={"content-type": "application/x-ndjson"})
    service, seen = service_with(LOST[lost](), LOST[lost](), answer)

    assert list(steps_of(service)) == []

    assert len(seen) == 3 and len(waits) == 2 and min(waits) > 0


def test_a_file_goes_on_where_the_connection_broke_and_appears_whole(tmp_path: Path, waits):
    content = bytes(range(256)) * 1000

    class Broken(httpx.SyncByteStream):
        def __iter__(self):
            yield content[:1000]
            raise httpx.ReadError("reset by peer")

    rest = httpx.Response(206, content=content[1000:], headers={"etag": '"1"'})
    service, seen = service_with(httpx.Response(200, stream=Broken(), headers={"etag": '"1"'}), page(502), rest)

    service.datasets.download("dst_1", tmp_path / "file")

    assert (tmp_path / "file").read_bytes() == content
    assert [request.headers.get("range") for request in seen] == [None, "bytes=1000-", "bytes=1000-"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_cannot_be_received_leaves_the_old_one(tmp_path: Path, waits):
    (tmp_path / "file").write_bytes(b"old")
    service, _ = service_with(*(page(502) for _ in range(6)))

    with pytest.raises(Refused):
        service.datasets.download("dst_1", tmp_path / "file")

    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
