"""The protocol with real sockets: slow, oversized and malformed requests, and unread answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service import problems
from service.http.protocol import guarded
from service.http.request_body import read_body
from service.settings import Settings

LIMITS = Settings(header_bytes=4000, header_fields=20, json_body_bytes=10_000, allowed_hosts="x")
HASTY = LIMITS.model_copy(update={"header_deadline": 1.0, "write_deadline": 1.0, "body_deadline": 0.5})
"""For tests of these deadlines alone: on a busy machine, other requests would miss them."""


BLIND = {*((3, 12, n) for n in range(9)), (3, 13, 0), (3, 13, 1)}
"""Versions of Python with CVE-2024-12254: `writelines` of asyncio's transports never pauses the writer."""


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def server(request: pytest.FixtureRequest) -> Iterator[uvicorn.Server]:
    with running(LIMITS, request.param) as server:
        yield server


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def hasty_server(request: pytest.FixtureRequest) -> Iterator[uvicorn.Server]:
    with running(HASTY, request.param) as server:
        yield server


@contextlib.contextmanager
def running(limits: Settings, loop: Any) -> Iterator[uvicorn.Server]:
    app = FastAPI()
    problems.install(app)

    @app.get("/ok")
    async def ok() -> Response:
        return Response("fine")

    @app.get("/large")
    async def large() -> Response:
        return Response(bytes(50 * 2**20))

    @app.get("/lingering")
    async def lingering() -> Response:
        """The client has the whole answer some time before the server has ended it."""

        class Lingering(Response):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
                await send({"type": "http.response.body", "body": b"fine", "more_body": True})
                await asyncio.sleep(0.1)
                await send({"type": "http.response.body", "body": b""})

        return Lingering()

    @app.post("/body")
    async def body(request: Request) -> int:
        return len((await read_body(request, limits)).raw)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, http=guarded(limits), loop=loop, ws="none", log_level="critical")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield server
        server.should_exit = True
        thread.join(60)


@pytest.fixture
def port(server: uvicorn.Server) -> int:
    return port_of(server)


@pytest.fixture
def hasty_port(hasty_server: uvicorn.Server) -> int:
    return port_of(hasty_server)


def port_of(server: uvicorn.Server) -> int:
    return int(server.servers[0].sockets[0].getsockname()[1])


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def await_connections(server: uvicorn.Server, count: int) -> None:
    """Wait until the server has `count` open connections."""
    end = time.monotonic() + 30
    while len(server.server_state.connections) != count:
        assert time.monotonic() < end, f"{len(server.server_state.connections)} connections, not {count}"
        time.sleep(0.01)


def answer(sock: socket.socket) -> bytes:
    """All bytes until the server closes the connection."""
    parts = []
    while data := sock.recv(65536):
        parts.append(data)
    return b"".join(parts)


def until(sock: socket.socket, end: bytes) -> None:
    """Read up to `end`."""
    seen = b""
    while not seen.endswith(end):
        data = sock.recv(65536)
        assert data, seen
        seen += data


def exchange(port: int, sent: bytes) -> bytes:
    with connected(port) as sock:
        sock.sendall(sent)
        return answer(sock)


def checked(raw: bytes, status: int, code: str) -> None:
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), raw[:200]
    assert b"content-type: application/problem+json" in head
    document = json.loads(body)
    assert (document["status"], document["code"]) == (status, code)
    assert raw.count(b"HTTP/1.1") == 1


