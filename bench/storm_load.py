"""The load of `bench.storm`: clients over raw sockets in an event loop of their own, and a probe of `/healthz/live`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from bench.servers import SAFETENSORS, Connection
from service.formats import safetensors as tensorfile

__all__ = ["HEAVY", "STORMS", "Target", "flood", "probe", "target_of"]

SESSIONS = 8
GOOD_CLIENTS = 4  # of a storm whose own requests never succeed
OPS = 20_000
JSON_BYTES = 8 * 2**20
FILE_BYTES = 64 * 2**20
PROBE_S = 0.005
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Target:
    """A running service.

    pid: of the API process. sessions: their paths. small: a program id for one-shot calls. large: one of OPS ops.
    wide: a session with a parameter of FILE_BYTES.
    """

    port: int
    pid: int
    sessions: tuple[str, ...]
    small: str
    large: str
    wide: str


def target_of(connection: Connection) -> Target:
    """Register the programs and open the sessions."""

    def made(path: str, document: dict[str, Any]) -> str:
        connection.request("POST", path, json.dumps(document).encode(), {"Content-Type": JSON})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{path} answers {answer.status}: {content[:500]!r}")
        return json.loads(content)["id"]

    small, wide = (
        made("/v1/programs", {"program": line(4, 1)}),
        made("/v1/programs", {"program": line(2, FILE_BYTES // 4)}),
    )
    large = made("/v1/programs", {"program": line(OPS, 1)})
    lease = {"loss": "loss", "optimizer": {"type": "sgd", "learning_rate": 0.1}, "lease_s": 3600}
    sessions = tuple("/v1/sessions/" + made("/v1/sessions", {"program_id": small, **lease}) for _ in range(SESSIONS))
    opened = "/v1/sessions/" + made("/v1/sessions", {"program_id": wide, **lease})
    for path in sessions:  # compiles
        connection.request("POST", f"{path}/steps", STEP, {"Content-Type": JSON})
        connection.getresponse().read()
    port = connection.port
    connection.close()
    return Target(port, connection.pid, sessions, small, large, opened)


def line(ops: int, size: int) -> dict[str, Any]:
    """mean(tanh(... tanh(x w))) with `ops` ops and a parameter of `size` elements; x has any size if w has one."""
    steps = [{"type": "mul", "inputs": {"x": ["x"], "y": ["w"]}, "outputs": {"out": ["h0"]}}]
    steps += [
        {"type": "tanh", "inputs": {"x": [f"h{i - 1}"]}, "outputs": {"out": [f"h{i}"]}} for i in range(1, ops - 1)
    ]
    steps.append({"type": "mean", "inputs": {"x": [f"h{max(0, ops - 2)}"]}, "outputs": {"out": ["loss"]}})
    x = {"name": "x", "dtype": "float32", "shape": [-1] if size == 1 else [1], "role": "feed"}
    w = {"name": "w", "dtype": "float32", "shape": [size], "role": "parameter"}
    return {"blocks": [{"idx": 0, "vars": [x, w], "ops": steps}]}


VALUE = {"dtype": "float32", "shape": [4], "data": [0.1, 0.2, 0.3, 0.4]}
WEIGHT = {"dtype": "float32", "shape": [1], "data": [0.5]}
STEP = json.dumps({"feeds": {"x": VALUE}}).encode()


def request(method: str, path: str, body: bytes = b"", kind: str = JSON, *, declared: int | None = None) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: {kind}\r\n"
    if method == "POST":
        head += f"content-type: {kind}\r\ncontent-length: {len(body) if declared is None else declared}\r\n"
    return head.encode() + b"\r\n" + body


# --- clients -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counts:
    good: int = 0
    refused: int = 0
    failed: int = 0
    end: float = 0.0


class Client(asyncio.Protocol):
    """One connection that sends `sent` again after each answer, or after each `pipelined` answers.

    reconnect: open a new connection for each request. counted: whether its answers are goodput.
    """

    def __init__(
        self, again: Callable[[], None], counts: Counts, sent: bytes, pipelined: int = 1, reconnect: bool = False
    ) -> None:
        self.again, self.counts, self.sent = again, counts, sent
        self.pipelined, self.reconnect = pipelined, reconnect
        self.data = bytearray()
        self.left, self.skip = 0, 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.send()

    def send(self) -> None:
        assert self.transport is not None
        if time.monotonic() >= self.counts.end:
            self.transport.close()
            return
        self.left = self.pipelined
        self.transport.write(self.sent * self.pipelined)

    def data_received(self, data: bytes) -> None:
        if self.skip:
            taken = min(self.skip, len(data))
            self.skip -= taken
            data = data[taken:]
            if self.skip:
                return
            self.answered()
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.data[:end]).lower()
            status = int(head[9:12])
            _, found, rest = head.partition(b"content-length:")
            size = int(rest.partition(b"\r\n")[0]) if found else 0
            if status < 300:
                self.counts.good += 1
            elif status in (429, 503):
                self.counts.refused += 1
            else:
                self.counts.failed += 1
            held = len(self.data) - end - 4
            del self.data[: end + 4 + size]
            if held < size:
                self.skip = size - held
                return
            self.answered()

    def answered(self) -> None:
        self.left -= 1
        if self.left == 0:
            if self.reconnect:
                assert self.transport is not None
                self.transport.close()
            else:
                self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if time.monotonic() < self.counts.end:
            self.again()


class Drip(asyncio.Protocol):
    """Sends a body byte by byte, and never to its end."""

    def __init__(self, again: Callable[[], None], counts: Counts, sent: bytes) -> None:
        self.again, self.counts, self.sent = again, counts, sent
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        transport.write(self.sent)
        self.loop.call_later(0.01, self.more)

    def more(self) -> None:
        assert self.transport is not None
        if not self.transport.is_closing():
            self.transport.write(b" ")
            self.loop.call_later(0.01, self.more)

    def connection_lost(self, exc: Exception | None) -> None:
        if time.monotonic() < self.counts.end:
            self.again()


async def connected(port: int, make: Callable[[Callable[[], None]], asyncio.Protocol], counts: Counts) -> None:
    """Keep one client connected until the end."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    while time.monotonic() < counts.end:
        ended.clear()
        try:
            transport, _ = await loop.create_connection(lambda: make(ended.set), "127.0.0.1", port)
        except OSError:
            counts.failed += 1
            await asyncio.sleep(0.01)
            continue
        try:
            async with asyncio.timeout(max(0.0, counts.end - time.monotonic())):
                await ended.wait()
        except TimeoutError:
            transport.abort()


