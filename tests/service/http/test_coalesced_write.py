"""What a client gets of several writes, and when."""

from __future__ import annotations

import asyncio

import pytest

from service.http.coalesced_write import Gathering

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Packets:
    """A transport that notes what it is told to do."""

    def __init__(self) -> None:
        self.done: list[bytes | str] = []

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


async def test_two_writes_are_one_packet_and_go_at_once(opened):
    transport, done = opened
    transport.write(b"header ")
    assert (transport.get_write_buffer_size(), done) == (12, [])
    transport.write(b"body")
    assert (transport.get_write_buffer_size(), done) == (5, [b"header body"])
    await asyncio.sleep(0)
    assert done == [b"header body"]


async def test_a_write_that_stays_alone_goes_before_anything_else_happens(opened):
    transport, done = opened
    transport.write(b"header")
    await asyncio.sleep(0)
    assert done == [b"header"]
    transport.write(b"line")
    await asyncio.sleep(0)
    assert done == [b"header", b"line"]


async def test_closing_sends_what_waits_and_aborting_does_not(opened):
    transport, done = opened
    transport.write(b"header")
    transport.close()
    await asyncio.sleep(0)
    assert done == [b"header", "close"]
    transport.write(b"more")
    transport.abort()
    await asyncio.sleep(0)
    assert done[2:] == ["abort"]


async def test_the_rest_is_the_transports_own(opened):
    assert opened[0].get_extra_info("peername") == "peername"
