"""Streams of events: each event once and in order, however often the client connects again."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import orjson
import pytest

from service.http.sse import Event, EventStream, Ring, Streams, last_event_id
from service.problems import HttpProblem

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Reader:
    """A client of a stream that may leave after some messages. events: (number, kind, data) as received."""

    def __init__(self, leaves_after: int | None = None) -> None:
        self.raw = b""
        self.status = 0
        self._left = leaves_after

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.raw += message["body"]
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                raise asyncio.CancelledError
        await asyncio.sleep(0)

    @property
    def events(self) -> list[tuple[int | None, str, Any]]:
        found = []
        for block in self.raw.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "event" in fields:
                found.append(
                    (int(fields["id"]) if "id" in fields else None, fields["event"], orjson.loads(fields["data"]))
                )
        return found


async def read(
    source: Any, after: int = 0, streams: Streams | None = None, leaves: int | None = None, **more: Any
) -> Reader:
    reader = Reader(leaves)
    stream = EventStream(streams or Streams(4), "local", source, after, **more)

    async def receive() -> Any:
        await asyncio.sleep(100)

    try:
        await stream({"type": "http"}, receive, reader.send)
    except asyncio.CancelledError:
        assert leaves is not None
    return reader


async def test_a_client_that_connects_again_at_random_gets_each_event_once_and_in_order():
    rng = random.Random(4)
    for _ in range(20):
        ring, seen = Ring(), []

        async def produce(ring: Ring = ring) -> None:
            for i in range(60):
                ring.add("number", {"i": i})
                if rng.random() < 0.4:
                    await asyncio.sleep(0)
            ring.end()

        producing = asyncio.create_task(produce())
        last = 0
        while len(seen) < 60:
            reader = await read(ring, last, leaves=rng.randrange(2, 6))
            seen += reader.events
            last = max([last, *(id for id, *_ in reader.events if id is not None)])
        await producing
        assert seen == [(i + 1, "number", {"i": i}) for i in range(60)]
        assert (await read(ring, last)).events == []


async def test_a_stream_ends_with_its_source_and_waits_for_it_until_then():
    ring = Ring()
    reading = asyncio.create_task(read(ring))
    for i in range(3):
        await asyncio.sleep(0.01)
        assert not reading.done()
        ring.add("a", {"i": i})
    ring.end()
    assert len((await reading).events) == 3


@pytest.mark.parametrize("after", [0, 3, 500])
async def test_events_that_are_dropped_or_of_another_process_are_told_by_a_reset(after):
    ring = Ring(size=10)
    for i in range(1, 31):
        ring.add("n", {"i": i})
    ring.end()
    events = (await read(ring, after)).events
    assert events[0] == (None, "reset", {"oldest": 21})
    assert [id for id, *_ in events[1:]] == list(range(21, 31))


@pytest.mark.parametrize("after", [20, 25, 30])
async def test_a_reader_inside_of_the_ring_gets_no_reset(after):
    ring = Ring(size=10)
    for i in range(1, 31):
        ring.add("n", {"i": i})
    ring.end()
    assert [id for id, *_ in (await read(ring, after)).events] == list(range(after + 1, 31))


async def test_a_silent_stream_sends_comments_and_ends_after_its_time():
    reader = await read(Ring(), keep_alive=0.02, longest=0.51)
    assert 3 <= reader.raw.count(b": still here") <= 25  # fewer on a busy machine
    assert reader.events == []


async def test_the_end_of_the_service_is_an_event_of_all_streams():
    ring, streams = Ring(), Streams(4)
    reading = [asyncio.create_task(read(ring, streams=streams)) for _ in range(3)]
    await asyncio.sleep(0.01)
    ring.add("last", {})
    streams.close()
    for each in reading:
        assert [kind for _, kind, _ in (await each).events] == ["last", "shutdown"]
    with pytest.raises(HttpProblem) as caught:
        await read(ring, streams=streams)
    assert caught.value.code == "draining"
    assert not +streams.open


async def test_a_tenant_has_a_limit_of_streams_and_another_one_its_own():
    ring, streams = Ring(), Streams(2)
    reading = [asyncio.create_task(read(ring, streams=streams)) for _ in range(2)]
    await asyncio.sleep(0.01)
    with pytest.raises(HttpProblem) as caught:
        await read(ring, streams=streams)
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "5")
    with streams.place("other"):
        pass
    ring.end()
    await asyncio.gather(*reading)
    await read(ring, streams=streams)


async def test_a_slow_reader_holds_one_page_of_events():
    ring = Ring()
    go_on = asyncio.Event()
    largest = []

    async def send(message: Any) -> None:
        largest.append(len(message.get("body", b"")))
        await go_on.wait()

    stream = EventStream(Streams(1), "local", ring)
    reading = asyncio.create_task(stream({"type": "http"}, None, send))  # type: ignore[arg-type]
    for i in range(20_000):
        ring.add("n", {"i": i})
    ring.end()
    await asyncio.sleep(0.01)
    go_on.set()
    await reading
    assert max(largest) < 500 * 64


class Headers:
    def __init__(self, value: str | None) -> None:
        self.headers = {} if value is None else {"last-event-id": value}


@pytest.mark.parametrize(("header", "after", "found"), [(None, None, 0), (None, 7, 7), ("12", 7, 12), ("", 3, 3)])
def test_the_last_number_comes_from_the_header_else_from_the_query(header, after, found):
    assert last_event_id(Headers(header), after) == found  # type: ignore[arg-type]


@pytest.mark.parametrize("header", ["-1", "x", "1.5", "9" * 40, "0" * 5000, "٣"])
def test_a_number_of_no_event_is_refused(header):
    with pytest.raises(HttpProblem) as caught:
        last_event_id(Headers(header))  # type: ignore[arg-type]
    assert caught.value.status == 422


def test_an_event_is_written_on_lines_of_its_own():
    assert Event(3, "x", {"a": "b\nc"}).text() == b'id: 3\nevent: x\ndata: {"a":"b\\nc"}\n\n'