def test_a_normal_request_is_answered_and_the_connection_kept(port: int):
    with connected(port) as sock:
        for _ in range(3):
            sock.sendall(b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n")
            until(sock, b"fine")


@pytest.mark.parametrize("size", [100, 8192, 9000, 9999])
def test_a_body_that_arrives_before_the_last_answer_has_ended_is_read(port: int, size: int):
    with connected(port) as sock:
        for _ in range(2):
            sock.sendall(b"GET /lingering HTTP/1.1\r\nhost: x\r\n\r\n")
            until(sock, b"fine")
            head = b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            sock.sendall(head % size + b'{"a":"' + b"x" * (size - 8) + b'"}')
            until(sock, b"\r\n\r\n%d" % size)


def test_an_incomplete_header_closes_the_connection_at_its_deadline(hasty_port: int):
    for sent in (b"", b"GET /ok HTTP/1.1\r\nhost: x\r\n"):
        started = time.monotonic()
        with connected(hasty_port) as sock:
            sock.sendall(sent)

            assert answer(sock) == b""

            assert 0.9 < time.monotonic() - started < 20


def test_a_slowly_sent_header_closes_the_connection_at_its_deadline(hasty_port: int):
    with connected(hasty_port) as sock:
        started = time.monotonic()
        with pytest.raises(OSError):
            for byte in b"GET /ok HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 100:
                sock.sendall(bytes([byte]))
                time.sleep(0.05)

        assert time.monotonic() - started < 20


def test_the_second_header_of_a_connection_has_a_deadline_too(hasty_port: int):
    with connected(hasty_port) as sock:
        sock.sendall(b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n")
        until(sock, b"fine")
        started = time.monotonic()
        sock.sendall(b"GET /ok HT")

        assert answer(sock) == b""
        assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    "header",
    [
        b"a: " + b"x" * 5000 + b"\r\n",
        b"a" * 5000 + b": x\r\n",
        b"a: x\r\n" * 25,
    ],
    ids=["long value", "long name", "many fields"],
)
def test_a_large_header_gets_status_431(port: int, header: bytes):
    checked(exchange(port, b"GET /ok HTTP/1.1\r\nhost: x\r\n" + header + b"\r\n"), 431, "headers-too-large")


def test_a_long_path_counts_as_header(port: int):
    checked(exchange(port, b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nhost: x\r\n\r\n"), 431, "headers-too-large")


def test_a_health_check_of_http_1_0_needs_no_host_field(port: int):
    assert exchange(port, b"GET /ok HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
    checked(exchange(port, b"GET /ok HTTP/1.0\r\nhost: evil.example\r\n\r\n"), 421, "wrong-host")
    checked(exchange(port, b"GET /ok HTTP/1.0\r\nhost: x\r\nhost: x\r\n\r\n"), 400, "malformed-request")


def test_the_host_of_an_absolute_target_takes_the_place_of_the_header(port: int):
    end = b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    checked(exchange(port, b"GET http://evil.example/ok" + end), 421, "wrong-host")
    assert exchange(port, b"GET http://x:80/ok" + end).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("has_body", [False, True])
def test_bytes_that_begin_no_request_do_not_keep_a_connection(hasty_port: int, has_body: bool):
    """Line ends between requests, and the rest of a body that the route does not read."""
    with connected(hasty_port) as sock:
        sock.sendall(b"GET /ok HTTP/1.1\r\nhost: x\r\n" + b"content-length: 90000\r\n" * has_body + b"\r\n")
        until(sock, b"fine")
        sock.sendall(b"\r\n")
        assert answer(sock) == b""


@pytest.mark.parametrize("hosts", [b"", b"host: a\r\nhost: b\r\n"], ids=["none", "two"])
def test_a_request_without_exactly_one_host_field_is_refused(port: int, hosts: bytes):
    checked(exchange(port, b"GET /ok HTTP/1.1\r\n" + hosts + b"\r\n"), 400, "malformed-request")


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /ok HTTP/9.9\r\nhost: x\r\n\r\n",
        b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: +2\r\n\r\n{}",
        b"POST /body HTTP/1.1\r\nhost: x\r\ntransfer-encoding: banana\r\n\r\n{}",
        b"POST /body HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST /body HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /body HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /ok HTTP/2.0\r\nhost: x\r\n\r\n",
        b"GET /ok HTTP/1.1\r\nhost: x\r\nbad header: x\r\n\r\n",
        b"GET /ok HTTP/1.1\r\nhost : x\r\n\r\n",
        b"GET /ok HTTP/1.1\nhost: x\n\n\x01",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_invalid_http_gets_one_problem_document(port: int, sent: bytes):
    raw = exchange(port, sent)

    assert raw.count(b"HTTP/1.1 ") == 1, raw
    checked(raw, 400, "malformed-request")


def test_a_valid_request_before_invalid_bytes_gets_its_answer(port: int):
    raw = exchange(port, b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n\x00\x00")

    assert raw.startswith(b"HTTP/1.1 200")
    assert raw.endswith(b"fine")


def test_spaces_behind_the_value_of_a_header_are_ignored(port: int):
    head = b"POST /body HTTP/1.1\r\nhost: x \r\ncontent-type: application/json\t \r\ncontent-length: 2 \r\n"

    assert exchange(port, head + b"connection: close \r\n\r\n{}").endswith(b"\r\n\r\n2")


def test_http_1_0_gets_no_interim_answer(port: int):
    head = b"POST /body HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"

    assert exchange(port, head + b"{}").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("size", [2, 9000])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_offer_of_another_protocol_is_ignored(port: int, size: int, is_chunked: bool):
    """As the HTTP client of Java offers it."""
    offer = b"host: x\r\nconnection: upgrade, HTTP2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"
    content = b"{" + b"}".rjust(size - 1)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content) if is_chunked else content
    framing = b"transfer-encoding: chunked" if is_chunked else b"content-length: %d" % len(content)
    get = b"GET /ok HTTP/1.1\r\n" + offer + b"\r\n"
    post = b"POST /body HTTP/1.1\r\n" + offer + b"content-type: application/json\r\n" + framing + b"\r\n\r\n" + body
    last = b"GET /ok HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"

    at_once = exchange(port, get + post + get + last)
    with connected(port) as sock:
        for part in (get, post[:-1], post[-1:], get, last):
            sock.sendall(part)
            time.sleep(0.02)
        in_parts = answer(sock)

    for raw in (at_once, in_parts):
        answers = [each.partition(b"\r\n\r\n")[2] for each in raw.split(b"HTTP/1.1 200 OK")[1:]]
        assert answers == [b"fine", str(len(content)).encode(), b"fine", b"fine"], raw


def test_a_slow_body_gets_status_408(hasty_port: int):
    head = b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"

    checked(exchange(hasty_port, head), 408, "body-timeout")


def test_a_client_that_sends_a_large_body_completely_gets_status_413(port: int):
    body = b" " * 5_000_000
    head = b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)

    checked(exchange(port, head + body), 413, "body-too-large")


def is_served(sock: socket.socket, sent: bytes) -> bool:
    """Whether the server answers on the connection, and does not close it."""
    with contextlib.suppress(ConnectionError):
        sock.sendall(sent)
        return sock.recv(65536).endswith(b"fine")
    return False


def test_connections_leave_open_files_to_the_rest_of_the_service(server: uvicorn.Server, port: int):
    await_connections(server, 0)
    before, sent = resource.getrlimit(resource.RLIMIT_NOFILE), b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n"
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(connected(port))
        resource.setrlimit(resource.RLIMIT_NOFILE, (first.fileno() + 60, before[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        served = 0
        while is_served(stack.enter_context(connected(port)), sent):
            served += 1
            assert served < 30

        assert served > 3
        for _ in range(4):
            stack.enter_context(open(__file__))  # as the service does for large values
        assert is_served(first, sent)
    await_connections(server, 0)
    assert exchange(port, sent.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")).endswith(b"fine")


def test_an_unread_answer_is_aborted(request: pytest.FixtureRequest, hasty_server: uvicorn.Server, hasty_port: int):
    if "asyncio" in request.node.name and sys.version_info[:3] in BLIND:
        pytest.skip("the event loop of this Python does not tell that an answer is not read; that of the service does")
    await_connections(hasty_server, 0)  # those of earlier tests have ended
    with connected(hasty_port) as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        received = len(sock.recv(1))  # the answer has begun
        await_connections(hasty_server, 0)
        try:
            while data := sock.recv(2**20):
                received += len(data)
        except ConnectionResetError:
            pass  # a reset ends the answer too

    assert received < 40 * 2**20


def test_a_slow_reader_gets_the_complete_answer(hasty_port: int):
    with connected(hasty_port) as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        total = 0
        while data := sock.recv(4 * 2**20):
            total += len(data)
            time.sleep(0.1)

    assert total > 50 * 2**20
