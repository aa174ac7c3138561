"""The protocol and its gates over real sockets: requests that never start, health, hosts, pipelines and drips."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from service.http import protocol
from service.http.admission import Admission
from service.http.protocol import guarded
from service.settings import Settings

SETTINGS = Settings(session_pipeline=1, json_body_bytes=200_000, body_bytes_in_flight=150_000)
HASTY = SETTINGS.model_copy(update={"body_deadline": 0.5})
"""For a test of this deadline alone: on a busy machine, other requests would miss it."""
SESSION = "/v1/sessions/ses_" + "a" * 26 + "/steps"


class Server:
    """An application that waits until it is released, and counts the requests that reached it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started: list[str] = []
        self.read = 0
        self.answered: list[tuple[str, str, int]] = []
        self.admission = Admission(settings, lambda *each: self.answered.append(each))
        self.release = threading.Event()
        self.port = 0

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        self.started.append(scope["path"])
        more = True
        while more:
            message = await receive()
            self.read += len(message.get("body", b""))
            more = message.get("more_body", False)
        if scope["path"] == SESSION:
            await asyncio.to_thread(self.release.wait, 20)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    def until(self, what) -> None:
        end = time.monotonic() + 60
        while not what():
            assert time.monotonic() < end
            time.sleep(0.002)


