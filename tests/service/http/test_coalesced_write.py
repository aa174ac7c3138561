"""The packets that several writes become, and the time when each is sent."""

from __future__ import annotations

import asyncio

import pytest

from service.http.coalesced_write import Gathering

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Packets:
    """A transport that records its calls."""

    def __init__(self) -> None:
        self.done: list[bytes | str] = []
        self.closed = False

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.done.append(b"".join(parts))

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def get_write_buffer_size(self) -> int:
        return 5

    def get_extra_info(self, name: str) -> str:
        return name


@pytest.fixture
async def opened() -> tuple[Gathering, list[bytes | str]]:
    packets = Packets()
    return Gathering(packets, asyncio.get_running_loop()), packets.done


async def test_two_writes_are_sent_at_once_as_one_packet(opened):
    transport, done = opened
    transport.write(b"header ")
    assert (transport.get_write_buffer_size(), done) == (12, [])
    transport.write(b"body")
    assert (transport.get_write_buffer_size(), done) == (5, [b"header body"])
    await asyncio.sleep(0)
    assert done == [b"header body"]


async def test_a_single_write_is_sent_in_the_next_turn_of_the_event_loop(opened):
    transport, done = opened
    transport.write(b"header")
    await asyncio.sleep(0)
    assert done == [b"header"]
    transport.write(b"line")
    await asyncio.sleep(0)
    assert done == [b"header", b"line"]


async def test_closing_sends_the_waiting_write_and_aborting_drops_it(opened):
    transport, done = opened
    transport.write(b"header")
    transport.close()
    await asyncio.sleep(0)
    assert done == [b"header", "close"]
    transport.write(b"more")
    transport.abort()
    await asyncio.sleep(0)
    assert done[2:] == ["abort"]


async def test_other_calls_reach_the_transport(opened):
    assert opened[0].get_extra_info("peername") == "peername"


async def test_writes_to_a_connection_that_the_client_closed_are_dropped(opened):
    transport, done = opened
    transport.write(b"header")
    transport._transport.closed = True
    transport.write(b"body")
    transport.write(b"more")
    await asyncio.sleep(0)
    assert done == []
