"""Bodies that go to files."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from service.http.spooled_body import spooled
from service.settings import Settings


class Full:
    """A file on a disk without space."""

    closed = False

    def write(self, data: bytes) -> int:
        if self.closed:
            raise ValueError("write to closed file")
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        self.closed = True


class Sent:
    """A request whose body arrives in one piece."""

    async def receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": b"1,2"}


class Place:
    """The path of a file."""

    def __init__(self, file: Full) -> None:
        self.file = file

    def open(self, mode: str) -> Full:
        return self.file


def test_a_full_disk_is_told_as_such(tmp_path):
    file = Full()

    with pytest.raises(OSError, match="No space left"):
        asyncio.run(spooled(Sent(), Place(file), 100, Settings(data_dir=tmp_path)))  # type: ignore[arg-type]

    assert file.closed