@pytest.fixture(params=["asyncio", "uvloop"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(Server(SETTINGS), request.param) as app:
        yield app


@pytest.fixture(params=["asyncio", "uvloop"])
def hasty_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(Server(HASTY), request.param) as app:
        yield app


@contextlib.contextmanager
def running(app: Server, loop: Any) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        http = guarded(app.settings, app.admission)
        config = uvicorn.Config(app, http=http, loop=loop, ws="none", lifespan="off", log_level="critical")
        uvicorn_server = uvicorn.Server(config)
        thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        app.port = listener.getsockname()[1]
        app.until(lambda: uvicorn_server.started)
        yield app
        app.release.set()
        uvicorn_server.should_exit = True
        thread.join(60)


def opened(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def post(path: str, body: bytes = b"{}", *, size: int | None = None, kind: str = "application/json") -> bytes:
    length = len(body) if size is None else size
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
    return head.encode() + body


def get(path: str, host: str = "localhost", more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: {host}\r\n{more}\r\n".encode()


def answer(sock: socket.socket) -> tuple[int, dict[bytes, bytes], bytes]:
    """(status, headers, body) of the next answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(65536)
        assert part, data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in lines)
    while len(body) < int(headers[b"content-length"]):
        body += sock.recv(65536)
    return int(first.split()[1]), headers, body


def test_a_request_that_finds_no_place_never_starts_and_keeps_its_connection(server: Server):
    waiting = [opened(server) for _ in range(3)]
    for sock in waiting[:2]:
        sock.sendall(post(SESSION))
    server.until(lambda: len(server.started) == 2)

    waiting[2].sendall(post(SESSION))
    status, headers, body = answer(waiting[2])

    assert (status, json.loads(body)["code"], json.loads(body)["retryable"]) == (429, "queue-full", True)
    assert int(headers[b"retry-after"]) >= 1
    assert len(server.started) == 2
    server.release.set()
    assert [answer(sock)[0] for sock in waiting[:2]] == [200, 200]
    waiting[2].sendall(post(SESSION))
    assert answer(waiting[2])[0] == 200
    assert ("POST", "refused", 429) in server.answered


def test_a_waiting_request_starts_when_another_ends(server: Server):
    socks = [opened(server) for _ in range(4)]
    for sock in socks:
        sock.sendall(post(SESSION))
    server.until(lambda: len(server.started) == 2)
    server.release.set()
    assert [answer(sock)[0] for sock in socks] == [200] * 4


def test_a_waiting_request_of_a_closed_connection_gives_up_its_place(server: Server):
    socks = [opened(server) for _ in range(3)]
    for sock in socks[:2]:
        sock.sendall(post(SESSION))
    server.until(lambda: len(server.started) == 2)
    socks[2].sendall(post(SESSION))
    gate = server.admission.gates(SESSION, 2)[0]
    server.until(lambda: gate.waiting or ("POST", "refused", 429) in server.answered)
    socks[2].close()
    server.until(lambda: not gate.waiting)
    assert len(server.started) == 2


def test_the_body_of_a_refused_upload_does_not_reach_the_application(server: Server):
    first = opened(server)
    first.sendall(post("/v1/gradients", b" " * 1000, size=100_000))
    server.until(lambda: server.read)

    second = opened(server)
    second.sendall(post("/v1/gradients", b" " * 1000, size=100_000))
    status, headers, body = answer(second)
    second.sendall(b" " * 99_000)

    assert (status, json.loads(body)["code"], headers[b"connection"]) == (429, "queue-full", b"close")
    assert "bytes of bodies" in json.loads(body)["detail"]
    assert server.started == ["/v1/gradients"]
    assert server.read <= 1000
    assert second.recv(1) == b""
    first.sendall(b" " * 99_000)
    assert answer(first)[0] == 200


def test_a_declared_size_above_the_limit_is_refused_before_the_body(server: Server):
    sock = opened(server)
    sock.sendall(post("/v1/gradients", b" " * 300_000))
    status, _, body = answer(sock)
    assert (status, json.loads(body)["limit"]) == (413, 200_000)
    assert server.started == []


def test_health_is_answered_while_all_places_are_taken(server: Server):
    for _ in range(2):
        sock = opened(server)
        sock.sendall(post(SESSION))
    server.until(lambda: len(server.started) == 2)

    sock = opened(server)
    for sent, echoed in (("request-id: abc\r\n", b"abc"), ("", None)):
        sock.sendall(get("/healthz/live", more=sent))
        status, headers, body = answer(sock)
        assert (status, body, headers[b"cache-control"]) == (200, b'{"status":"alive"}', b"no-store")
        assert headers[b"request-id"] == echoed or headers[b"request-id"].startswith(b"req_")
    assert len(server.started) == 2


def test_another_host_is_refused_with_status_421(server: Server):
    sock = opened(server)
    sock.sendall(get("/healthz/live", host="evil.example"))
    status, _, body = answer(sock)
    problem = json.loads(body)
    assert (status, problem["code"]) == (421, "wrong-host")
    assert "BACKPASS_ALLOWED_HOSTS" in problem["detail"]  # the first thing that a new proxy meets
    assert sock.recv(1) == b""


def test_a_small_body_is_complete_before_its_request_starts(server: Server):
    sock = opened(server)
    sent = post("/v1/gradients", b"{ }")
    sock.sendall(sent[:-1])
    other = opened(server)
    other.sendall(get("/v1/programs"))
    answer(other)
    assert server.started == ["/v1/programs"]
    sock.sendall(sent[-1:])
    assert answer(sock)[0] == 200
    assert server.started[-1] == "/v1/gradients"


def test_a_small_body_that_comes_too_slowly_gets_status_408(hasty_server: Server):
    sock = opened(hasty_server)
    sock.sendall(post("/v1/gradients", b"{", size=10))
    status, headers, body = answer(sock)
    assert (status, json.loads(body)["code"], headers[b"connection"]) == (408, "body-timeout", b"close")
    assert hasty_server.started == []


def test_drips_wait_for_their_turn(server: Server, monkeypatch: pytest.MonkeyPatch):
    turns = []
    add = server.admission.pacer.add
    monkeypatch.setattr(server.admission.pacer, "add", lambda piece: (turns.append(1), add(piece)))
    sock = opened(server)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(post("/v1/gradients", b"{", size=60))
    for _ in range(59):
        sock.sendall(b" ")
        time.sleep(0.002)
    assert answer(sock)[0] == 200
    assert turns


def test_a_burst_of_requests_is_parsed_step_by_step_and_answered_in_order(server: Server, monkeypatch):
    waiting = []
    parse = protocol.GuardedProtocol._start_asgi_task

    def counted(self, cycle, app):
        waiting.append(len(self.pipeline))
        parse(self, cycle, app)

    monkeypatch.setattr(protocol.GuardedProtocol, "_start_asgi_task", counted)
    paths = [f"/v1/programs/{i}" for i in range(2000)]
    sock = opened(server)
    threading.Thread(target=sock.sendall, args=(b"".join(map(get, paths)),), daemon=True).start()
    seen = b""
    while seen.count(b"HTTP/1.1 200") < len(paths):
        seen += sock.recv(65536)
    assert server.started == paths
    assert max(waiting) <= 2 * protocol.SLICE_BYTES // len(get(paths[0]))


def test_a_disconnect_reaches_the_middleware(server: Server):
    gone = threading.Event()
    app_call = server.__class__.__call__

    async def watching(self, scope, receive, send):
        scope["on_disconnect"] = gone.set
        await app_call(self, scope, receive, send)

    server.__class__.__call__ = watching  # type: ignore[method-assign]
    try:
        sock = opened(server)
        sock.sendall(post(SESSION))
        server.until(lambda: server.started)
        sock.close()
        assert gone.wait(60)
    finally:
        server.__class__.__call__ = app_call  # type: ignore[method-assign]