def flood(target: Target, kind: str, clients: int, seconds: float, results: Any) -> None:
    """Run the storm or the heavy requests `kind`; puts the rates into `results`."""
    results.put(uvloop.run(flooded(target, kind, clients, seconds)))


async def flooded(target: Target, kind: str, clients: int, seconds: float) -> dict[str, float]:
    warm = 0.5
    counts = Counts(end=time.monotonic() + seconds + warm)
    other = Counts(end=counts.end)
    makers = (STORMS | HEAVY)[kind](target, clients, counts, other)
    running = [asyncio.ensure_future(connected(target.port, make, counts)) for make in makers]
    await asyncio.sleep(warm)
    good, refused, failed = counts.good, counts.refused + other.refused, counts.failed + other.failed
    started, spent = time.monotonic(), cpu_seconds(target.pid)
    await asyncio.wait(running, timeout=seconds)
    taken = time.monotonic() - started
    found = {
        "api_ms": 1e3 * (cpu_seconds(target.pid) - spent) / max(1, counts.good - good),
        "good": (counts.good - good) / taken,
        "refused": (counts.refused + other.refused - refused) / taken,
        "failed": (counts.failed + other.failed - failed) / taken,
    }
    await asyncio.wait(running, timeout=2)
    return found


def cpu_seconds(pid: int) -> float:
    """Processor time of one process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def probe(target: Target, seconds: float, results: Any) -> None:
    """Ask `/healthz/live` every PROBE_S; puts the 99th percentile and the maximum of the delays into `results`."""
    delays = []
    sent = request("GET", "/healthz/live")
    end = time.monotonic() + seconds + 0.5
    with socket.create_connection(("127.0.0.1", target.port), timeout=60) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while time.monotonic() < end:
            started = time.monotonic()
            sock.sendall(sent)
            if not sock.recv(65536).startswith(b"HTTP/1.1 200"):
                raise SystemExit("/healthz/live does not answer 200")
            delays.append(time.monotonic() - started)
            time.sleep(PROBE_S)
    delays.sort()
    results.put({"p99_ms": 1e3 * delays[int(0.99 * (len(delays) - 1))], "most_ms": 1e3 * delays[-1]})


# --- storms: makers of clients -------------------------------------------------------------------------------------

Makers = list[Callable[[Callable[[], None]], asyncio.Protocol]]


def step(target: Target, i: int) -> bytes:
    return request("POST", f"{target.sessions[i % SESSIONS]}/steps", STEP)


def retry(target: Target, clients: int, counts: Counts, other: Counts) -> Makers:
    """All clients train, on eight sessions, and repeat refused steps at once."""
    return [lambda again, i=i: Client(again, counts, step(target, i)) for i in range(clients)]  # type: ignore[misc]


def one_session(target: Target, clients: int, counts: Counts, other: Counts) -> Makers:
    """All clients train one session."""
    return [lambda again: Client(again, counts, step(target, 0)) for _ in range(clients)]


def one_shot(target: Target, clients: int, counts: Counts, other: Counts) -> Makers:
    """All clients ask for gradients of a registered program."""
    body = json.dumps({"loss": "loss", "feeds": {"x": VALUE}, "parameters": {"w": WEIGHT}}).encode()
    sent = request("POST", f"/v1/programs/{target.small}/gradients", body)
    return [lambda again: Client(again, counts, sent) for _ in range(clients)]


def reconnect(target: Target, clients: int, counts: Counts, other: Counts) -> Makers:
    """Four clients train; the others open a connection for each step."""
    return good(target, counts) + [
        lambda again, i=i: Client(again, counts, step(target, i), reconnect=True)  # type: ignore[misc]
        for i in range(GOOD_CLIENTS, clients)
    ]


def pipelined(target: Target, clients: int, counts: Counts, other: Counts) -> Makers:
    """Four clients train; the others send 16 steps at a time."""
    return good(target, counts) + [
        lambda again, i=i: Client(again, counts, step(target, i), pipelined=16)  # type: ignore[misc]
        for i in range(GOOD_CLIENTS, clients)
    ]


def slow(target: Target, clients: int, counts: Counts, other: Counts) -> Makers:
    """Four clients train; the others send bodies byte by byte."""
    sent = request("POST", f"{target.sessions[7]}/steps", b"{", declared=5000)
    return good(target, counts) + [lambda again: Drip(again, other, sent) for _ in range(GOOD_CLIENTS, clients)]


def too_large(target: Target, clients: int, counts: Counts, other: Counts) -> Makers:
    """Four clients train; the others send bodies above the limit."""
    sent = request("POST", f"{target.sessions[7]}/steps", b" " * 2**20, declared=JSON_BYTES + 2**20)
    return good(target, counts) + [lambda again: Client(again, other, sent) for _ in range(GOOD_CLIENTS, clients)]


def good(target: Target, counts: Counts) -> Makers:
    return [lambda again, i=i: Client(again, counts, step(target, i)) for i in range(GOOD_CLIENTS)]  # type: ignore[misc]


STORMS: dict[str, Callable[..., Makers]] = {
    "retry": retry,
    "one_session": one_session,
    "one_shot": one_shot,
    "reconnect": reconnect,
    "pipelined": pipelined,
    "slow": slow,
    "too_large": too_large,
}


# --- heavy requests ------------------------------------------------------------------------------------------------


def heavy(sent: Callable[[Target], bytes]) -> Callable[..., Makers]:
    def makers(target: Target, clients: int, counts: Counts, other: Counts) -> Makers:
        content = sent(target)
        return [lambda again: Client(again, counts, content) for _ in range(clients)]

    return makers


def json_body(target: Target) -> bytes:
    """A step of the largest JSON body."""
    size = (JSON_BYTES - 1000) // 10
    numbers = ",".join(["0.1234567"] * size)
    body = f'{{"feeds":{{"x":{{"dtype":"float32","shape":[{size}],"data":[{numbers}]}}}}}}'.encode()
    return request("POST", f"{target.sessions[0]}/evaluations", body)


def file_body(target: Target) -> bytes:
    values = {"x": np.zeros(FILE_BYTES // 4, np.float32)}
    return request("POST", f"{target.sessions[0]}/evaluations", tensorfile.pack(values, {}, key="request"), SAFETENSORS)


def json_answer(target: Target) -> bytes:
    return request("GET", f"{target.wide}/parameters")


def file_answer(target: Target) -> bytes:
    return request("GET", f"{target.wide}/parameters", kind=SAFETENSORS)


HEAVY: dict[str, Callable[..., Makers]] = {
    "json_body": heavy(json_body),
    "file_body": heavy(file_body),
    "json_answer": heavy(json_answer),
    "file_answer": heavy(file_answer),
    "program": heavy(lambda target: request("GET", f"/v1/programs/{target.large}")),
    "register": heavy(lambda target: request("POST", "/v1/programs", json.dumps({"program": line(OPS, 1)}).encode())),
    "backward": heavy(lambda target: request("GET", f"/v1/programs/{target.large}/backward?loss=loss")),
    "graph": heavy(lambda target: request("GET", f"/v1/programs/{target.large}/graph?loss=loss")),
    "analysis": heavy(lambda target: request("GET", f"/v1/programs/{target.large}/analysis?loss=loss")),
    "openapi": heavy(lambda target: request("GET", "/openapi.json")),
    "ops": heavy(lambda target: request("GET", "/v1/ops")),
}
